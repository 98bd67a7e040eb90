// How a stage's flat parameters, and their gradient alike, are cut into GPU tensors that every adapter binds. Not the layout
// (peer/model/layout.ts), which stays one flat array for everybody else. What must stay true: parts are contiguous, in order,
// begin at aligned offsets, and no matrix but a vocabulary's is cut, and that only between rows.
import type { ArenaLimits, TensorRequest, TensorSlice } from "../gpu/arena.ts";
import { EMBEDDING_NAME, groupOffsets, HEAD_NAME, type StageLayout, stageLayout } from "../model/layout.ts";
import type { OPTIMIZER_SIDES } from "../model/optimizer_tensors.ts";
import { HEAD_TILE } from "../model/stage_tensors.ts";
import { assert } from "../wire/errors.ts";
import type { ModelSpec, StageSpec } from "../wire/run.ts";

const FLOAT_BYTES = 4;
/** Rows after which an offset is aligned whatever the rows' width is. */
export const ALIGNED_ROWS = 64;

/** The parameters themselves, the gradient of one micro-batch, or what the GPU's optimizer keeps of them. */
export type ParamSide = "params" | "gradient" | typeof OPTIMIZER_SIDES[number];

/** A run of the flat array, in floats. */
export interface ParamPart {
  index: number;
  offset: number;
  size: number;
}

/** As few parts as the limits allow. A matrix that exceeds them alone becomes a part of its own, which the arena refuses. */
export function paramParts(spec: ModelSpec, stage: StageSpec, limits: ArenaLimits): ParamPart[] {
  const max = Math.floor(Math.min(limits.bindingBytesMax, limits.bufferBytesMax) / FLOAT_BYTES);
  const layout = stageLayout(spec, stage);
  const starts = groupOffsets(spec, stage);
  const parts: ParamPart[] = [];
  starts.forEach((start, i) => {
    const end = starts[i + 1] ?? layout.size;
    for (const cut of cutsOf(layout, { start, end, max, width: spec.n_embd })) {
      const last = parts.at(-1);
      if (last && last.size + cut.size <= max) last.size += cut.size;
      else parts.push({ index: parts.length, ...cut });
    }
  });
  return parts;
}

/** A group whole, or a vocabulary matrix in runs of rows if it is too large. */
function cutsOf(
  layout: StageLayout,
  { start, end, max, width }: { start: number; end: number; max: number; width: number },
): { offset: number; size: number }[] {
  const rows = rowsPerPart(max, width);
  const { name } = layout.tensors.find((tensor) => tensor.offset === start)!;
  const mayCut = name === EMBEDDING_NAME || name === HEAD_NAME;
  if (end - start <= max || !mayCut || rows === 0) return [{ offset: start, size: end - start }];
  const cuts = [];
  for (let offset = start; offset < end; offset += rows * width) {
    cuts.push({ offset, size: Math.min(rows * width, end - offset) });
  }
  return cuts;
}

/** Whole tiles of the head, if one fits. */
function rowsPerPart(max: number, width: number): number {
  const rows = Math.floor(max / width);
  const unit = rows >= HEAD_TILE ? HEAD_TILE : ALIGNED_ROWS;
  return rows - rows % unit;
}

/** Floats [start, end) of the flat array, which lie in one part. */
export function partSlice(
  parts: readonly ParamPart[],
  of: ParamSide,
  { start, end }: { start: number; end: number },
): TensorSlice {
  const part = parts.find(({ offset, size }) => start >= offset && end <= offset + size);
  assert(part, `parameters ${start} to ${end} lie in one part`);
  return {
    tensor: partName(of, part),
    offset: (start - part.offset) * FLOAT_BYTES,
    bytes: (end - start) * FLOAT_BYTES,
  };
}

export function partName(of: ParamSide, { index }: ParamPart): string {
  return `${of} ${index}`;
}

export function paramTensors(parts: readonly ParamPart[], of: ParamSide): TensorRequest[] {
  return parts.map((part) => ({ name: partName(of, part), bytes: part.size * FLOAT_BYTES }));
}
