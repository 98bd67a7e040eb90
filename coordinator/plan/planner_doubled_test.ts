// Two stages per peer: where the run asks for them, or where quick links and memory make a step shorter by them; never more than
// memory allows, and never over links that nobody has measured.
import assert from "node:assert/strict";
import fc from "fast-check";
import type { RunConfig } from "../../peer/wire/run.ts";
import { checkPlan, drawSwarm, equalPeers, hasTwoEach } from "../../test/support/swarm_requests.ts";
import { plan } from "./planner.ts";
import { publishedSchedules } from "./planner_published.ts";
import type { Plan, PlanRequest } from "./planner_types.ts";

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
  const seen = { two: 0, fewer: 0, recomputing: 0 };
  fc.assert(
    fc.property(drawn, ({ seed, peers, extra, tight, shadows }) => {
      const n_stage = Math.max(4, 2 * (peers - extra));
      const request = drawSwarm({
        ...{ peers, seed, memory: tight ? [0.3, 0.7] : [1, 4] },
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
      assert.equal(answer.stages.length, n_stage);
      const held = new Map<string, number>();
      for (const { peer } of answer.stages.flatMap((stage) => stage.replicas)) {
        held.set(peer, (held.get(peer) ?? 0) + 1);
      }
      assert.ok([...held.values()].every((count) => count === 2), JSON.stringify([...held]));
    }),
    { seed: 17, numRuns: 60 },
  );
  for (const [what, count] of Object.entries(seen)) assert.ok(count >= 3, `only ${count} ${what}`);
});

Deno.test("two stages each: over quick links a line is then near the best published schedule, with one it is not", () => {
  const request = line(0);
  const [one, two] = [4, 8].map((n_stage) => planOf(line(0, { n_stage })));
  const best = Math.min(...publishedSchedules(request, one!).map(({ seconds }) => seconds ?? Infinity));
  assert.ok(
    one!.seconds > 1.1 * best && two!.seconds < 1.06 * best,
    `${one!.seconds} ${two!.seconds} ${best}`,
  );
  const order = two!.stages.map(({ replicas }) => replicas[0]!.peer);
  assert.deepEqual(order, [...order.slice(0, 4), ...order.slice(0, 4).toReversed()], "down and up again");
  assert.match(
    two!.reasons[1]!,
    /^Peers that compute hold two stages each: 1\.\d+ s per step instead of 1\.\d+ s\.$/,
  );
});

Deno.test("two stages each: chosen where they pay, not over slow links, and not over links that were not measured", () => {
  // Nobody has room for all layers, and sums are too large for replicas.
  const lone = (latency: number, latencyMost = latency): PlanRequest => ({
    ...line(latency, { n_embd: 512, n_inner: 1536, batch_size: 1 }),
    link: () => ({ latency, latencyMost, bytesPerS: 2e7 }),
  });
  const near = planOf(lone(0));
  assert.ok(hasTwoEach(near), near.reasons.join(" "));
  assert.equal(hasTwoEach(planOf(lone(0.05))), false);
  assert.equal(hasTwoEach(planOf(lone(0, 0.1))), false);
});
