// Causal grouped-query attention and the rotary embedding as tfjs tensor operations, whole sequences at a time: the second
// opinion to tfjs_wasm_attention.ts. Memory grows with T squared. Callers provide the scope that frees what is made here.
import * as tf from "@tensorflow/tfjs-core";
import type { MathShape } from "../model/tfjs_math.ts";

type Matrix = tf.Tensor2D;

/** Larger than any score: exp of it is 0 in f32, and it is no infinity, which shaders may take to be absent. */
const MASKED = -1e30;

export class TensorAttention {
  readonly #shape: MathShape;
  /** [1, T, 1, D] each: cos, and sin with the sign of rotate_half. */
  readonly #cos: tf.Tensor4D;
  readonly #sin: tf.Tensor4D;
  /** [1, T, T]: 0 where a key may be seen. */
  readonly #mask: tf.Tensor3D;

  constructor(shape: MathShape) {
    this.#shape = shape;
    const { T, D, theta } = shape;
    const cos = new Float32Array(T * D), sin = new Float32Array(T * D), mask = new Float32Array(T * T);
    for (let t = 0; t < T; t++) {
      for (let d = 0; d < D; d++) {
        const angle = t * theta ** (-2 * (d % (D / 2)) / D);
        cos[t * D + d] = Math.cos(angle);
        sin[t * D + d] = d < D / 2 ? -Math.sin(angle) : Math.sin(angle);
      }
      mask.fill(MASKED, t * T + t + 1, (t + 1) * T);
    }
    this.#cos = tf.tensor4d(cos, [1, T, 1, D]);
    this.#sin = tf.tensor4d(sin, [1, T, 1, D]);
    this.#mask = tf.tensor3d(mask, [1, T, T]);
  }

  destroy(): void {
    tf.dispose([this.#cos, this.#sin, this.#mask]);
  }

  /** qkv [R, Q] with its query and key heads rotated, or rotated back. */
  rotate(qkv: Matrix, direction: 1 | -1): Matrix {
    const { B, T, R, H, Hk, D, Q } = this.#shape;
    const turned = (H + Hk) * D;
    const heads = tf.reshape(tf.slice2d(qkv, [0, 0], [R, turned]), [B, T, H + Hk, D]);
    const [low, high] = tf.split(heads, 2, 3);
    const swapped = tf.concat([high!, low!], 3);
    const rotated = tf.add(tf.mul(heads, this.#cos), tf.mul(tf.mul(swapped, this.#sin), direction));
    return tf.concat2d([tf.reshape(rotated, [R, turned]), tf.slice2d(qkv, [0, turned], [R, Q - turned])], 1);
  }

  attend(qkv: Matrix): Matrix {
    const { H, D, R } = this.#shape;
    const { q, k, v } = this.#heads(qkv);
    const out = tf.matMul(this.#weights(q, k), v) as tf.Tensor3D;
    return tf.reshape(this.#rows(out, H), [R, H * D]);
  }

  /** Gradient of the rotated heads, [R, Q]; softmax' = P (dP - sum(P dP)). */
  attendGrad(qkv: Matrix, dAttended: Matrix): Matrix {
    const { H, D, R, Q } = this.#shape;
    const { q, k, v } = this.#heads(qkv);
    const dOut = this.#split(dAttended, 0, H);
    const weights = this.#weights(q, k);
    const dWeights = tf.matMul(dOut, v, false, true);
    const along = tf.sum(tf.mul(weights, dWeights), 2, true);
    const dScores = tf.div(tf.mul(weights, tf.sub(dWeights, along)), Math.sqrt(D)) as tf.Tensor3D;
    const dQ = this.#rows(tf.matMul(dScores, k), H);
    const dK = this.#shared(tf.matMul(dScores, q, true)), dV = this.#shared(tf.matMul(weights, dOut, true));
    return tf.reshape(tf.concat([dQ, dK, dV], 2), [R, Q]);
  }

  /** [B H, T, T]. */
  #weights(q: tf.Tensor3D, k: tf.Tensor3D): tf.Tensor3D {
    const scores = tf.div(tf.matMul(q, k, false, true), Math.sqrt(this.#shape.D));
    return tf.softmax(tf.add(scores, this.#mask)) as tf.Tensor3D;
  }

  /** [B H, T, D] each: every query head with the key and value head that it reads. */
  #heads(qkv: Matrix): { q: tf.Tensor3D; k: tf.Tensor3D; v: tf.Tensor3D } {
    const { H, Hk } = this.#shape;
    return {
      q: this.#split(qkv, 0, H),
      k: this.#repeated(this.#split(qkv, H, Hk)),
      v: this.#repeated(this.#split(qkv, H + Hk, Hk)),
    };
  }

  /** `count` heads from `first` of rows [R, ..] as [B count, T, D]. */
  #split(rows: Matrix, first: number, count: number): tf.Tensor3D {
    const { B, T, R, D } = this.#shape;
    const heads = tf.reshape(tf.slice2d(rows, [0, first * D], [R, count * D]), [B, T, count, D]);
    return tf.reshape(tf.transpose(heads, [0, 2, 1, 3]), [B * count, T, D]);
  }

  /** [B Hk, T, D] -> [B H, T, D]. */
  #repeated(heads: tf.Tensor3D): tf.Tensor3D {
    const { B, T, H, Hk, D } = this.#shape;
    const group = H / Hk;
    return tf.reshape(tf.tile(tf.reshape(heads, [B * Hk, 1, T, D]), [1, group, 1, 1]), [B * H, T, D]);
  }

  /** Its transpose: query heads that share a key head add up; [B H, T, D] -> [B, T, Hk D]. */
  #shared(heads: tf.Tensor): tf.Tensor3D {
    const { B, T, H, Hk, D } = this.#shape;
    const summed = tf.sum(tf.reshape(heads, [B * Hk, H / Hk, T, D]), 1) as tf.Tensor3D;
    return this.#rows(summed, Hk);
  }

  /** [B count, T, D] -> [B, T, count D]. */
  #rows(heads: tf.Tensor3D, count: number): tf.Tensor3D {
    const { B, T, D } = this.#shape;
    return tf.reshape(tf.transpose(tf.reshape(heads, [B, count, T, D]), [0, 2, 1, 3]), [B, T, count * D]);
  }
}
