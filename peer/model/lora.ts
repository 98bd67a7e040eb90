// Low-rank adapters beside a frozen base: where each lies, and W + (alpha / rank)·B·A (Hu et al. 2021, section 4.1). Not the
// gradient (peer/engine/lora.ts) and not the base's file (lora_base.ts). The same input gives the same bits everywhere: sums run
// in one order, in double precision, and are rounded once.
import { assert } from "../wire/errors.ts";
import type { StageBuild } from "../engine/engine.ts";
import type { LoraSpec, ModelSpec, StageSpec } from "../wire/run.ts";
import { baseSpec, findTensor, LORA_A, LORA_B, stageLayout } from "./layout.ts";

/** Re-exported for whoever works on adapters and needs nothing else of the layout. */
export { baseParamCount, baseSpec, LORA_A, LORA_B } from "./layout.ts";

/** A matrix with adapters, [rows, cols]; offsets in floats of the stage's adapters and of the base's flat array. */
export interface LoraMatrix {
  /** Of the base's tensor, such as `model.layers.0.self_attn.q_proj.weight`. */
  name: string;
  rows: number;
  cols: number;
  /** A, [rank, cols], and B, [rows, rank], in the layout of the stage with adapters. */
  aOffset: number;
  bOffset: number;
  baseOffset: number;
}

/** @throws an assertion if the model has no adapters */
export function loraOf({ lora }: Pick<ModelSpec, "lora">): LoraSpec {
  assert(lora !== undefined, "a model with adapters");
  return lora;
}

/** The build of the engine that computes with the merged weights, and trains the adapters alone. Any other build is itself. */
export function besideBase(build: StageBuild): StageBuild {
  const { spec: { lora, ...spec }, ...rest } = build;
  // An optimizer on the device would train the matrices themselves.
  return lora === undefined ? build : { ...rest, spec, adapters: lora, optimizer: "exact" };
}

/** How often B·A counts. */
export function loraScale(spec: Pick<ModelSpec, "lora">): number {
  const { rank, alpha } = loraOf(spec);
  return alpha / rank;
}

/** The stage's matrices with adapters, in the layout's order. */
export function loraTargets(spec: ModelSpec, stage: StageSpec): LoraMatrix[] {
  const adapters = stageLayout(spec, stage), base = stageLayout(baseSpec(spec), stage);
  return adapters.tensors.filter(({ name }) => name.endsWith(LORA_A)).map((a) => {
    const module = a.name.slice(0, -LORA_A.length);
    const name = `${module}.weight`;
    const b = findTensor(adapters, module + LORA_B)!, matrix = findTensor(base, name)!;
    const [rows, cols] = matrix.shape as [number, number];
    return { name, rows, cols, aOffset: a.offset, bOffset: b.offset, baseOffset: matrix.offset };
  });
}

export interface MergeOptions {
  /** Flat f32 in the layout of baseSpec(spec). */
  base: Float32Array;
  /** Flat f32 in the layout of spec. */
  adapters: Float32Array;
  /** Where the weights go, of the base's size; may be the base itself. Default: a new array. */
  out?: Float32Array;
}

/** Weights to compute with: the base's, and (alpha / rank)·B·A added to each matrix that has adapters. */
export function mergeLora(spec: ModelSpec, stage: StageSpec, options: MergeOptions): Float32Array {
  const { base, adapters, out = new Float32Array(base.length) } = options;
  assert(adapters.length === stageLayout(spec, stage).size, "adapters of this stage");
  if (out !== base) out.set(base);
  const [{ rank }, scale] = [loraOf(spec), loraScale(spec)];
  for (const matrix of loraTargets(spec, stage)) {
    const { baseOffset, rows, cols } = matrix;
    addProduct(out.subarray(baseOffset, baseOffset + rows * cols), adapters, { ...matrix, rank, scale });
  }
  return out;
}

/** weights [rows, cols] += scale·B·A. Row by row, so that all arrays are read in order. */
export function addProduct(
  weights: Float32Array,
  adapters: Float32Array,
  { rows, cols, aOffset, bOffset, rank, scale }: LoraMatrix & { rank: number; scale: number },
): void {
  const sums = new Float64Array(cols);
  for (let row = 0; row < rows; row++) {
    sums.fill(0);
    for (let r = 0; r < rank; r++) {
      const factor = scale * adapters[bOffset + row * rank + r]!;
      const from = aOffset + r * cols;
      for (let i = 0; i < cols; i++) sums[i] = sums[i]! + factor * adapters[from + i]!;
    }
    const at = row * cols;
    for (let i = 0; i < cols; i++) weights[at + i] = weights[at + i]! + sums[i]!;
  }
}
