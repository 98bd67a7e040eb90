// Small sums that the planner's cost model is made of: shares of a group, memory by slots, the engine a peer is planned with, the head's weight.
// Pure functions of their arguments.
import { stageLayout } from "../../peer/model/layout.ts";
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
  for (; left > 0; left--) {
    let first = 0;
    let finish = Infinity;
    for (let i = 0; i < shares.length; i++) {
      const time = (shares[i]! + 1) * seconds[i]!;
      if (time < finish) [first, finish] = [i, time];
    }
    shares[first]!++;
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
  const products = stageLayout(spec, middle).tensors.filter((tensor) => tensor.shape.length === 2);
  const layer = products.reduce((sum, tensor) => sum + tensor.size, 0) + spec.block_size * spec.n_embd;
  return spec.vocab_size * spec.n_embd / layer;
}
