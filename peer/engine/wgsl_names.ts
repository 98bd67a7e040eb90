// Shapes of a stage and the names of its GPU tensors, as the operations' plans refer to them; sizes are listed in
// peer/model/stage_tensors.ts. Not an allocation (peer/gpu/arena.ts).
import { EMBEDDING_NAME, findTensor, HEAD_NAME } from "../model/layout.ts";
import { type ArenaLimits, DEFAULT_LIMITS, type TensorSlice } from "../gpu/arena.ts";
import { ANY_ADAPTER, type MatmulChoice } from "../gpu/kernels/matmul.ts";
import { dimsOf, headTile, type StageDims } from "../model/stage_tensors.ts";
import { assert } from "../wire/errors.ts";
import type { StageBuild } from "./engine.ts";
import { ALIGNED_ROWS, type ParamPart, paramParts, type ParamSide, partSlice } from "./wgsl_params.ts";

export { qkvWidth, type SlotName, slotTensor } from "../model/stage_tensors.ts";

/** Everything that the plans of one stage need to know. */
export interface StagePlanning extends StageDims {
  eps: number;
  /** How the parameters, and their gradient alike, are cut into tensors. */
  parts: readonly ParamPart[];
  /** Compute on a CPU: kernels avoid what such adapters compile slowly. */
  software: boolean;
  /** Which kernels compute the matrix products. */
  matmul: MatmulChoice;
}

/** What a plan depends on besides the stage: which kernels suit the adapter. */
export interface AdapterTraits {
  software: boolean;
  /** Default: kernels that suit any adapter. */
  matmul?: MatmulChoice;
  /** Default: what every WebGPU adapter offers. */
  limits?: ArenaLimits;
}

export function planningOf(build: StageBuild, adapter: AdapterTraits): StagePlanning {
  const { software, matmul = ANY_ADAPTER, limits = DEFAULT_LIMITS } = adapter;
  const parts = paramParts(build.spec, build.stage, limits);
  return { ...dimsOf(build), eps: build.spec.norm_eps, parts, software, matmul };
}

/** Contiguous parameters `first`..`last`, as one matrix; not for a vocabulary matrix, which may be cut. */
export function weightSlice(
  p: StagePlanning,
  of: ParamSide,
  names: { first: string; last?: string },
): TensorSlice {
  const from = findTensor(p.layout, names.first);
  const to = findTensor(p.layout, names.last ?? names.first);
  assert(from && to, `the layout has ${names.first} to ${names.last}`);
  return partSlice(p.parts, of, { start: from.offset, end: to.offset + to.size });
}

/** Gain and matrices of one layer, as slices of the parameters or of their gradient. */
export function layerWeights(p: StagePlanning, of: ParamSide, layer: number) {
  const prefix = `model.layers.${p.build.stage.firstLayer + layer}`;
  const slice = (first: string, last = first) =>
    weightSlice(p, of, { first: `${prefix}.${first}.weight`, last: `${prefix}.${last}.weight` });
  return {
    attentionNorm: slice("input_layernorm"),
    qkv: slice("self_attn.q_proj", "self_attn.v_proj"),
    project: slice("self_attn.o_proj"),
    mlpNorm: slice("post_attention_layernorm"),
    gateUp: slice("mlp.gate_proj", "mlp.up_proj"),
    down: slice("mlp.down_proj"),
  };
}

export function headName(p: StagePlanning): string {
  return p.build.spec.tie_word_embeddings ? EMBEDDING_NAME : HEAD_NAME;
}

/** Rows [from, from + count) of a [V, C] matrix, bound as one. */
export interface VocabularyRows {
  from: number;
  count: number;
  slice: TensorSlice;
}

/** The [V, C] matrix `name` in as few bindings as the adapter's limits allow. */
export function vocabularyParts(p: StagePlanning, of: ParamSide, name: string): VocabularyRows[] {
  const tensor = findTensor(p.layout, name);
  assert(tensor, `the layout has ${name}`);
  const rowsIn = (part: ParamPart) => ({
    start: Math.max(part.offset, tensor.offset),
    end: Math.min(part.offset + part.size, tensor.offset + tensor.size),
  });
  return p.parts.map(rowsIn).filter(({ start, end }) => start < end).map((range) => ({
    from: (range.start - tensor.offset) / p.C,
    count: (range.end - range.start) / p.C,
    slice: partSlice(p.parts, of, range),
  }));
}

/** The same matrix in tiles of which one has logits at a time. */
export function vocabularyTiles(p: StagePlanning, of: ParamSide, name: string): VocabularyRows[] {
  return vocabularyParts(p, of, name).flatMap((part) =>
    tileRows(part.count, p.C, headTile(p)).map(({ from, count }) => {
      const bytesOfRow = part.slice.bytes / part.count;
      const offset = part.slice.offset + from * bytesOfRow;
      return {
        ...{ from: part.from + from, count },
        slice: { tensor: part.slice.tensor, offset, bytes: count * bytesOfRow },
      };
    })
  );
}

/**
 * Full tiles, then what is left without its odd end, then that end. The quick kernels of products want sizes that four
 * divides, and a binding wants an aligned offset: few rows then run in slow kernels, whatever the size of the vocabulary.
 */
function tileRows(rows: number, C: number, tile: number): { from: number; count: number }[] {
  const unit = Math.max(4, ALIGNED_ROWS / greatestPowerOfTwo(C, ALIGNED_ROWS));
  const tiles: { from: number; count: number }[] = [];
  for (let from = 0; from < rows;) {
    const left = Math.min(tile, rows - from);
    const count = left < unit ? left : left - left % unit;
    tiles.push({ from, count });
    from += count;
  }
  return tiles;
}

/** The largest power of two up to `most` that divides n. */
function greatestPowerOfTwo(n: number, most: number): number {
  return Math.min(most, n & -n);
}
