// The model of peer/model written as plain tfjs: variableGrads, clip by the global norm, Adam with decoupled decay.
// It is what Shoal's engines are measured against, so it is written as tfjs is meant to be written, and tuned no further.
// Legend: R = B T rows, C = n_embd, H / Hk heads of width D, G = H / Hk, V vocabulary.
import * as tf from "@tensorflow/tfjs-core";
import type { Batch } from "../peer/model/data.ts";
import { EMBEDDING_NAME, HEAD_NAME, headDim, stageLayout, wholeModel } from "../peer/model/layout.ts";
import type { ModelSpec, RunConfig } from "../peer/wire/run.ts";

/** What AdamW and the clip take from a configuration. */
export type Optimisation = Pick<
  RunConfig,
  "learning_rate" | "beta1" | "beta2" | "weight_decay" | "grad_clip"
>;

/** As in peer/exact/optimizer.ts. */
const ADAM_EPS = 1e-8;
/** Added to scores that must not count; the softmax of any realistic score makes 0 of it. */
const MASKED = -1e9;

export interface TfjsModel {
  spec: ModelSpec;
  batchSize: number;
  optimisation: Optimisation;
  /** The gradient of gather needs a kernel that the wasm backend lacks: then a product with one-hot rows stands in. */
  oneHotEmbedding: boolean;
}

/** A model on tfjs' current backend; that backend must be current again at every call. */
export class TfjsGpt {
  readonly #model: TfjsModel;
  readonly #variables = new Map<string, tf.Variable>();
  readonly #constants: { cos: tf.Tensor; sin: tf.Tensor; mask: tf.Tensor };
  readonly #adam: tf.AdamOptimizer;

  /** `params`: flat f32, in the order of stageLayout of the whole model. */
  constructor(model: TfjsModel, params: Float32Array) {
    const { spec, optimisation: { learning_rate, beta1, beta2 } } = model;
    this.#model = model;
    for (const { name, shape, offset, size } of stageLayout(spec, wholeModel(spec)).tensors) {
      const values = tf.tensor(params.slice(offset, offset + size), shape);
      this.#variables.set(name, tf.variable(values));
      values.dispose();
    }
    this.#constants = constantsOf(spec);
    this.#adam = tf.train.adam(learning_rate, beta1, beta2, ADAM_EPS);
  }

  /** One step on one micro-batch; resolves, when the parameters are updated, to the mean loss before the update. */
  async step(batch: Batch): Promise<number> {
    const loss = tf.tidy(() => {
      const [tokens, targets] = [ids(batch.tokens), ids(batch.targets)];
      const variables = [...this.#variables.values()];
      const { value, grads } = tf.variableGrads(() => this.#loss(tokens, targets), variables);
      this.#update(clip(grads, this.#model.optimisation.grad_clip));
      return value;
    });
    const [value] = await loss.data();
    loss.dispose();
    return value!;
  }

  dispose(): void {
    for (const variable of this.#variables.values()) variable.dispose();
    for (const constant of Object.values(this.#constants)) constant.dispose();
    this.#adam.dispose();
  }

  /** AdamW: decay of the matrices, apart from the moments (Loshchilov & Hutter 2019). */
  #update(grads: tf.NamedTensorMap): void {
    const { learning_rate, weight_decay } = this.#model.optimisation;
    for (const variable of this.#variables.values()) {
      if (variable.rank === 2) variable.assign(tf.mul(variable, 1 - learning_rate * weight_decay));
    }
    this.#adam.applyGradients(Object.entries(grads).map(([name, tensor]) => ({ name, tensor })));
  }

  #variable(name: string): tf.Tensor2D {
    const variable = this.#variables.get(name);
    if (variable === undefined) throw new Error(`the model has no tensor ${name}`);
    return variable as tf.Tensor as tf.Tensor2D;
  }

  #loss(tokens: tf.Tensor1D, targets: tf.Tensor1D): tf.Scalar {
    const { spec } = this.#model;
    let x = this.#embed(tokens);
    for (let layer = 0; layer < spec.n_layer; layer++) x = this.#block(x, `model.layers.${layer}`);
    const head = this.#variable(spec.tie_word_embeddings ? EMBEDDING_NAME : HEAD_NAME);
    const logits = tf.matMul(this.#norm(x, "model.norm.weight"), head, false, true);
    return tf.losses.softmaxCrossEntropy(tf.oneHot(targets, spec.vocab_size), logits);
  }

  #embed(ids: tf.Tensor1D): tf.Tensor2D {
    const table = this.#variable(EMBEDDING_NAME);
    const { oneHotEmbedding, spec: { vocab_size } } = this.#model;
    if (!oneHotEmbedding) return tf.gather(table, ids);
    const lookUp = tf.customGrad((...inputs) => {
      const gradFunc = (dy: tf.Tensor | tf.Tensor[]) =>
        tf.matMul(tf.cast(tf.oneHot(ids, vocab_size), "float32"), dy as tf.Tensor2D, true);
      return { value: tf.gather(inputs[0] as tf.Tensor, ids), gradFunc };
    });
    return lookUp(table) as tf.Tensor2D;
  }

  #norm(x: tf.Tensor2D, gain: string): tf.Tensor2D {
    const power = tf.mean(tf.square(x), -1, true);
    return tf.mul(tf.mul(x, tf.rsqrt(tf.add(power, this.#model.spec.norm_eps))), this.#variable(gain));
  }

  #linear(x: tf.Tensor2D, name: string): tf.Tensor2D {
    return tf.matMul(x, this.#variable(`${name}.weight`), false, true);
  }

  #block(x: tf.Tensor2D, prefix: string): tf.Tensor2D {
    const attended = this.#attention(
      this.#norm(x, `${prefix}.input_layernorm.weight`),
      `${prefix}.self_attn`,
    );
    const middle: tf.Tensor2D = tf.add(x, attended);
    const normed = this.#norm(middle, `${prefix}.post_attention_layernorm.weight`);
    const gate = this.#linear(normed, `${prefix}.mlp.gate_proj`);
    const up = this.#linear(normed, `${prefix}.mlp.up_proj`);
    const act: tf.Tensor2D = tf.mul(tf.mul(gate, tf.sigmoid(gate)), up);
    return tf.add(middle, this.#linear(act, `${prefix}.mlp.down_proj`));
  }

  /** Query heads that share a key head lie one under the other, so that no key is repeated. */
  #attention(x: tf.Tensor2D, prefix: string): tf.Tensor2D {
    const { spec, batchSize: B } = this.#model;
    const { block_size: T, n_head: H, n_kv_head: Hk } = spec;
    const D = headDim(spec);
    const heads = (name: string, count: number): tf.Tensor4D =>
      tf.reshape(this.#linear(x, `${prefix}.${name}`), [B, T, count, D]);
    const byHead = (packed: tf.Tensor4D, rows: number): tf.Tensor3D =>
      tf.reshape(tf.transpose(packed, [0, 2, 1, 3]), [B * Hk, rows, D]);
    const q = byHead(this.#rotated(heads("q_proj", H)), H / Hk * T);
    const k = byHead(this.#rotated(heads("k_proj", Hk)), T);
    const v = byHead(heads("v_proj", Hk), T);
    const scores = tf.mul(tf.matMul(q, k, false, true), 1 / Math.sqrt(D));
    const weights = tf.softmax(tf.add(scores, this.#constants.mask)) as tf.Tensor3D;
    const out = tf.reshape(tf.matMul(weights, v), [B, H, T, D]);
    const rows = tf.reshape(tf.transpose(out, [0, 2, 1, 3]), [B * T, H * D]) as tf.Tensor2D;
    return this.#linear(rows, `${prefix}.o_proj`);
  }

  /** Pairs element i of a head with i + D/2, as peer/gpu/kernels/rotary.ts does. */
  #rotated(x: tf.Tensor4D): tf.Tensor4D {
    const { cos, sin } = this.#constants;
    const [low, high] = tf.split(x, 2, 3) as [tf.Tensor4D, tf.Tensor4D];
    return tf.concat([
      tf.sub(tf.mul(low, cos), tf.mul(high, sin)),
      tf.add(tf.mul(high, cos), tf.mul(low, sin)),
    ], 3) as tf.Tensor4D;
  }
}

function ids(values: Uint32Array): tf.Tensor1D {
  return tf.tensor1d(Int32Array.from(values), "int32");
}

/** cos and sin [1, T, 1, D/2] of the rotary angles, and what is added to scores [1, G T, T]. */
function constantsOf(spec: ModelSpec): { cos: tf.Tensor; sin: tf.Tensor; mask: tf.Tensor } {
  const { block_size: T, rope_theta } = spec;
  const half = headDim(spec) / 2;
  const angles = Float64Array.from(
    { length: T * half },
    (_, i) => Math.floor(i / half) * rope_theta ** (-(i % half) / half),
  );
  const shape: [number, number, number, number] = [1, T, 1, half];
  const G = spec.n_head / spec.n_kv_head;
  const mask = Float32Array.from({ length: G * T * T }, (_, i) => {
    const [query, key] = [Math.floor(i / T) % T, i % T];
    return key <= query ? 0 : MASKED;
  });
  return {
    cos: tf.tensor4d(Float32Array.from(angles, Math.cos), shape),
    sin: tf.tensor4d(Float32Array.from(angles, Math.sin), shape),
    mask: tf.tensor3d(mask, [1, G * T, T]),
  };
}

/** Scales the gradients down to a global norm of at most `max`; 0 means no clip. */
function clip(grads: tf.NamedTensorMap, max: number): tf.NamedTensorMap {
  if (max === 0) return grads;
  const squares = Object.values(grads).map((grad) => tf.sum(tf.square(grad)));
  const scale = tf.minimum(1, tf.div(max, tf.sqrt(tf.sum(tf.stack(squares)))));
  return Object.fromEntries(Object.entries(grads).map(([name, grad]) => [name, tf.mul(grad, scale)]));
}
