// Initial parameters: each tensor a pure function of (seed, tensor name), whatever stage it lands in.
// Not layout (layout.ts). The bits must agree in every engine, so only integer operations, products and sqrt occur.
import type { ModelSpec, StageSpec } from "../wire/run.ts";
import { LORA_A, LORA_B, stageLayout, type TensorLayout } from "./layout.ts";
import { nameWord, nearNormal, randomStream } from "./random.ts";

/** Standard deviation of weights, as in GPT-2. */
const WEIGHT_STD = 0.02;

/** Values of a 32-bit draw. */
const WORDS = 0x1_0000_0000;

/** Separates this use of the seed from data order. */
const INIT_DOMAIN = 0x696e6974;

/**
 * Flat f32 parameters of a stage in layout order, padding 0. Norm gains are 1, biases 0, weights N(0, 0.02²) cut at ±6 sigma; the
 * projections that write to the residual stream (o_proj, down_proj) are divided by sqrt(2·n_layer) (Radford et al. 2019). Of
 * adapters A is uniform within ±1/sqrt(in) and B is 0, so that the first step computes with the base itself (Hu et al. 2021,
 * section 4.1; A as PEFT draws it).
 */
export function initParams(spec: ModelSpec, stage: StageSpec, seed: number): Float32Array {
  const layout = stageLayout(spec, stage);
  const params = new Float32Array(layout.size);
  for (const tensor of layout.tensors) {
    const values = params.subarray(tensor.offset, tensor.offset + tensor.size);
    if (tensor.name.endsWith(LORA_B)) continue;
    if (tensor.name.endsWith(LORA_A)) fillUniform(values, tensor, seed);
    else if (tensor.shape.length === 1) values.fill(tensor.name.endsWith(".bias") ? 0 : 1);
    else fillNormal(values, tensor, { seed, std: stdOf(spec, tensor) });
  }
  return params;
}

function stdOf(spec: ModelSpec, tensor: TensorLayout): number {
  const residual = /\.(o_proj|down_proj)\.weight$/.test(tensor.name);
  return residual ? WEIGHT_STD / Math.sqrt(2 * spec.n_layer) : WEIGHT_STD;
}

/** Kaiming's uniform with a = sqrt(5): PyTorch's default of a linear layer. */
function fillUniform(values: Float32Array, tensor: TensorLayout, seed: number): void {
  const next = randomStream([INIT_DOMAIN, seed, nameWord(tensor.name)]);
  const bound = 1 / Math.sqrt(tensor.shape[1]!);
  for (let i = 0; i < values.length; i++) values[i] = bound * (2 * ((next() + 0.5) / WORDS) - 1);
}

function fillNormal(
  values: Float32Array,
  tensor: TensorLayout,
  options: { seed: number; std: number },
): void {
  const next = randomStream([INIT_DOMAIN, options.seed, nameWord(tensor.name)]);
  for (let i = 0; i < values.length; i++) values[i] = options.std * nearNormal(next);
}
