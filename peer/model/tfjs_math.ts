// What a stage on tfjs computes with: matrices of one backend, and the operations of a transformer between them.
// Not the order of a stage (tfjs_stage.ts). Implementations: peer/engine/tfjs_wasm.ts (loops on the WASM heap) and
// tfjs_tensors.ts (tensor operations only), and tfjs_memory.ts (counts bytes). "Consumes" means: the argument may not be used again.
import { headDim, isGpt2 } from "./layout.ts";
import type { StageBuild } from "../engine/engine.ts";

/** R = B T rows, C = n_embd, H / Hk query and key heads of width D, Q = (H + 2 Hk) D, I = n_inner, V = vocabulary. */
export interface MathShape {
  /** LayerNorm, GELU, biases and learned positions; else Llama's block. */
  gpt2: boolean;
  B: number;
  T: number;
  R: number;
  C: number;
  H: number;
  Hk: number;
  D: number;
  Q: number;
  I: number;
  V: number;
  theta: number;
  eps: number;
  /** Words of the vocabulary whose logits exist at a time. */
  headTile: number;
}

/** Most values of one tile of logits, so that the head's memory does not grow with the vocabulary: 16 MiB. */
const LOGITS_MAX = 4 << 20;
/** A narrower tile costs more in copying weights than in multiplying. */
const HEAD_TILE_MIN = 256;

/** Queries of one block: few calls for short sequences, and 2 MiB of scores per query head at T = 4096. */
export const QUERY_BLOCK = 128;

const F32_BYTES = 4;
/** XNNPACK's tile: columns of a packed operand are padded to a multiple of it, and a row of biases is added. */
const PACK_COLUMNS = 8;

/** Bytes that XNNPACK keeps beside a right-hand operand [rows, cols] until it is freed. */
export function packedBytes(rows: number, cols: number): number {
  return (rows + 1) * Math.ceil(cols / PACK_COLUMNS) * PACK_COLUMNS * F32_BYTES;
}

export function mathShape({ spec, batchSize: B }: StageBuild): MathShape {
  const { block_size: T, n_embd: C, n_head: H, n_kv_head: Hk, n_inner: I, vocab_size: V } = spec;
  const D = headDim(spec);
  return {
    gpt2: isGpt2(spec),
    ...{ B, T, R: B * T, C, H, Hk, D, Q: (H + 2 * Hk) * D, I, V },
    ...{ theta: spec.rope_theta, eps: spec.norm_eps, headTile: headTile(B * T) },
  };
}

export interface RowRange {
  from: number;
  count: number;
}

function headTile(rows: number): number {
  return Math.max(HEAD_TILE_MIN, Math.floor(LOGITS_MAX / rows / 8) * 8);
}

/** How the vocabulary is cut; one tile means that the gradient of the logits is kept from F to W. */
export function headTiles({ V, headTile }: MathShape): RowRange[] {
  return Array.from({ length: Math.ceil(V / headTile) }, (_, i) => {
    return { from: i * headTile, count: Math.min(headTile, V - i * headTile) };
  });
}

/** What the head's forward leaves for B and W. */
export interface HeadKept<X> {
  /** Natural log of the sum of exponentials of each row's logits, [1, R]. */
  lse: X;
  /** Gradient of the logits of the mean loss, [R, V]; only where the vocabulary is one tile. */
  dLogits?: X;
}

/** Weights are [out, in] as in peer/model/layout.ts; `W` is whatever an implementation keeps of one. */
export interface StageMath<X, W> {
  /** What a person reads, such as "wasm". */
  readonly name: string;
  upload(values: Float32Array, rows: number, cols: number): X;
  /** Copies the values of `x` into `into`, which has the same number. */
  read(x: X, into: Float32Array): Promise<void>;
  free(...xs: X[]): void;
  /** Number of values. */
  size(x: X): number;

  linear(values: Float32Array, out: number, into: number): W;
  freeLinear(w: W): void;
  /** x [R, in] -> x w^T [R, out]. */
  forward(x: X, w: W): X;
  /** dy [R, out] -> dy w [R, in]. */
  inputGrad(dy: X, w: W): X;
  /** dy [R, M], x [R, N] -> dy^T x [M, N]. */
  weightGrad(dy: X, x: X): X;
  /** Consumes `target`; gives target + x. */
  add(target: X, x: X): X;

  /**
   * x [R, C], gain [1, C] -> y = x rstd gain and rstd [1, R]. Of a GPT-2 LayerNorm: gain is [2, C], gain and bias, and rstd
   * [2, R], mean and 1/deviation.
   */
  normalize(x: X, gain: X): { y: X; rstd: X };
  /** y of `normalize` again, with the rstd that it gave. */
  renormalize(x: X, gain: X, rstd: X): X;
  /** Gradients of x and of the gain, in its shape; consumes dy. */
  normGrad(dy: X, forward: { x: X; gain: X; rstd: X }): { dx: X; dGain: X };

  /** Of a GPT-2: target [R, N] plus a row [1, N], and the row's gradient from that of the sum. Consumes `target`. */
  addRow(target: X, row: X): X;
  sumRows(dy: X): X;
  /** Of a GPT-2: x [R, C] plus the positions [T, C] of each sequence, and their gradient. Consumes `x`. */
  addPositions(x: X, positions: X): X;
  sumPositions(dx: X): X;

  /** Rotary embedding of the query and key heads of [R, Q]; consumes qkv. */
  rotate(qkv: X): X;
  /** Causal grouped-query attention over rotated heads: [R, Q] -> [R, H D]. */
  attend(qkv: X): X;
  /** Gradient of the heads before rotation, if the model rotates, [R, Q]; consumes qkv and dAttended. */
  attendGrad(qkv: X, attended: X, dAttended: X): X;

  /** silu(gate) up of [R, 2 I] (gate first) -> [R, I]. */
  swiglu(gateUp: X): X;
  /** Consumes both; gives the gradient [R, 2 I], and the forward's result again, which W needs. */
  swigluGrad(gateUp: X, dAct: X): { dGateUp: X; act: X };

  /** Of a GPT-2: gelu(up) of [R, I]. */
  gelu(up: X): X;
  /** Consumes both; gives the gradient, and the forward's result again, which W needs. */
  geluGrad(up: X, dAct: X): { dGateUp: X; act: X };

  /** Rows of the table [V, C]; tokens are below V. */
  embed(table: X, tokens: Uint32Array): X;
  /** Mean cross-entropy [1, 1] of x [R, C] against the table; `keep`: with the gradient of the logits if one tile. */
  headLoss(x: X, table: X, options: HeadOptions): { loss: X; kept: HeadKept<X> };
  /** Gradient of x [R, C]. */
  headInputGrad(x: X, table: X, options: HeadGradOptions<X>): X;
  /** Gradient of the table's rows `rows`, [count, C]. */
  headWeightGrad(x: X, table: X, options: HeadGradOptions<X> & { rows: RowRange }): X;
  destroy(): void;
}

export interface HeadOptions {
  targets: Uint32Array;
  keep: boolean;
}

export interface HeadGradOptions<X> {
  targets: Uint32Array;
  kept: HeadKept<X>;
}
