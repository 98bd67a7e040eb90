// The weights of one block on tfjs: their tensors' names, how they are uploaded and freed. Not the order of a block's operations
// (tfjs_stage.ts). A GPT-2's norms are [2, C], gain and bias, and its matrices have biases [1, out].
import type { MathShape, StageMath } from "./tfjs_math.ts";

type Matrix = "qkv" | "project" | "gateUp" | "down";

export interface BlockWeights<X, W> {
  attentionNorm: X;
  qkv: W;
  project: W;
  mlpNorm: X;
  gateUp: W;
  down: W;
  /** Of a GPT-2. */
  biases?: Record<Matrix, X>;
}

/** Parameters of the tensors from `first` to `last` in layout order. */
export type Values = (first: string, last?: string) => Float32Array;

/** First and last tensor of what is read as one; a bias beside its matrix where there is one. */
export function blockNames(prefix: string, gpt2: boolean) {
  const norm = (name: string) => ({
    first: `${prefix}.${name}.weight`,
    last: `${prefix}.${name}.${gpt2 ? "bias" : "weight"}`,
  });
  const matrix = (name: string, last = name) => ({
    ...{ first: `${prefix}.${name}.weight`, last: `${prefix}.${last}.weight` },
    bias: { first: `${prefix}.${name}.bias`, last: `${prefix}.${last}.bias` },
  });
  return {
    attentionNorm: norm("input_layernorm"),
    qkv: matrix("self_attn.q_proj", "self_attn.v_proj"),
    project: matrix("self_attn.o_proj"),
    mlpNorm: norm("post_attention_layernorm"),
    gateUp: gpt2 ? matrix("mlp.up_proj") : matrix("mlp.gate_proj", "mlp.up_proj"),
    down: matrix("mlp.down_proj"),
  };
}

/** A norm's gain, and a GPT-2's bias below it. */
export function loadNorm<X, W>(
  math: StageMath<X, W>,
  values: Values,
  { names: { first, last }, shape: { C, gpt2 } }: {
    names: { first: string; last: string };
    shape: MathShape;
  },
): X {
  return math.upload(values(first, last), gpt2 ? 2 : 1, C);
}

export function loadBlock<X, W>(
  math: StageMath<X, W>,
  values: Values,
  { prefix, shape }: { prefix: string; shape: MathShape },
): BlockWeights<X, W> {
  const { C, Q, H, D, I, gpt2 } = shape;
  const names = blockNames(prefix, gpt2);
  const sizes: Record<Matrix, [out: number, into: number]> = {
    ...{ qkv: [Q, C], project: [C, H * D], gateUp: [gpt2 ? I : 2 * I, C], down: [C, I] },
  };
  const linear = (name: Matrix) => math.linear(values(names[name].first, names[name].last), ...sizes[name]);
  const bias = (name: Matrix) => {
    const { first, last } = names[name].bias;
    return math.upload(values(first, last), 1, sizes[name][0]);
  };
  const weights = {
    attentionNorm: loadNorm(math, values, { names: names.attentionNorm, shape }),
    ...{ qkv: linear("qkv"), project: linear("project") },
    mlpNorm: loadNorm(math, values, { names: names.mlpNorm, shape }),
    ...{ gateUp: linear("gateUp"), down: linear("down") },
  };
  if (!gpt2) return weights;
  const biases = { qkv: bias("qkv"), project: bias("project"), gateUp: bias("gateUp"), down: bias("down") };
  return { ...weights, biases };
}

export function freeBlock<X, W>(math: StageMath<X, W>, block: BlockWeights<X, W>): void {
  math.free(block.attentionNorm, block.mlpNorm, ...Object.values(block.biases ?? {}) as X[]);
  for (const w of [block.qkv, block.project, block.gateUp, block.down]) math.freeLinear(w);
}
