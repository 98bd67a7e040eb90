// What a stage on tfjs' WASM backend takes, predicted from the shapes: the stage's own order of operations, run over
// matrices that are only sizes. Pure and quick, so a planner may ask often. tfjs_test.ts demands the same numbers of the heap.
import { stageLayout } from "./layout.ts";
import type { StageBuild, StageMemory } from "../engine/engine.ts";
import { adapterStack } from "./lora_groups.ts";
import {
  type HeadGradOptions,
  type HeadKept,
  type HeadOptions,
  headTiles,
  type MathShape,
  mathShape,
  packedBytes,
  QUERY_BLOCK,
  type RowRange,
  type StageMath,
} from "./tfjs_math.ts";
import { type StageSlot, type Steps, TfjsStage } from "./tfjs_stage.ts";

const F32_BYTES = 4;

/** A matrix without values. */
interface Sized {
  rows: number;
  cols: number;
  /** Bytes of XNNPACK's copy, once it was a right-hand operand. */
  packed: number;
}

interface SizedLinear {
  plain: Sized;
  transposed: Sized;
}

/** Bytes of matrices (which the heap counts) and of XNNPACK's copies beside them (which it does not). */
export interface TfjsFootprint {
  params: number;
  /** Of one slot, when it is fullest: between B and W, or between F and B if B computes again what F does not keep. */
  slot: number;
  /** The most at any time with one slot; each further slot adds `slot`. */
  most: number;
  packedParams: number;
  /** The most of matrices and copies together, with one slot. */
  mostPacked: number;
}

/** Bytes on the heap, XNNPACK's copies and the gradient that W hands out included. */
export function tfjsMemory(build: StageBuild): StageMemory {
  const { params, slot, packedParams, mostPacked } = tfjsFootprint(build);
  const { R, C } = mathShape(build);
  // Beside the heap: the gradient, and one boundary tensor on its way in or out.
  const stack = adapterStack(build);
  const gradient = stack ? stack.floats + stack.adapterFloats : stageLayout(build.spec, build.stage).size;
  const arrays = (gradient + R * C) * F32_BYTES;
  return {
    params: params + packedParams,
    activations: build.slots * slot,
    scratch: mostPacked - params - packedParams - slot + arrays,
  };
}

export function totalBytes({ params, activations, scratch }: StageMemory): number {
  return params + activations + scratch;
}

export function tfjsFootprint(build: StageBuild, shape = mathShape(build)): TfjsFootprint {
  const ledger = new Ledger(shape);
  const stage = new TfjsStage(build, ledger, shape);
  stage.load(() => new Float32Array(0));
  stage.adapters?.load(new Float32Array(0));
  const params = ledger.bytes;
  const held = replayForward(build, { stage, ledger, keep: true });
  const forward = ledger.bytes;
  replayForward(build, { stage, ledger, keep: false });
  const dOut = build.stage.head ? null : ledger.make(shape.R, shape.C);
  const dX = replay(stage.backward(held, dOut));
  if (dX) ledger.free(dX);
  const [slot, packedParams] = [Math.max(forward, ledger.bytes) - params, ledger.packed];
  replayForward(build, { stage, ledger, keep: false });
  replay(stage.weightGrads(held));
  stage.free(held);
  return { params, slot, most: ledger.most, packedParams, mostPacked: ledger.mostPacked };
}

/** As TfjsEngine.forward; what it held is empty unless it is kept. */
function replayForward(
  build: StageBuild,
  { stage, ledger, keep }: { stage: TfjsStage<Sized, SizedLinear>; ledger: Ledger; keep: boolean },
): StageSlot<Sized> {
  const { R, C } = stage.shape;
  const held: StageSlot<Sized> = { blocks: [] };
  const ids = new Uint32Array(0);
  const input = build.stage.embed ? ids : ledger.make(R, C);
  ledger.free(replay(stage.forward(held, { input, ...(build.stage.head ? { targets: ids } : {}), keep })));
  if (keep) return held;
  stage.free(held);
  return { blocks: [] };
}

/** Takes all steps of an operation, without the waits in between, which change no size. */
function replay<R>(steps: Steps<Sized, R>): R {
  for (;;) {
    const { done, value } = steps.next();
    if (done) return value;
  }
}

/** Counts what WasmMath allocates, operation by operation, in the same order. */
class Ledger implements StageMath<Sized, SizedLinear> {
  readonly name = "ledger";
  readonly #shape: MathShape;
  bytes = 0;
  most = 0;
  packed = 0;
  mostPacked = 0;

  constructor(shape: MathShape) {
    this.#shape = shape;
  }

  make(rows: number, cols: number): Sized {
    this.bytes += rows * cols * F32_BYTES;
    this.#note();
    return { rows, cols, packed: 0 };
  }

  free(...xs: Sized[]): void {
    for (const { rows, cols, packed } of xs) {
      this.bytes -= rows * cols * F32_BYTES;
      this.packed -= packed;
    }
  }

  size({ rows, cols }: Sized): number {
    return rows * cols;
  }

  upload(_: Float32Array, rows: number, cols: number): Sized {
    return this.make(rows, cols);
  }

  read(): Promise<void> {
    return Promise.resolve();
  }

  linear(_: Float32Array, out: number, into: number): SizedLinear {
    return { plain: this.make(out, into), transposed: this.make(into, out) };
  }

  freeLinear({ plain, transposed }: SizedLinear): void {
    this.free(plain, transposed);
  }

  forward(x: Sized, w: SizedLinear): Sized {
    return this.#matmul(x, w.transposed);
  }

  inputGrad(dy: Sized, w: SizedLinear): Sized {
    return this.#matmul(dy, w.plain);
  }

  weightGrad(dy: Sized, x: Sized): Sized {
    const turned = this.make(dy.cols, dy.rows);
    const out = this.#matmul(turned, x);
    this.free(turned);
    return out;
  }

  add(target: Sized): Sized {
    return target;
  }

  normalize(x: Sized): { y: Sized; rstd: Sized } {
    const rstd = this.make(this.#normRows, x.rows);
    return { y: this.make(x.rows, x.cols), rstd };
  }

  renormalize(x: Sized): Sized {
    return this.make(x.rows, x.cols);
  }

  normGrad(dy: Sized): { dx: Sized; dGain: Sized } {
    return { dx: dy, dGain: this.make(this.#normRows, dy.cols) };
  }

  get #normRows(): number {
    return this.#shape.gpt2 ? 2 : 1;
  }

  addRow(target: Sized): Sized {
    return target;
  }

  sumRows(dy: Sized): Sized {
    return this.make(1, dy.cols);
  }

  addPositions(x: Sized): Sized {
    return x;
  }

  sumPositions(): Sized {
    return this.make(this.#shape.T, this.#shape.C);
  }

  gelu(up: Sized): Sized {
    return this.make(up.rows, up.cols);
  }

  geluGrad(up: Sized, dAct: Sized): { dGateUp: Sized; act: Sized } {
    return { dGateUp: up, act: dAct };
  }

  rotate(qkv: Sized): Sized {
    return qkv;
  }

  attend(): Sized {
    const { R, H, D } = this.#shape;
    const out = this.make(R, H * D);
    for (const { rows, keys } of this.#blocks()) {
      const q = this.make(rows, D);
      const weights = this.#attentionWeights(q, keys);
      this.free(q);
      const v = this.make(keys, D);
      const result = this.#matmul(weights, v);
      this.free(weights, v, result);
    }
    return out;
  }

  attendGrad(qkv: Sized, _: Sized, dAttended: Sized): Sized {
    const { D } = this.#shape;
    for (const { rows, keys } of this.#blocks()) {
      const q = this.make(rows, D);
      const weights = this.#attentionWeights(q, keys);
      const dOut = this.make(rows, D);
      const vT = this.make(D, keys);
      const dScores = this.#matmul(dOut, vT);
      this.free(vT);
      this.free(this.weightGrad(weights, dOut));
      this.free(weights, dOut);
      this.free(this.weightGrad(dScores, q));
      this.free(q);
      const k = this.make(keys, D);
      const dQ = this.#matmul(dScores, k);
      this.free(dScores, k, dQ);
    }
    this.free(dAttended);
    return qkv;
  }

  swiglu(gateUp: Sized): Sized {
    const sigmoid = this.make(gateUp.rows, gateUp.cols);
    const act = this.make(gateUp.rows, gateUp.cols / 2);
    this.free(sigmoid);
    return act;
  }

  swigluGrad(gateUp: Sized, dAct: Sized): { dGateUp: Sized; act: Sized } {
    this.free(this.make(gateUp.rows, gateUp.cols));
    return { dGateUp: gateUp, act: dAct };
  }

  embed(table: Sized): Sized {
    return this.make(this.#shape.R, table.cols);
  }

  headLoss(x: Sized, table: Sized, { keep }: HeadOptions): { loss: Sized; kept: HeadKept<Sized> } {
    const [lse, loss] = [this.make(1, x.rows), this.make(1, 1)];
    const tiles = headTiles(this.#shape);
    for (const rows of tiles) {
      const probabilities = this.#logitTile(x, table, rows);
      if (keep && tiles.length === 1) return { loss, kept: { lse, dLogits: probabilities } };
      this.free(probabilities);
    }
    return { loss, kept: { lse } };
  }

  headInputGrad(x: Sized, table: Sized, { kept }: HeadGradOptions<Sized>): Sized {
    let sum: Sized | undefined;
    for (const rows of headTiles(this.#shape)) {
      const dLogits = kept.dLogits ?? this.#logitTile(x, table, rows);
      const weights = this.make(rows.count, table.cols);
      const part = this.#matmul(dLogits, weights);
      this.free(weights, ...kept.dLogits ? [] : [dLogits]);
      if (sum) this.free(part);
      else sum = part;
    }
    return sum!;
  }

  headWeightGrad(
    x: Sized,
    table: Sized,
    { kept, rows }: HeadGradOptions<Sized> & { rows: RowRange },
  ): Sized {
    const dLogits = kept.dLogits ?? this.#logitTile(x, table, rows);
    const out = this.weightGrad(dLogits, x);
    if (!kept.dLogits) this.free(dLogits);
    return out;
  }

  destroy(): void {}

  #logitTile(x: Sized, table: Sized, { count }: RowRange): Sized {
    const plain = this.make(count, table.cols), turned = this.make(table.cols, count);
    this.free(plain);
    const logits = this.#matmul(x, turned);
    this.free(turned);
    const probabilities = this.make(x.rows, count);
    this.free(logits);
    return probabilities;
  }

  #attentionWeights(q: Sized, keys: number): Sized {
    const kT = this.make(this.#shape.D, keys);
    const scores = this.#matmul(q, kT);
    this.free(kT);
    const weights = this.make(q.rows, keys);
    this.free(scores);
    return weights;
  }

  /** Of one key head of one sequence; all others are alike. */
  *#blocks(): Generator<{ rows: number; keys: number }> {
    const { T, H, Hk } = this.#shape;
    for (let from = 0; from < T; from += QUERY_BLOCK) {
      const keys = Math.min(from + QUERY_BLOCK, T);
      yield { rows: (keys - from) * H / Hk, keys };
    }
  }

  #matmul(a: Sized, b: Sized): Sized {
    const out = this.make(a.rows, b.cols);
    if (b.packed === 0) {
      b.packed = packedBytes(b.rows, b.cols);
      this.packed += b.packed;
      this.#note();
    }
    return out;
  }

  #note(): void {
    this.most = Math.max(this.most, this.bytes);
    this.mostPacked = Math.max(this.mostPacked, this.bytes + this.packed);
  }
}
