// Small sums that the planner's cost model is made of: shares of a group, memory by slots, the engine a peer is planned with, the head's weight.
// Pure functions of their arguments.
import { baseSpec, stageLayout } from "../../peer/model/layout.ts";
import { ShoalError } from "../../peer/wire/errors.ts";
import type { ModelSpec, StageSpec } from "../../peer/wire/run.ts";
import type { EngineSpeed } from "./planner_types.ts";

/**
 * Micro-batches of each member so that the last one to finish does so as early as possible: whole shares in proportion to
 * speed, the rest one by one to whoever would finish it first.
 */
export function bestShares(seconds: readonly number[], N: number): number[] {
  let throughput = 0;
  for (const t of seconds) throughput += 1 / t;
  let left = N;
  const shares = seconds.map((t) => {
    // The allowance keeps rounding noise from dealing out more than N.
    const share = Math.floor(N / (t * throughput) * (1 - 1e-12));
    left -= share;
    return share;
  });
  const queue = new FinishQueue(seconds, shares);
  for (; left > 0; left--) shares[queue.take()]!++;
  return shares;
}

/**
 * Who would finish one more micro-batch first, again and again: of several, the first in the list. A binary heap, since hundreds
 * of members get hundreds of micro-batches.
 */
class FinishQueue {
  readonly #seconds: readonly number[];
  /** Micro-batches of each member so far, and when it would be done with one more. */
  readonly #counts: number[];
  readonly #finish: number[];
  readonly #heap: number[];

  /** `counts`: micro-batches that each has already. */
  constructor(seconds: readonly number[], counts: readonly number[]) {
    this.#seconds = seconds;
    this.#counts = [...counts];
    this.#finish = seconds.map((t, i) => (counts[i]! + 1) * t);
    this.#heap = seconds.map((_, i) => i);
    for (let at = (this.#heap.length >> 1) - 1; at >= 0; at--) this.#sink(at);
  }

  /** The member, which then has one more. */
  take(): number {
    const member = this.#heap[0]!;
    this.#finish[member] = (++this.#counts[member]! + 1) * this.#seconds[member]!;
    this.#sink(0);
    return member;
  }

  /** The member that is first gets no more. */
  close(member: number): void {
    this.#finish[member] = Infinity;
    this.#sink(this.#heap.indexOf(member));
  }

  #sink(start: number): void {
    const heap = this.#heap;
    const moved = heap[start]!;
    let at = start;
    for (;;) {
      let child = 2 * at + 1;
      if (child + 1 < heap.length && this.#before(heap[child + 1]!, heap[child]!)) child++;
      if (child >= heap.length || !this.#before(heap[child]!, moved)) break;
      heap[at] = heap[child]!;
      at = child;
    }
    heap[at] = moved;
  }

  #before(a: number, b: number): boolean {
    const [x, y] = [this.#finish[a]!, this.#finish[b]!];
    return x < y || (x === y && a < b);
  }
}

/** Micro-batches 0 to N-1 one by one to whoever would finish first, so that neighbours interleave; `counts` are how many each gets. */
export function dealOut(seconds: readonly number[], counts: readonly number[], N: number): number[][] {
  const shares: number[][] = seconds.map(() => []);
  const queue = new FinishQueue(seconds, seconds.map(() => 0));
  const full = (member: number) => shares[member]!.length >= counts[member]!;
  shares.forEach((_, member) => full(member) && queue.close(member));
  for (let m = 0; m < N; m++) {
    const next = queue.take();
    shares[next]!.push(m);
    if (full(next)) queue.close(next);
  }
  return shares;
}

/**
 * Bytes for any number of slots up to N. Each slot takes as much as the last, so the first three answers give all of them (to
 * predict hundreds of slots takes a while); if the third does not lie on the line of the others, every number is asked for.
 */
export function bytesBySlots(memory: (slots: number) => number, N: number): (slots: number) => number {
  const first = memory(1);
  const each = N > 1 ? memory(2) - first : 0;
  if (N <= 2 || memory(3) === first + 2 * each) return (slots) => first + (slots - 1) * each;
  const known = new Map<number, number>();
  return (slots) => {
    let bytes = known.get(slots);
    if (bytes === undefined) known.set(slots, bytes = memory(slots));
    return bytes;
  };
}

/** The engine that takes the least for a layer. Throws `bad-config` if none was measured. */
export function fastest(peer: string, engines: readonly EngineSpeed[]): EngineSpeed {
  const total = (speed: EngineSpeed) =>
    speed.forward + speed.backward + speed.weightGrad + 3 * (speed.overhead ?? 0);
  const [first, ...others] = engines.filter((speed) => total(speed) > 0 && total(speed) < Infinity);
  if (first === undefined) {
    throw new ShoalError(
      "bad-config",
      `peer ${peer} has no engine with a measured speed; measure it before planning`,
    );
  }
  return others.reduce((best, speed) => total(speed) < total(best) ? speed : best, first);
}

/** Products of the head over those of a layer, attention included, per token. */
export function headWork(spec: ModelSpec): number {
  const middle: StageSpec = { index: 0, firstLayer: 0, endLayer: 1, embed: false, head: false };
  const products = stageLayout(baseSpec(spec), middle).tensors.filter((tensor) => tensor.shape.length === 2);
  const layer = products.reduce((sum, tensor) => sum + tensor.size, 0) + spec.block_size * spec.n_embd;
  return spec.vocab_size * spec.n_embd / layer;
}
