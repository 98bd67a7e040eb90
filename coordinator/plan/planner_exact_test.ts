// The exact search against brute force over every grouping, order, cut and recompute mode, with the cost written out anew.
import assert from "node:assert/strict";
import fc from "fast-check";
import type { RecomputeId } from "../../peer/wire/run.ts";
import { exactFits, exactLayout, exactLayouts } from "./planner_exact.ts";
import { CostModel } from "./planner_model.ts";
import { bestShares } from "./planner_shares.ts";
import { drawSwarm } from "../../test/support/swarm_requests.ts";
import type { PlanRequest } from "./planner_types.ts";

interface Part {
  peers: number[];
  first: number;
  end: number;
  recompute: RecomputeId;
}

const instance = fc.record({
  seed: fc.nat(),
  peers: fc.integer({ min: 1, max: 4 }),
  layers: fc.integer({ min: 1, max: 4 }),
  N: fc.constantFrom(1, 3, 8),
  shadows: fc.boolean(),
  tight: fc.boolean(),
  n_stage: fc.constantFrom(0, 0, 0, 0, 1, 2),
});

Deno.test("the exact layout costs what brute force finds, on 320 random swarms", () => {
  let [feasible, replicated, recomputed] = [0, 0, 0];
  fc.assert(
    fc.property(instance, ({ seed, peers, layers, N, shadows, tight, n_stage }) => {
      if (peers === 4 && layers === 4) layers = 3;
      const request = drawSwarm({
        ...{ peers, seed, memory: tight ? [0.3, 0.9] : [0.7, 3] },
        config: { n_layer: layers, gradient_accumulation_steps: N, shadows },
      });
      const model = new CostModel(request);
      const stageCount = n_stage === 0 ? null : n_stage;
      const found = exactLayout(model, { stageCount });
      const expected = bruteForce(request, stageCount);
      if (found === null) return assert.equal(expected, Infinity);
      feasible++;
      replicated += Number(found.stages.some(({ stage }) => stage.peers.length > 1));
      recomputed += Number(found.stages.some(({ option }) => option.recompute !== "none"));
      assert.ok(Math.abs(found.seconds / expected - 1) < 1e-9, `${found.seconds}, expected ${expected}`);
      const parts = found.stages.map(({ stage, option }): Part => ({
        ...{ peers: [...stage.peers], first: stage.first, end: stage.end, recompute: option.recompute },
      }));
      assert.ok(Math.abs(secondsOf(request, parts) / found.seconds - 1) < 1e-9, "its own cost is another");
    }),
    { seed: 61, numRuns: 320 },
  );
  assert.ok(feasible >= 200, `only ${feasible} were feasible`);
  assert.ok(replicated > 30, `only ${replicated} had replicas`);
  assert.ok(recomputed > 20, `only ${recomputed} recomputed`);
});

Deno.test("a bound below the optimum finds nothing, one above it the optimum", () => {
  const model = new CostModel(drawSwarm({ peers: 3, seed: 4, config: { n_layer: 4 } }));
  const best = exactLayout(model)!;
  assert.equal(exactLayout(model, { below: best.seconds }), null);
  assert.equal(exactLayout(model, { below: best.seconds * 1.01 })!.seconds, best.seconds);
});

Deno.test("the optima of all numbers of stages at once are those of each; what is too dear is left out", () => {
  const model = new CostModel(drawSwarm({ peers: 4, seed: 3, config: { n_layer: 5 } }));
  const each = [1, 2, 3, 4].map((stageCount) => exactLayout(model, { stageCount })!.seconds);
  const seconds = (within: number, below: number[] = []) =>
    exactLayouts(model, { below, within }).map((layout) => layout?.seconds ?? null);
  assert.deepEqual(seconds(Infinity), [null, ...each]);
  const least = Math.min(...each);
  const near = seconds(1.2);
  each.forEach((it, i) => it <= 1.2 * least && assert.equal(near[i + 1], it));
  assert.ok(each.some((it) => it > 1.2 * least), "the swarm shows nothing");
  const best = each.indexOf(least) + 1;
  assert.equal(seconds(Infinity, [0, ...each].map((it) => it - 1e-6))[best], null);
});

Deno.test("the exact search is for small swarms only", () => {
  const fits = (peers: number, n_layer: number) =>
    exactFits(new CostModel(drawSwarm({ peers, seed: 1, config: { n_layer } })));
  assert.ok(fits(4, 12) && fits(5, 12));
  assert.ok(!fits(8, 12) && !fits(40, 12));
});

Deno.test("shares finish as early as any shares can", () => {
  const arrays = fc.array(fc.double({ min: 0.1, max: 3, noNaN: true }), { minLength: 1, maxLength: 4 });
  fc.assert(
    fc.property(arrays, fc.integer({ min: 1, max: 9 }), (seconds, N) => {
      const shares = bestShares(seconds, N);
      assert.equal(shares.reduce((sum, share) => sum + share, 0), N);
      const finish = (of: number[]) => Math.max(...of.map((share, i) => share * seconds[i]!));
      const best = Math.min(...allShares(seconds.length, N).map(finish));
      assert.ok(Math.abs(finish(shares) - best) < 1e-9);
    }),
    { seed: 62, numRuns: 200 },
  );
});

/** Least seconds over every pipeline, by trying them all; infinite if none fits. */
function bruteForce(request: PlanRequest, stageCount: number | null): number {
  const { peers, spec: { n_layer } } = request;
  let best = Infinity;
  const grow = (parts: Part[], used: number, first: number) => {
    if (first === n_layer) {
      if (stageCount === null || parts.length === stageCount) {
        best = Math.min(best, secondsOf(request, parts));
      }
      return;
    }
    for (let group = 1; group < 2 ** peers.length; group++) {
      if ((group & used) !== 0) continue;
      const members = peers.flatMap((_, i) => (group >> i) & 1 ? [i] : []);
      for (let end = first + 1; end <= n_layer; end++) {
        for (const recompute of ["none", "attention", "block"] as const) {
          if (slotsOf(request, { peers: members, first, end, recompute }) < 1) continue;
          grow([...parts, { peers: members, first, end, recompute }], used | group, end);
        }
      }
    }
  };
  grow([], 0, 0);
  return best;
}

/** Slots that every member's memory allows. */
function slotsOf({ spec, config, peers, memory }: PlanRequest, part: Part): number {
  const { first, end, recompute } = part;
  const stage = {
    index: 0,
    firstLayer: first,
    endLayer: end,
    embed: first === 0,
    head: end === spec.n_layer,
  };
  let slots = 0;
  while (slots < config.gradient_accumulation_steps) {
    const bytes = memory(stage, { slots: slots + 1, recompute }, "wgsl");
    if (part.peers.some((i) => bytes > peers[i]!.memoryBytes)) break;
    slots++;
  }
  return slots;
}

/** The cost model written out for one pipeline. */
function secondsOf(request: PlanRequest, parts: Part[]): number {
  const { config, spec, peers } = request;
  const N = config.gradient_accumulation_steps;
  const message = config.batch_size * spec.block_size * spec.n_embd * 66 / 64;
  const link = (i: number, j: number) => request.link(peers[i]!.id, peers[j]!.id)!;
  let [round, pace, sync] = [0, 0, 0];
  for (const part of parts.toReversed()) {
    const after = parts[parts.indexOf(part) + 1];
    if (after !== undefined) {
      const pairs = part.peers.flatMap((i) => after.peers.map((j) => [i, j] as const));
      const ways = pairs.flatMap(([i, j]) => [link(i, j), link(j, i)]);
      round += ways.reduce((sum, way) => sum + way.latency + message / way.bytesPerS, 0) / pairs.length;
      pace = Math.max(pace, ...ways.map((way) => message / way.bytesPerS / pairs.length));
    }
    const seconds = part.peers.map((i) => stageSeconds(request, i, part));
    const shares = bestShares(seconds, N);
    round += shares.reduce((sum, share, i) => sum + share * seconds[i]!, 0) / N;
    pace = Math.max(pace, ...shares.map((share, i) => share * seconds[i]! / N));
    const slots = slotsOf(request, part);
    const inflight = Math.min(...shares.map((share) => share <= slots ? N : N * slots / share));
    if (inflight < N) pace = Math.max(pace, round / inflight);
    sync = Math.max(sync, syncSeconds(request, part));
  }
  return round + (N - 1) * pace + sync;
}

function stageSeconds({ peers, spec }: PlanRequest, i: number, { first, end, recompute }: Part): number {
  const { engines, hidden } = peers[i]!;
  const { forward, backward, weightGrad } = engines[0]!;
  const C = spec.n_embd;
  const kv = spec.n_kv_head * C / spec.n_head;
  const head = spec.vocab_size * C / (2 * C * C + 2 * C * kv + 3 * C * spec.n_inner + spec.block_size * C);
  const work = end - first + (end === spec.n_layer ? head : 0);
  const again = { none: 0, attention: 0.2, block: 1 }[recompute] * (end - first);
  return (work * (forward + backward + weightGrad) + again * forward) / (hidden ? 0.5 : 1);
}

function syncSeconds(request: PlanRequest, { peers: group, first, end }: Part): number {
  const { peers, config } = request;
  const all = peers.map((_, i) => i);
  const R = group.length;
  if (R === 1 && (!config.shadows || all.length === 1)) return 0;
  const bytes = new CostModel(request).gradientBytes(first, end);
  const rate = (i: number, j: number) => request.link(peers[i]!.id, peers[j]!.id)!.bytesPerS;
  return Math.max(...group.map((i) => {
    if (R === 1) return bytes / Math.max(...all.filter((j) => j !== i).map((j) => rate(i, j)));
    const slowest = Math.min(...group.filter((j) => j !== i).map((j) => rate(i, j)));
    return (R < 3 ? R - 1 : 2 * (R - 1) / R) * bytes / slowest;
  }));
}

function allShares(parts: number, N: number): number[][] {
  if (parts === 1) return [[N]];
  return Array.from({ length: N + 1 }, (_, share) => share)
    .flatMap((share) => allShares(parts - 1, N - share).map((rest) => [share, ...rest]));
}
