// The links between the peers of a request as tables: asked for once, since the search looks at each pair thousands of times. Pure;
// it knows no stages and no costs. What must stay true: what it remembers of a group belongs to that very array.
import type { PlanRequest } from "./planner_types.ts";

export interface Hop {
  /** Mean seconds of an activation one way and its gradient back. */
  round: number;
  /** Busiest link's seconds per micro-batch. */
  pace: number;
}

/** Bytes of a boundary tensor as the configuration's codecs make it. */
export interface BoundaryBytes {
  forward: number;
  backward: number;
}

export class PlannerLinks {
  /** Some link was not measured. */
  readonly doubtful: boolean = false;
  readonly #count: number;
  readonly #latency: Float64Array;
  readonly #rate: Float64Array;
  /** Of a pair as neighbours: seconds of a tensor there and one back, and of the slower of the two on its link. */
  readonly #round: Float64Array;
  readonly #busy: Float64Array;
  /** Of the slower direction. */
  readonly #slower: Float64Array;
  readonly #uplinks = new WeakMap<readonly number[], number>();
  readonly #hops = new WeakMap<readonly number[], WeakMap<readonly number[], Hop>>();

  constructor({ peers, link }: Pick<PlanRequest, "peers" | "link">, bytes: BoundaryBytes) {
    const count = this.#count = peers.length;
    this.#latency = new Float64Array(count ** 2).fill(Infinity);
    this.#rate = new Float64Array(count ** 2);
    for (const [i, from] of peers.entries()) {
      for (const [j, to] of peers.entries()) {
        const known = i === j ? { latency: 0, bytesPerS: Infinity } : link(from.id, to.id);
        if (known === null) continue;
        this.#latency[i * count + j] = known.latency;
        this.#rate[i * count + j] = known.bytesPerS;
        if ((known.latencyMost ?? 0) > known.latency) this.doubtful = true;
      }
    }
    this.#round = new Float64Array(count ** 2);
    this.#busy = new Float64Array(count ** 2);
    this.#slower = new Float64Array(count ** 2);
    this.#measurePairs(bytes);
  }

  #measurePairs(bytes: BoundaryBytes): void {
    for (let i = 0; i < this.#count; i++) {
      for (let j = 0; j < this.#count; j++) {
        const [there, back] = [i * this.#count + j, j * this.#count + i];
        const activation = bytes.forward / this.#rate[there]!;
        const gradient = bytes.backward / this.#rate[back]!;
        this.#round[there] = this.#latency[there]! + activation + this.#latency[back]! + gradient;
        this.#busy[there] = Math.max(activation, gradient);
        this.#slower[there] = Math.min(this.#rate[there]!, this.#rate[back]!);
      }
    }
  }

  latency(from: number, to: number): number {
    return this.#latency[from * this.#count + to]!;
  }

  rate(from: number, to: number): number {
    return this.#rate[from * this.#count + to]!;
  }

  /** Whether nothing tells the links of two peers apart, those between the two included. */
  same(a: number, b: number): boolean {
    const same = (i: number, j: number) =>
      this.#latency[i] === this.#latency[j] && this.#rate[i] === this.#rate[j];
    for (let k = 0; k < this.#count; k++) {
      if (k === a || k === b) continue;
      const [from, to] = [k * this.#count, k];
      if (!same(a * this.#count + to, b * this.#count + to) || !same(from + a, from + b)) return false;
    }
    return same(a * this.#count + b, b * this.#count + a);
  }

  /**
   * The slowest link between two of a group; of a lone holder, its fastest link to anyone, where its shadow will be.
   * Remembered by the group, since most moves leave most groups as they are.
   */
  uplink(group: readonly number[]): number {
    let rate = this.#uplinks.get(group);
    if (rate !== undefined) return rate;
    rate = group.length === 1 ? this.#fastestFrom(group[0]!) : this.#slowestWithin(group);
    this.#uplinks.set(group, rate);
    return rate;
  }

  #slowestWithin(group: readonly number[]): number {
    const rates = this.#slower;
    let rate = Infinity;
    for (let k = 1; k < group.length; k++) {
      const row = group[k]! * this.#count;
      for (let l = 0; l < k; l++) {
        const between = rates[row + group[l]!]!;
        if (between < rate) rate = between;
      }
    }
    return rate;
  }

  #fastestFrom(peer: number): number {
    let rate = 0;
    for (let j = 0; j < this.#count; j++) {
      if (j !== peer) rate = Math.max(rate, this.rate(peer, j));
    }
    // Whoever reaches nobody has no shadow to send to.
    return rate === 0 ? Infinity : rate;
  }

  /** Between two neighbouring groups. */
  hop(before: readonly number[], after: readonly number[]): Hop {
    let known = this.#hops.get(before);
    if (known === undefined) this.#hops.set(before, known = new WeakMap());
    let hop = known.get(after);
    if (hop === undefined) known.set(after, hop = this.#measureHop(before, after));
    return hop;
  }

  #measureHop(before: readonly number[], after: readonly number[]): Hop {
    const [rounds, busy] = [this.#round, this.#busy];
    let sum = 0;
    let busiest = 0;
    for (const i of before) {
      const row = i * this.#count;
      for (const j of after) {
        sum += rounds[row + j]!;
        if (busy[row + j]! > busiest) busiest = busy[row + j]!;
      }
    }
    const pairs = before.length * after.length;
    return { round: sum / pairs, pace: busiest / pairs };
  }
}
