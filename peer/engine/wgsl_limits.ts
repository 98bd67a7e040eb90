// What of a stage an adapter cannot bind in one piece, and what helps: said before anything is measured, allocated or planned,
// since every peer builds one layer when it joins. Pure. A vocabulary's matrices are cut between rows and logits into tiles;
// a layer's matrices and what belongs to a micro-batch's rows are not.
import type { ArenaLimits } from "../gpu/arena.ts";
import { paddedBytes, stageTensors, type TensorSize } from "../model/stage_tensors.ts";
import { ShoalError } from "../wire/errors.ts";
import type { StagePlanning } from "./wgsl_names.ts";
import { paramTensors } from "./wgsl_params.ts";

/** @throws {ShoalError} out-of-memory, naming the largest tensor that is too large, its size, the limit and the remedy. */
export function refuseUnbindable(p: StagePlanning, limits: ArenaLimits): void {
  const max = Math.min(limits.bufferBytesMax, limits.bindingBytesMax);
  const { activations, scratch } = stageTensors(p);
  const matrices = paramTensors(p.parts, "params");
  const adapters = p.adapters ? p.adapters.layerFloats * FLOAT_BYTES : 0;
  if (adapters > max) refuse("a layer's adapters", adapters, { max, remedy: ADAPTERS_REMEDY });
  for (const [i, { bytes }] of matrices.entries()) {
    if (bytes > max) refuse(matrixName(p, i), bytes, { max, remedy: MATRIX_REMEDY });
  }
  const worst = [...activations, ...scratch].reduce((a, b) => b.bytes > a.bytes ? b : a);
  if (paddedBytes(worst.bytes) > max) {
    refuse(activationName(worst), worst.bytes, { max, remedy: rowsRemedy(p, worst, max) });
  }
}

const FLOAT_BYTES = 4;
const ADAPTERS_REMEDY =
  "let peers compute whose adapter binds more, or take a smaller lora_rank or fewer lora_targets";
const MATRIX_REMEDY =
  "let peers compute whose adapter binds more, as graphics processors do, or make n_embd or n_inner smaller";

function refuse(what: string, bytes: number, { max, remedy }: { max: number; remedy: string }): never {
  throw new ShoalError(
    "out-of-memory",
    `${what} needs ${bytes} bytes in one piece, the adapter binds ${max}; ${remedy}`,
  );
}

/** The parameters of a part that could not be cut any further. */
function matrixName({ layout, parts }: StagePlanning, index: number): string {
  const { offset, size } = parts[index]!;
  const inside = layout.tensors.filter((it) => it.offset >= offset && it.offset < offset + size);
  const [first, last] = [inside[0]!.name, inside.at(-1)!.name];
  return first === last ? `the matrix ${first}` : `the matrix of ${first} to ${last}`;
}

/** Without the slot that it belongs to: it would be too large in each. */
function activationName({ name }: TensorSize): string {
  return `the activation tensor "${name.replace(/^(slot \d+|shared)\//, "")}"`;
}

/** Rows are what a micro-batch brings: fewer of its sequences help, unless one alone is too long. */
function rowsRemedy({ R, T }: StagePlanning, { bytes }: TensorSize, max: number): string {
  const sequences = Math.floor(max / (bytes / (R / T)));
  return sequences === 0
    ? "make block_size or the model's widths smaller, or let peers compute whose adapter binds more"
    : `take a batch_size of ${sequences} at most, and as many more gradient_accumulation_steps`;
}
