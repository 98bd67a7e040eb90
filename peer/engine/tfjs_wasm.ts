// A transformer's operations on tfjs' WASM heap: products, softmax and sigmoid by its kernels, everything else by loops
// over the heap, which beat its other kernels and allocate nothing. Single threaded; a result depends on its inputs alone.
import type { BackendWasm } from "@tensorflow/tfjs-backend-wasm";
import { rotaryTable } from "../gpu/kernels/rotary.ts";
import { addTo, type HeapMatrix, WasmHeap } from "./tfjs_heap.ts";
import type {
  HeadGradOptions,
  HeadKept,
  HeadOptions,
  MathShape,
  RowRange,
  StageMath,
} from "../model/tfjs_math.ts";
import {
  addOver,
  gelu,
  geluGradInPlace,
  layernormGradInPlace,
  normaliseRows,
  rowStats,
  sumOver,
} from "./tfjs_wasm_gpt2.ts";
import { attend, attendGrad } from "./tfjs_wasm_attention.ts";
import { headInputGrad, headLoss, logitGrad } from "./tfjs_wasm_head.ts";

/** A projection both ways round, because only plain products are quick. */
export interface WasmLinear {
  /** [out, in]. */
  plain: HeapMatrix;
  /** [in, out]. */
  transposed: HeapMatrix;
}

export class WasmMath implements StageMath<HeapMatrix, WasmLinear> {
  readonly name = "wasm";
  readonly heap: WasmHeap;
  readonly #shape: MathShape;
  /** [T, D/2, 2]. */
  readonly #angles: Float32Array;

  /** @param bytes what the stage may take of the heap */
  constructor(backend: BackendWasm, shape: MathShape, bytes: number) {
    this.heap = new WasmHeap(backend, bytes);
    this.#shape = shape;
    this.#angles = rotaryTable(shape.T, shape.D, shape.theta);
  }

  upload(values: Float32Array, rows: number, cols: number): HeapMatrix {
    return this.heap.from(values, rows, cols);
  }

  read(x: HeapMatrix, into: Float32Array): Promise<void> {
    into.set(this.heap.view(x));
    return Promise.resolve();
  }

  free(...xs: HeapMatrix[]): void {
    this.heap.free(...xs);
  }

  size({ rows, cols }: HeapMatrix): number {
    return rows * cols;
  }

  linear(values: Float32Array, out: number, into: number): WasmLinear {
    const plain = this.heap.from(values, out, into);
    return { plain, transposed: this.heap.transpose(plain) };
  }

  freeLinear({ plain, transposed }: WasmLinear): void {
    this.heap.free(plain, transposed);
  }

  forward(x: HeapMatrix, w: WasmLinear): HeapMatrix {
    return this.heap.matmul(x, w.transposed);
  }

  inputGrad(dy: HeapMatrix, w: WasmLinear): HeapMatrix {
    return this.heap.matmul(dy, w.plain);
  }

  weightGrad(dy: HeapMatrix, x: HeapMatrix): HeapMatrix {
    const turned = this.heap.transpose(dy);
    const out = this.heap.matmul(turned, x);
    this.heap.free(turned);
    return out;
  }

  add(target: HeapMatrix, x: HeapMatrix): HeapMatrix {
    addTo(this.heap.view(target), this.heap.view(x));
    return target;
  }

  normalize(x: HeapMatrix, gain: HeapMatrix): { y: HeapMatrix; rstd: HeapMatrix } {
    const { gpt2, eps } = this.#shape;
    const rstd = this.heap.empty(gpt2 ? 2 : 1, x.rows);
    if (gpt2) rowStats(this.heap.view(rstd), this.heap.view(x), eps);
    else rootMeanSquares(this.heap.view(rstd), this.heap.view(x), { C: x.cols, eps });
    return { y: this.renormalize(x, gain, rstd), rstd };
  }

  renormalize(x: HeapMatrix, gain: HeapMatrix, rstd: HeapMatrix): HeapMatrix {
    const y = this.heap.empty(x.rows, x.cols);
    const { heap } = this;
    const [to, from, affine, stats] = [heap.view(y), heap.view(x), heap.view(gain), heap.view(rstd)];
    if (this.#shape.gpt2) normaliseRows(to, from, { affine, stats });
    else scaleRows(to, from, { gain: affine, rstd: stats });
    return y;
  }

  normGrad(
    dy: HeapMatrix,
    { x, gain, rstd }: { x: HeapMatrix; gain: HeapMatrix; rstd: HeapMatrix },
  ): { dx: HeapMatrix; dGain: HeapMatrix } {
    const dGain = this.heap.empty(gain.rows, dy.cols);
    const { heap } = this;
    const [affine, stats] = [heap.view(gain), heap.view(rstd)];
    if (this.#shape.gpt2) {
      layernormGradInPlace(heap.view(dy), heap.view(dGain), { x: heap.view(x), affine, stats });
    } else normGradInPlace(heap.view(dy), heap.view(dGain), { x: heap.view(x), gain: affine, rstd: stats });
    return { dx: dy, dGain };
  }

  addRow(target: HeapMatrix, row: HeapMatrix): HeapMatrix {
    addOver(this.heap.view(target), this.heap.view(row));
    return target;
  }

  sumRows(dy: HeapMatrix): HeapMatrix {
    const out = this.heap.empty(1, dy.cols);
    sumOver(this.heap.view(out), this.heap.view(dy));
    return out;
  }

  addPositions(x: HeapMatrix, positions: HeapMatrix): HeapMatrix {
    return this.addRow(x, positions);
  }

  sumPositions(dx: HeapMatrix): HeapMatrix {
    const out = this.heap.empty(this.#shape.T, dx.cols);
    sumOver(this.heap.view(out), this.heap.view(dx));
    return out;
  }

  gelu(up: HeapMatrix): HeapMatrix {
    const act = this.heap.empty(up.rows, up.cols);
    gelu(this.heap.view(act), this.heap.view(up));
    return act;
  }

  geluGrad(up: HeapMatrix, dAct: HeapMatrix): { dGateUp: HeapMatrix; act: HeapMatrix } {
    geluGradInPlace(this.heap.view(up), this.heap.view(dAct));
    return { dGateUp: up, act: dAct };
  }

  rotate(qkv: HeapMatrix): HeapMatrix {
    rotateHeads(this.heap.view(qkv), this.#angles, { ...this.#shape, direction: 1 });
    return qkv;
  }

  attend(qkv: HeapMatrix): HeapMatrix {
    return attend(this.heap, this.#shape, qkv);
  }

  attendGrad(qkv: HeapMatrix, attended: HeapMatrix, dAttended: HeapMatrix): HeapMatrix {
    attendGrad(this.heap, this.#shape, { qkv, attended, dAttended });
    this.heap.free(dAttended);
    if (!this.#shape.gpt2) rotateHeads(this.heap.view(qkv), this.#angles, { ...this.#shape, direction: -1 });
    return qkv;
  }

  swiglu(gateUp: HeapMatrix): HeapMatrix {
    const sigmoid = this.heap.sigmoid(gateUp);
    const act = this.heap.empty(gateUp.rows, gateUp.cols / 2);
    gate(this.heap.view(act), this.heap.view(gateUp), this.heap.view(sigmoid), act.cols);
    this.heap.free(sigmoid);
    return act;
  }

  swigluGrad(gateUp: HeapMatrix, dAct: HeapMatrix): { dGateUp: HeapMatrix; act: HeapMatrix } {
    const sigmoid = this.heap.sigmoid(gateUp);
    gateGradInPlace(this.heap.view(gateUp), this.heap.view(dAct), this.heap.view(sigmoid), dAct.cols);
    this.heap.free(sigmoid);
    return { dGateUp: gateUp, act: dAct };
  }

  embed(table: HeapMatrix, tokens: Uint32Array): HeapMatrix {
    const C = table.cols;
    const out = this.heap.empty(tokens.length, C);
    const to = this.heap.view(out), from = this.heap.view(table);
    for (let r = 0; r < tokens.length; r++) {
      to.set(from.subarray(tokens[r]! * C, (tokens[r]! + 1) * C), r * C);
    }
    return out;
  }

  headLoss(
    x: HeapMatrix,
    table: HeapMatrix,
    options: HeadOptions,
  ): { loss: HeapMatrix; kept: HeadKept<HeapMatrix> } {
    return headLoss(this.heap, this.#shape, { ...options, x, table });
  }

  headInputGrad(x: HeapMatrix, table: HeapMatrix, options: HeadGradOptions<HeapMatrix>): HeapMatrix {
    return headInputGrad(this.heap, this.#shape, { ...options, x, table });
  }

  headWeightGrad(
    x: HeapMatrix,
    table: HeapMatrix,
    { rows, ...options }: HeadGradOptions<HeapMatrix> & { rows: RowRange },
  ): HeapMatrix {
    const dLogits = options.kept.dLogits ?? logitGrad(this.heap, { ...options, x, table, rows });
    const out = this.weightGrad(dLogits, x);
    if (!options.kept.dLogits) this.heap.free(dLogits);
    return out;
  }

  destroy(): void {
    this.heap.destroy();
  }
}

/** rstd[r] = 1 / sqrt(mean_c x[r,c]^2 + eps). */
function rootMeanSquares(rstd: Float32Array, x: Float32Array, { C, eps }: { C: number; eps: number }): void {
  for (let r = 0; r < rstd.length; r++) {
    let squares = 0;
    for (let i = r * C; i < (r + 1) * C; i++) squares += x[i]! * x[i]!;
    rstd[r] = 1 / Math.sqrt(squares / C + eps);
  }
}

interface NormViews {
  gain: Float32Array;
  rstd: Float32Array;
}

function scaleRows(y: Float32Array, x: Float32Array, { gain, rstd }: NormViews): void {
  const C = gain.length;
  for (let r = 0; r < rstd.length; r++) {
    const scale = rstd[r]!, at = r * C;
    for (let c = 0; c < C; c++) y[at + c] = x[at + c]! * scale * gain[c]!;
  }
}

/** Formulas in shaders/reference/rmsnorm.ts; dy becomes dx, dGain is written. */
function normGradInPlace(
  dy: Float32Array,
  dGain: Float32Array,
  { x, gain, rstd }: NormViews & { x: Float32Array },
): void {
  const C = gain.length;
  const sums = new Float64Array(C);
  for (let r = 0; r < rstd.length; r++) {
    const scale = rstd[r]!, at = r * C;
    let along = 0;
    for (let c = 0; c < C; c++) {
      const product = dy[at + c]! * x[at + c]!;
      along += gain[c]! * product;
      sums[c]! += product * scale;
    }
    const pull = along * scale * scale / C;
    for (let c = 0; c < C; c++) dy[at + c] = scale * (gain[c]! * dy[at + c]! - x[at + c]! * pull);
  }
  dGain.set(sums);
}

type Rotation = Pick<MathShape, "R" | "T" | "H" | "Hk" | "D" | "Q"> & { direction: 1 | -1 };

/** Pairs i with i + D/2 of each query and key head, as shaders/reference/rotary.ts. */
function rotateHeads(
  qkv: Float32Array,
  angles: Float32Array,
  { R, T, H, Hk, D, Q, direction }: Rotation,
): void {
  const half = D / 2;
  for (let r = 0; r < R; r++) {
    const row = (r % T) * D;
    for (let head = 0; head < H + Hk; head++) {
      const at = r * Q + head * D;
      for (let i = 0; i < half; i++) {
        const cos = angles[row + 2 * i]!, sin = direction * angles[row + 2 * i + 1]!;
        const low = qkv[at + i]!, high = qkv[at + half + i]!;
        qkv[at + i] = low * cos - high * sin;
        qkv[at + half + i] = high * cos + low * sin;
      }
    }
  }
}

function gate(act: Float32Array, gateUp: Float32Array, ...[sigmoid, I]: [Float32Array, number]): void {
  for (let at = 0, out = 0; at < gateUp.length; at += 2 * I, out += I) {
    for (let i = 0; i < I; i++) act[out + i] = gateUp[at + i]! * sigmoid[at + i]! * gateUp[at + I + i]!;
  }
}

/** gateUp becomes its gradient and dAct becomes the forward's act; silu'(z) = s (1 + z (1 - s)). */
function gateGradInPlace(
  gateUp: Float32Array,
  dAct: Float32Array,
  ...[sigmoid, I]: [Float32Array, number]
): void {
  for (let at = 0, out = 0; at < gateUp.length; at += 2 * I, out += I) {
    for (let i = 0; i < I; i++) {
      const s = sigmoid[at + i]!, z = gateUp[at + i]!, up = gateUp[at + I + i]!, grad = dAct[out + i]!;
      dAct[out + i] = z * s * up;
      gateUp[at + i] = grad * up * s * (1 + z * (1 - s));
      gateUp[at + I + i] = grad * z * s;
    }
  }
}
