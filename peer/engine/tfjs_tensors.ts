// A transformer's operations as tfjs tensor operations only, for its WebGPU backend: a second opinion on our own kernels,
// written from the formulas and not from them. Not quick. Every call computes in a scope of its own and leaves one result.
import * as tf from "@tensorflow/tfjs-core";
import type {
  HeadGradOptions,
  HeadKept,
  HeadOptions,
  MathShape,
  RowRange,
  StageMath,
} from "../model/tfjs_math.ts";
import { headTiles } from "../model/tfjs_math.ts";
import { TensorAttention } from "./tfjs_tensors_attention.ts";

type Matrix = tf.Tensor2D;

/** Computes on the backend of that name, whichever is tfjs' own default at the moment. */
export function createTensorMath(backend: string, shape: MathShape): StageMath<Matrix, Matrix> {
  return new TensorMath(backend, shape);
}

class TensorMath implements StageMath<Matrix, Matrix> {
  readonly name: string;
  readonly #shape: MathShape;
  readonly #attention: TensorAttention;

  constructor(backend: string, shape: MathShape) {
    this.name = backend;
    this.#shape = shape;
    this.#attention = this.#run(() => new TensorAttention(shape));
  }

  upload(values: Float32Array, rows: number, cols: number): Matrix {
    // The backend uploads when it computes, by which time the caller may have changed its array.
    return this.#tidy(() => tf.tensor2d(values.slice(), [rows, cols]));
  }

  async read(x: Matrix, into: Float32Array): Promise<void> {
    into.set(await this.#run(() => x.data()) as Float32Array);
  }

  free(...xs: Matrix[]): void {
    for (const x of xs) x.dispose();
  }

  size(x: Matrix): number {
    return x.size;
  }

  linear(values: Float32Array, out: number, into: number): Matrix {
    return this.upload(values, out, into);
  }

  freeLinear(w: Matrix): void {
    w.dispose();
  }

  forward(x: Matrix, w: Matrix): Matrix {
    return this.#tidy(() => tf.matMul(x, w, false, true));
  }

  inputGrad(dy: Matrix, w: Matrix): Matrix {
    return this.#tidy(() => tf.matMul(dy, w));
  }

  weightGrad(dy: Matrix, x: Matrix): Matrix {
    return this.#tidy(() => tf.matMul(dy, x, true));
  }

  add(target: Matrix, x: Matrix): Matrix {
    return this.#consuming([target], () => tf.add(target, x));
  }

  normalize(x: Matrix, gain: Matrix): { y: Matrix; rstd: Matrix } {
    if (this.#shape.gpt2) return this.#layerNorm(x, gain);
    const rstd = this.#tidy(() => {
      const squares = tf.mean(tf.square(x), 1);
      return tf.reshape(tf.rsqrt(tf.add(squares, this.#shape.eps)), [1, this.#shape.R]) as Matrix;
    });
    return { y: this.renormalize(x, gain, rstd), rstd };
  }

  renormalize(x: Matrix, gain: Matrix, rstd: Matrix): Matrix {
    if (!this.#shape.gpt2) return this.#tidy(() => tf.mul(tf.mul(x, column(rstd)), gain));
    return this.#tidy(() => tf.add(tf.mul(centered(x, rstd), rowOf(gain, 0)), rowOf(gain, 1)));
  }

  #layerNorm(x: Matrix, affine: Matrix): { y: Matrix; rstd: Matrix } {
    const rstd = this.#tidy(() => {
      const { mean, variance } = tf.moments(x, 1, true);
      const scale = tf.rsqrt(tf.add(variance, this.#shape.eps));
      return tf.transpose(tf.concat2d([mean as Matrix, scale as Matrix], 1));
    });
    return { y: this.renormalize(x, affine, rstd), rstd };
  }

  /** With h = (x - mean) rstd: dx = rstd (g - mean(g) - h mean(g h)) where g = dy gain. */
  #layerNormGrad(
    dy: Matrix,
    { x, gain, rstd }: { x: Matrix; gain: Matrix; rstd: Matrix },
  ): { dx: Matrix; dGain: Matrix } {
    const dGain = this.#tidy(() => {
      const sums = [tf.mul(dy, centered(x, rstd)), dy].map((part) => tf.sum(part, 0, true) as Matrix);
      return tf.concat2d(sums, 0);
    });
    const dx = this.#consuming([dy], () => {
      const h = centered(x, rstd), g = tf.mul(dy, rowOf(gain, 0));
      const pull = tf.mul(h, tf.mean(tf.mul(g, h), 1, true));
      return tf.mul(tf.sub(tf.sub(g, tf.mean(g, 1, true)), pull), column(rowOf(rstd, 1)));
    });
    return { dx, dGain };
  }

  addRow(target: Matrix, row: Matrix): Matrix {
    return this.#consuming([target], () => tf.add(target, row));
  }

  sumRows(dy: Matrix): Matrix {
    return this.#tidy(() => tf.sum(dy, 0, true));
  }

  addPositions(x: Matrix, positions: Matrix): Matrix {
    const { B } = this.#shape;
    return this.#consuming([x], () => tf.add(x, tf.tile(positions, [B, 1])));
  }

  sumPositions(dx: Matrix): Matrix {
    const { B, T, C } = this.#shape;
    return this.#tidy(() => tf.sum(tf.reshape(dx, [B, T, C]), 0));
  }

  gelu(up: Matrix): Matrix {
    return this.#tidy(() => tf.mul(tf.mul(up, 0.5), tf.add(tf.tanh(geluArgument(up)), 1)));
  }

  geluGrad(up: Matrix, dAct: Matrix): { dGateUp: Matrix; act: Matrix } {
    const act = this.gelu(up);
    const dGateUp = this.#consuming([up, dAct], () => {
      const t = tf.tanh(geluArgument(up));
      const inner = tf.mul(SLOPE, tf.add(1, tf.mul(3 * CUBIC, tf.square(up))));
      const along = tf.mul(tf.mul(tf.mul(up, 0.5), tf.sub(1, tf.square(t))), inner);
      return tf.mul(dAct, tf.add(tf.mul(0.5, tf.add(1, t)), along));
    });
    return { dGateUp, act };
  }

  /** With n = x rstd: dx = rstd (g - n mean(g n)) where g = dy gain. */
  normGrad(
    dy: Matrix,
    { x, gain, rstd }: { x: Matrix; gain: Matrix; rstd: Matrix },
  ): { dx: Matrix; dGain: Matrix } {
    if (this.#shape.gpt2) return this.#layerNormGrad(dy, { x, gain, rstd });
    const dGain = this.#tidy(() => tf.sum(tf.mul(dy, tf.mul(x, column(rstd))), 0, true) as Matrix);
    const dx = this.#consuming([dy], () => {
      const n = tf.mul(x, column(rstd)), g = tf.mul(dy, gain);
      const pull = tf.mean(tf.mul(g, n), 1, true);
      return tf.mul(tf.sub(g, tf.mul(n, pull)), column(rstd));
    });
    return { dx, dGain };
  }

  rotate(qkv: Matrix): Matrix {
    return this.#consuming([qkv], () => this.#attention.rotate(qkv, 1));
  }

  attend(qkv: Matrix): Matrix {
    return this.#tidy(() => this.#attention.attend(qkv));
  }

  attendGrad(qkv: Matrix, _: Matrix, dAttended: Matrix): Matrix {
    return this.#consuming([qkv, dAttended], () => {
      const gradient = this.#attention.attendGrad(qkv, dAttended);
      return this.#shape.gpt2 ? gradient : this.#attention.rotate(gradient, -1);
    });
  }

  swiglu(gateUp: Matrix): Matrix {
    return this.#tidy(() => {
      const { gate, up } = this.#halves(gateUp);
      return tf.mul(tf.mul(gate, tf.sigmoid(gate)), up);
    });
  }

  swigluGrad(gateUp: Matrix, dAct: Matrix): { dGateUp: Matrix; act: Matrix } {
    const act = this.swiglu(gateUp);
    const dGateUp = this.#consuming([gateUp, dAct], () => {
      const { gate, up } = this.#halves(gateUp);
      const s = tf.sigmoid(gate), silu = tf.mul(gate, s);
      // silu' = s + silu (1 - s)
      const slope = tf.add(s, tf.mul(silu, tf.sub(1, s)));
      return tf.concat2d([tf.mul(tf.mul(dAct, up), slope), tf.mul(dAct, silu)], 1);
    });
    return { dGateUp, act };
  }

  embed(table: Matrix, tokens: Uint32Array): Matrix {
    return this.#tidy(() => tf.gather(table, indices(tokens)));
  }

  headLoss(
    x: Matrix,
    table: Matrix,
    { targets }: HeadOptions,
  ): { loss: Matrix; kept: HeadKept<Matrix> } {
    const lse = this.#tidy(() => this.#logSumExp(x, table));
    const loss = this.#tidy(() => {
      const wanted = tf.sum(tf.mul(x, tf.gather(table, indices(targets))), 1);
      return tf.reshape(tf.mean(tf.sub(tf.reshape(lse, [-1]), wanted)), [1, 1]) as Matrix;
    });
    return { loss, kept: { lse } };
  }

  headInputGrad(x: Matrix, table: Matrix, options: HeadGradOptions<Matrix>): Matrix {
    return this.#tidy(() => {
      const parts = headTiles(this.#shape).map((rows) =>
        tf.matMul(this.#logitGrad(x, table, { ...options, rows }), tileRows(table, rows))
      );
      return parts.reduce((sum, part) => tf.add(sum, part));
    });
  }

  headWeightGrad(
    x: Matrix,
    table: Matrix,
    options: HeadGradOptions<Matrix> & { rows: RowRange },
  ): Matrix {
    return this.#tidy(() => tf.matMul(this.#logitGrad(x, table, options), x, true));
  }

  destroy(): void {
    this.#attention.destroy();
  }

  /** [1, R], over all tiles of the vocabulary. */
  #logSumExp(x: Matrix, table: Matrix): Matrix {
    const parts = headTiles(this.#shape).map((rows) => {
      const logits = tf.matMul(x, tileRows(table, rows), false, true);
      return tf.logSumExp(logits, 1, true) as Matrix;
    });
    return tf.reshape(tf.logSumExp(tf.concat2d(parts, 1), 1), [1, this.#shape.R]) as Matrix;
  }

  #logitGrad(
    x: Matrix,
    table: Matrix,
    { targets, kept, rows }: HeadGradOptions<Matrix> & { rows: RowRange },
  ): Matrix {
    const { R } = this.#shape;
    const logits = tf.matMul(x, tileRows(table, rows), false, true);
    const p = tf.div(tf.exp(tf.sub(logits, column(kept.lse))), R) as Matrix;
    const hits: [number, number][] = [];
    targets.forEach((target, r) => {
      if (target >= rows.from && target < rows.from + rows.count) hits.push([r, target - rows.from]);
    });
    if (hits.length === 0) return p;
    const ones = tf.fill([hits.length], 1 / R);
    return tf.sub(p, tf.scatterND(tf.tensor2d(hits, undefined, "int32"), ones, [R, rows.count]));
  }

  #halves(gateUp: Matrix): { gate: Matrix; up: Matrix } {
    const { R, I } = this.#shape;
    return { gate: tf.slice2d(gateUp, [0, 0], [R, I]), up: tf.slice2d(gateUp, [0, I], [R, I]) };
  }

  #consuming(inputs: Matrix[], work: () => tf.Tensor): Matrix {
    const result = this.#tidy(work);
    this.free(...inputs);
    return result;
  }

  #tidy(work: () => tf.Tensor): Matrix {
    return this.#run(() => tf.tidy(work) as Matrix);
  }

  /** An operation runs on tfjs' present backend, and another stage of this process may have chosen another. */
  #run<T>(work: () => T): T {
    if (tf.getBackend() !== this.name) void tf.setBackend(this.name);
    return work();
  }
}

/** sqrt(2 / pi), and the weight of GELU's cubic term. */
const SLOPE = Math.sqrt(2 / Math.PI);
const CUBIC = 0.044715;

function geluArgument(z: Matrix): tf.Tensor {
  return tf.mul(SLOPE, tf.add(z, tf.mul(CUBIC, tf.mul(tf.square(z), z))));
}

/** Row `index` of a matrix of two, [1, n]. */
function rowOf(pair: Matrix, index: number): Matrix {
  return tf.slice2d(pair, [index, 0], [1, pair.shape[1]]);
}

/** (x - mean) rstd of each row; stats are [2, R]. */
function centered(x: Matrix, stats: Matrix): Matrix {
  return tf.mul(tf.sub(x, column(rowOf(stats, 0))), column(rowOf(stats, 1)));
}

/** [1, R] as a column, to scale rows with. */
function column(row: Matrix): Matrix {
  return tf.reshape(row, [-1, 1]);
}

function tileRows(table: Matrix, { from, count }: RowRange): Matrix {
  return tf.slice2d(table, [from, 0], [count, table.shape[1]]);
}

function indices(ids: Uint32Array): tf.Tensor1D {
  return tf.tensor1d(Int32Array.from(ids), "int32");
}
