// Emitters that split the backward into B and W: ZB-H1, ZB-H2 (one direction) and DualPipe (two directions).
// They give the computation order per device and the memory it needs; never sends, never times.
import { badSize, bidirectional, checkSize, filled, one, perDevice, single } from "./emitters.ts";
import { makeOp, type Op, type Schedule, type SingleOp } from "./ir.ts";

/**
 * Zero-bubble order (Qi et al. 2024): `warmUp(p)` forwards, then B and F in turn; W runs only when `memoryCap`
 * activations are held or no forward is left, so that it fills the bubbles of the drain.
 */
export function zeroBubble(
  P: number,
  N: number,
  options: { warmUp: (p: number) => number; memoryCap: number; name?: string },
): Schedule {
  checkSize(P, N);
  const { warmUp, memoryCap, name = "zero-bubble" } = options;
  if (memoryCap < warmUp(0)) throw badSize(`memory cap ${memoryCap} is below the warm-up of ${warmUp(0)}`);
  const ops = perDevice(P, (p) => {
    const list: SingleOp[] = [];
    let forwards = 0;
    let weightGrads = 0;
    const emitForward = () => list.push(one("F", p, forwards++));
    const emitWeightGrad = () => list.push(one("W", p, weightGrads++));
    while (forwards < Math.min(N, warmUp(p))) emitForward();
    for (let backwards = 0; backwards < N; backwards++) {
      list.push(one("B", p, backwards));
      if (forwards - weightGrads >= memoryCap || forwards === N) emitWeightGrad();
      if (forwards < N) emitForward();
    }
    while (weightGrads < N) emitWeightGrad();
    return list;
  });
  return { ...single(name, P, N), ops, peakActivations: filled(P, Math.min(N, memoryCap)) };
}

/** ZB-H1: the memory of 1F1B, a third of its bubble if F = B = W. */
export function zbH1(P: number, N: number): Schedule {
  return zeroBubble(P, N, { warmUp: (p) => P - p, memoryCap: P, name: "zb-h1" });
}

/** ZB-H2: twice the memory of 1F1B, no bubble if F = B = W. */
export function zbH2(P: number, N: number): Schedule {
  return zeroBubble(P, N, { warmUp: (p) => 2 * (P - p) - 1, memoryCap: 2 * P - 1, name: "zb-h2" });
}

/**
 * DualPipe (DeepSeek-AI 2024): two directions, forward and backward of opposite directions paired.
 * N counts both directions, even and at least 2P; P even.
 * @param options `paired` (default true): pairs are one atomic operation, which is what the published bubble
 * assumes; false: F and BW one after the other, as on a device that runs one operation at a time
 */
export function dualPipe(P: number, N: number, options: { paired?: boolean } = {}): Schedule {
  checkSize(P, N);
  if (P % 2 !== 0 || N % 2 !== 0 || N < 2 * P) {
    throw badSize(`dualpipe needs P even and N even, at least 2P; got P=${P}, N=${N}`);
  }
  const ops = perDevice(P, (rank) => dualPipeRank(rank, { P, N, paired: options.paired ?? true }));
  return { ...single("dualpipe", P, N), placement: bidirectional(P), ops, peakActivations: filled(P, P + 1) };
}

/** The eight phases of one rank; `near` is its distance from the closer end of the pipeline. */
function dualPipeRank(rank: number, of: { P: number; N: number; paired: boolean }): Op[] {
  const { P, N, paired } = of;
  const near = Math.min(rank, P - 1 - rank);
  const outer = P / 2 - near - 1;
  const emit = new DualPipeWriter(rank, P, paired);
  repeat(2 * outer, () => emit.forward(0));
  repeat(near + 1, () => {
    emit.forward(0);
    emit.forward(1);
  });
  repeat(outer, () => {
    emit.splitBackward(1);
    emit.weightGrad();
    emit.forward(1);
  });
  repeat(N / 2 - P + near + 1, () => {
    emit.pair(0, 1);
    emit.pair(1, 0);
  });
  repeat(outer, () => {
    emit.backward(1);
    emit.pair(1, 0);
  });
  drain(emit, near);
  repeat(outer, () => {
    emit.weightGrad();
    emit.splitBackward(0);
  });
  repeat(near + 1, () => emit.weightGrad());
  return emit.ops;
}

/** Phase 6: backwards of both directions; from the middle on, their weight gradients wait for phases 7 and 8. */
function drain(emit: DualPipeWriter, near: number): void {
  const middle = Math.floor((near + 1) / 2);
  for (let i = 0; i <= near; i++) {
    const firstSplit = i > middle || (i === middle && near % 2 === 1);
    if (firstSplit) emit.splitBackward(1);
    else emit.backward(1);
    if (i >= middle) emit.splitBackward(0);
    else emit.backward(0);
  }
}

/** Appends operations of one rank. Phase 0 is the direction that enters at the rank's own half. */
class DualPipeWriter {
  readonly ops: Op[] = [];
  readonly #rank: number;
  readonly #P: number;
  readonly #paired: boolean;
  readonly #forwards: [number, number] = [0, 0];
  readonly #backwards: [number, number] = [0, 0];
  readonly #pending: SingleOp[] = [];

  constructor(rank: number, P: number, paired: boolean) {
    this.#rank = rank;
    this.#P = P;
    this.#paired = paired;
  }

  forward(phase: 0 | 1): void {
    this.ops.push(this.#nextForward(phase));
  }

  backward(phase: 0 | 1): void {
    this.ops.push(this.#nextBackward("BW", phase));
  }

  splitBackward(phase: 0 | 1): void {
    const backward = this.#nextBackward("B", phase);
    this.ops.push(backward);
    this.#pending.push({ ...backward, kind: "W" });
  }

  weightGrad(): void {
    const oldest = this.#pending.shift();
    if (oldest !== undefined) this.ops.push(oldest);
  }

  pair(forwardPhase: 0 | 1, backwardPhase: 0 | 1): void {
    const forward = this.#nextForward(forwardPhase);
    const backward = this.#nextBackward("BW", backwardPhase);
    if (this.#paired) this.ops.push({ kind: "FB", forward, backward });
    else this.ops.push(forward, backward);
  }

  #nextForward(phase: 0 | 1): SingleOp {
    return makeOp("F", { ...this.#place(phase), microBatch: this.#forwards[phase]++ });
  }

  #nextBackward(kind: "B" | "BW", phase: 0 | 1): SingleOp {
    return makeOp(kind, { ...this.#place(phase), microBatch: this.#backwards[phase]++ });
  }

  #place(phase: 0 | 1): { direction: number; stage: number } {
    const secondHalf = this.#rank >= this.#P / 2;
    const direction = secondHalf ? 1 - phase : phase;
    return { direction, stage: direction === 0 ? this.#rank : this.#P - 1 - this.#rank };
  }
}

function repeat(count: number, body: () => void): void {
  for (let i = 0; i < count; i++) body();
}
