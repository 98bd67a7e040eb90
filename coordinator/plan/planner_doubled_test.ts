// Two stages per peer: where the run asks for them, or where quick links and memory make a step shorter by them; never more than
// memory allows, and over links that nobody has measured only if it pays at any rate.
import assert from "node:assert/strict";
import fc from "fast-check";
import type { RunConfig } from "../../peer/wire/run.ts";
import { checkPlan, drawSwarm, equalPeers, hasTwoEach } from "../../test/support/swarm_requests.ts";
import { plan } from "./planner.ts";
import { publishedSchedules } from "./planner_published.ts";
import type { EngineSpeed, Plan, PlannerPeer, PlanRequest } from "./planner_types.ts";

/** Of the best published schedule's time. */
const BEHIND_MOST = 1.03;

function planOf(request: PlanRequest): Plan {
  const answer = plan(request);
  assert.ok(answer.kind === "plan");
  return answer;
}

/** Four equal peers and eight layers, with room for a line of them in both forms. */
function line(latency: number, changes: Partial<RunConfig> = {}): PlanRequest {
  const config = { n_layer: 8, gradient_accumulation_steps: 8, shadows: false, ...changes };
  return {
    ...equalPeers([9, 9, 9, 9], { recompute: "none", ...config }),
    ...{ schedule: "dynamic", link: () => ({ latency, bytesPerS: 1e9 }) },
  };
}

Deno.test("two stages each: any swarm that is asked for them, within each memory, or with fewer stages instead", () => {
  const drawn = fc.record({
    seed: fc.nat(10_000),
    peers: fc.integer({ min: 2, max: 6 }),
    extra: fc.nat(1),
    tight: fc.boolean(),
    shadows: fc.boolean(),
  });
  const seen = { two: 0, fewer: 0, recomputing: 0, mirrored: 0 };
  fc.assert(
    fc.property(drawn, ({ seed, peers, extra, tight, shadows }) => {
      const n_stage = Math.max(4, 2 * (peers - extra));
      const request = drawSwarm({
        ...{ peers, seed, memory: tight ? [0.25, 0.6] : [1, 4] },
        config: { n_layer: 12, gradient_accumulation_steps: 6, n_stage, shadows },
      });
      const answer = plan(request);
      if (answer.kind === "infeasible") return;
      const two = hasTwoEach(answer);
      checkPlan(request, answer, { doubled: two });
      seen.fewer += Number(!two);
      if (!two) return assert.ok(answer.stages.length <= peers);
      seen.two++;
      seen.recomputing += Number(answer.stages[0]!.recompute !== "none");
      // Mirrored, a stage belongs to two groups; the one in the middle of an odd number to a single one.
      const mirrored = answer.stages.length === n_stage / 2;
      seen.mirrored += Number(mirrored);
      if (!mirrored) assert.equal(answer.stages.length, n_stage);
      const middle = mirrored && answer.stages.length % 2 === 1
        ? answer.stages[answer.stages.length >> 1]!.replicas.map(({ peer }) => peer)
        : [];
      const held = new Map<string, number>(middle.map((peer) => [peer, 1]));
      for (const { peer } of answer.stages.flatMap((stage) => stage.replicas)) {
        held.set(peer, (held.get(peer) ?? 0) + 1);
      }
      assert.ok([...held.values()].every((count) => count === 2), JSON.stringify([...held]));
    }),
    { seed: 17, numRuns: 60 },
  );
  for (const [what, count] of Object.entries(seen)) assert.ok(count >= 3, `only ${count} ${what}`);
});

Deno.test("two stages each: the groups are those that suit two, though with one others would be quicker", () => {
  for (const [peers, seed] of [[5, 18], [6, 13], [6, 17]] as const) {
    const config = { n_layer: 12, n_embd: 256, n_head: 4, gradient_accumulation_steps: 16, n_stage: 8 };
    const found = planOf(drawSwarm({ peers, seed, memory: [0.15, 0.8], config }));
    const one = Number(/ instead of ([\d.]+) s\.$/.exec(found.reasons[1]!)![1]);
    assert.ok(found.seconds < 2.2 * one, `seed ${seed}: ${found.seconds} s, ${one} s with one each`);
  }
});

Deno.test("two stages each: over quick links a step is at most 3 % behind the best published schedule, with one it is not", () => {
  for (const [peers, N] of [[4, 8], [4, 16], [6, 12], [8, 16], [8, 32]] as const) {
    const asked = (n_stage: number): PlanRequest => ({
      ...equalPeers(Array(peers).fill(2.5 * peers), {
        ...{ n_layer: 2 * peers, gradient_accumulation_steps: N, recompute: "none", shadows: false, n_stage },
      }),
      ...{ schedule: "dynamic", link: () => ({ latency: 0, bytesPerS: 1e9 }) },
    });
    // As many stages as peers are two each as well: those of the line, from both ends.
    const [line, two] = [peers, 2 * peers].map((n_stage) => planOf(asked(n_stage)));
    const published = publishedSchedules(asked(peers), line!).filter(({ seconds }) => seconds !== null);
    const best = Math.min(...published.map(({ seconds }) => seconds!));
    assert.ok(published.length > 8, "too little memory for most");
    const one = Number(/ instead of ([\d.]+) s\.$/.exec(line!.reasons[1]!)![1]);
    assert.ok(one > 1.05 * best, `${peers} peers, one stage each: ${one}, ${best}`);
    assert.equal(line!.stages.length, peers);
    for (const { seconds } of [line!, two!]) {
      assert.ok(seconds <= BEHIND_MOST * best, `${peers} peers, ${N}: ${seconds}, ${best}`);
    }
  }
});

Deno.test("two stages each: as many stages as peers, in which DualPipe holds two each, are as fast as DualPipe without latency", () => {
  const asked: PlanRequest = {
    ...equalPeers(Array(8).fill(20), {
      n_layer: 8,
      gradient_accumulation_steps: 16,
      n_stage: 8,
      shadows: false,
    }),
    ...{ schedule: "dynamic", link: () => ({ latency: 0, bytesPerS: 1e9 }) },
  };
  const found = planOf(asked);
  const [dualPipe] = publishedSchedules(asked, found).filter(({ name }) => name === "dualpipe");
  assert.ok(found.seconds <= BEHIND_MOST * dualPipe!.seconds!, `${found.seconds}, ${dualPipe!.seconds}`);
  checkPlan(asked, found, { doubled: true });
});

Deno.test("two stages each: steps that overlap have them only if asked, since nobody would be idle with one", () => {
  const asked = (schedule: "dynamic" | "2bw", n_stage: number) =>
    planOf(line(0, { schedule, n_stage, gradient_accumulation_steps: 8 }));
  assert.ok(hasTwoEach(asked("dynamic", 4)) && hasTwoEach(asked("2bw", 8)));
  assert.ok(!hasTwoEach(asked("2bw", 4)) && !hasTwoEach(asked("2bw", 0)));
});

Deno.test("two stages each: a number of stages that is asked for stays, and memory for one each keeps one each", () => {
  const drawn = fc.record({
    ...{ seed: fc.nat(10_000), peers: fc.integer({ min: 3, max: 6 }), tight: fc.boolean() },
    ...{ shadows: fc.boolean(), measured: fc.boolean(), near: fc.boolean() },
  });
  const seen = { two: 0, one: 0, unmeasured: 0 };
  fc.assert(
    fc.property(drawn, ({ seed, peers, tight, shadows, measured, near }) => {
      const swarm = drawSwarm({
        ...{ peers, seed, memory: tight ? [0.3, 0.6] : [1, 4], rate: [1e8, 1e9] },
        ...{ layerSeconds: [0.05, 0.06], latency: near ? [0.0001, 0.001] : [0.002, 0.06] },
        config: { n_layer: 8, gradient_accumulation_steps: 12, n_stage: peers, shadows },
      });
      const link: PlanRequest["link"] = (from, to) => {
        const known = swarm.link(from, to)!;
        return measured ? known : { ...known, latencyMost: 0.03 };
      };
      const request = { ...swarm, link };
      const answer = plan(request);
      if (answer.kind === "infeasible") return;
      const two = hasTwoEach(answer);
      checkPlan(request, answer, { doubled: two });
      seen.one += Number(!two && answer.stages.length === peers);
      seen.two += Number(two);
      seen.unmeasured += Number(two && !measured);
      if (!two) return;
      assert.ok(peers >= 4, "two or three would hold more than half of the model each");
      assert.equal(answer.stages.length, peers);
    }),
    { seed: 24, numRuns: 40 },
  );
  for (const [what, count] of Object.entries(seen)) assert.ok(count >= 3, `${count} ${what}`);
});

Deno.test("two stages each: half of the micro-batches go up the line, and those who hold the longer ways have more slots", () => {
  const { stages, reasons } = planOf(line(0.05, { n_stage: 8, gradient_accumulation_steps: 16 }));
  const of = (s: number) => stages[s]!.replicas.map(({ peer, microBatches }) => `${peer} ${microBatches}`);
  assert.equal(stages.length, 4);
  const [even, odd] = [0, 1].map((rest) => Array.from({ length: 8 }, (_, i) => 2 * i + rest).join());
  const [p, q] = stages[0]!.replicas.map(({ peer }) => peer);
  assert.deepEqual([...of(0), ...of(3)], [`${p} ${even}`, `${q} ${odd}`, `${p} ${odd}`, `${q} ${even}`]);
  assert.ok(stages[0]!.inflight > stages[3]!.inflight, stages.map(({ inflight }) => inflight).join());
  assert.match(
    reasons[1]!,
    /^Peers that compute hold two stages each, and half of .* \d\.\d+ s per step instead of \d\.\d+ s\.$/,
  );
});

Deno.test("two stages each: of two that mirror one another the quicker has the larger share of both", () => {
  const request = line(0, { n_stage: 4, gradient_accumulation_steps: 12 });
  const [a, b] = request.peers as [PlannerPeer, PlannerPeer];
  const [speed] = b.engines as [EngineSpeed];
  const slow = { ...speed, forward: 0.04, backward: 0.04, weightGrad: 0.04 };
  const { stages } = planOf({ ...request, peers: [a, { ...b, engines: [slow] }] });
  for (const { replicas } of stages.length === 2 ? stages : []) {
    assert.deepEqual(replicas.map(({ microBatches }) => microBatches.length).toSorted((x, y) => x - y), [
      4,
      8,
    ]);
  }
  assert.equal(stages.length, 2);
});

Deno.test("two stages each: chosen where they pay, not over slow links, nor over those that nobody measured and that may be", () => {
  // Nobody has room for all layers, and sums are too large for replicas.
  const lone = (latency: number, latencyMost = latency, n_stage = 0): PlanRequest => ({
    ...line(latency, { n_embd: 512, n_inner: 1536, batch_size: 1, n_stage }),
    link: () => ({ latency, latencyMost, bytesPerS: 2e7 }),
  });
  const near = planOf(lone(0));
  assert.ok(hasTwoEach(near), near.reasons.join(" "));
  assert.equal(hasTwoEach(planOf(lone(0.05))), false);
  assert.equal(hasTwoEach(planOf(lone(0, 0.1))), false);
  assert.equal(near.stages.length, 8);
  assert.equal(planOf(lone(0, 0, 4)).stages.length, 4, "as many as were asked for");
});

Deno.test("two stages each: over links that nobody has measured only mirrored, and if it pays be they quick or slow", () => {
  const asked = (peers: number, N: number, latencyMost: number): PlanRequest => ({
    ...equalPeers(Array(peers).fill(6.5), {
      ...{ n_layer: 8, n_embd: 64, n_inner: 192, batch_size: 1, gradient_accumulation_steps: N },
      ...{ recompute: "none", shadows: false, n_stage: peers === 6 ? 6 : 0 },
    }),
    ...{ schedule: "dynamic", link: () => ({ latency: 0, latencyMost, bytesPerS: 2e7 }) },
  });
  const either = planOf(asked(4, 16, 0.1));
  assert.ok(hasTwoEach(either) && either.stages.length === 4, either.reasons.join(" "));
  assert.match(either.reasons[1]!, /, whether links that nobody has measured are quick or slow\.$/);
  const known = planOf(asked(6, 4, 0));
  assert.ok(hasTwoEach(known), known.reasons.join(" "));
  assert.match(known.reasons[1]!, /instead of [\d.]+ s\.$/);
  assert.equal(hasTwoEach(planOf(asked(6, 4, 0.1))), true);
  assert.equal(
    hasTwoEach(planOf(asked(6, 4, 0.5))),
    false,
    "few micro-batches fill no slow line from both ends",
  );
});
