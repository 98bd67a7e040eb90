// For every peer that holds something there is an answer to its loss: others of its stages take over where there are any, and
// what is left is planned as well as it can be.
import assert from "node:assert/strict";
import fc from "fast-check";
import { heldBy } from "./plan_diff.ts";
import { plan as planFor } from "./planner.ts";
import { checkPlan, drawSwarm, equalPeers, hasTwoEach } from "../../test/support/swarm_requests.ts";
import type { Plan, PlanRequest } from "./planner_types.ts";
import { standByFor, standByPlans } from "./standby.ts";

function planOf(request: PlanRequest): Plan {
  const answer = planFor(request);
  assert.ok(answer.kind === "plan");
  return answer;
}

Deno.test("every single loss has its answer, and each answer is a plan that can be used", () => {
  const drawn = fc.record({
    seed: fc.nat(100_000),
    peers: fc.integer({ min: 2, max: 6 }),
    shadows: fc.boolean(),
    tight: fc.boolean(),
  });
  const seen = { amended: 0, lost: 0, infeasible: 0 };
  fc.assert(
    fc.property(drawn, ({ seed, peers, shadows, tight }) => {
      const request = drawSwarm({
        ...{ peers, seed, memory: tight ? [0.3, 0.6] : [1, 4] },
        config: { n_layer: 5, gradient_accumulation_steps: 8, shadows },
      });
      const plan = planFor(request);
      if (plan.kind === "infeasible") return;
      const standBy = standByPlans(request, plan);
      assert.deepEqual(standBy.map(({ peer }) => peer), [...heldBy(plan).keys()]);
      for (const { peer, amended, replanned, diff } of standBy) {
        const left = { ...request, peers: request.peers.filter(({ id }) => id !== peer) };
        const lone = plan.stages.some(({ replicas, shadows: second }) =>
          [...replicas.map((replica) => replica.peer), ...second].every((holder) => holder === peer)
        );
        seen.lost += Number(lone);
        assert.equal(amended === null, lone);
        if (amended !== null) {
          seen.amended++;
          checkPlan(left, amended, { doubled: true });
          assert.deepEqual(cutOf(amended), cutOf(plan), "the cut stays");
        }
        if (replanned.kind === "infeasible") {
          seen.infeasible++;
          assert.equal(diff, null);
          continue;
        }
        checkPlan(left, replanned, { doubled: hasTwoEach(replanned) });
        assert.equal(diff!.after, replanned.seconds);
        if (amended !== null) assert.equal(diff!.before, amended.seconds);
      }
    }),
    { seed: 101, numRuns: 60 },
  );
  for (const [what, count] of Object.entries(seen)) assert.ok(count > 8, `only ${count} ${what}`);
});

function cutOf(plan: Plan): number[] {
  return plan.stages.map(({ endLayer }) => endLayer);
}

Deno.test("a shadow takes the place of a lone replica, at half speed if it computes another stage", () => {
  const request = equalPeers([9, 9], { n_stage: 2, shadows: true, gradient_accumulation_steps: 8 });
  const plan = planOf(request);
  const { amended } = standByFor(request, plan, "id0");
  assert.deepEqual(amended!.stages.map(({ replicas }) => replicas.map(({ peer }) => peer)), [["id1"], [
    "id1",
  ]]);
  assert.ok(amended!.seconds > 1.5 * plan.seconds, `${amended!.seconds} after ${plan.seconds}`);
});

Deno.test("the last peer's loss leaves nothing", () => {
  const request = equalPeers([9]);
  const { amended, replanned } = standByFor(request, planOf(request), "id0");
  assert.equal(amended, null);
  assert.ok(replanned.kind === "infeasible" && /no peers/.test(replanned.reason));
});

Deno.test("a large swarm's stand-by plan is not slower than going on with the same cut", () => {
  const request = drawSwarm({ peers: 24, seed: 3, memory: [1, 4], config: { n_layer: 12 } });
  const plan = planOf(request);
  const peer = plan.stages[0]!.replicas[0]!.peer;
  const { amended, replanned } = standByFor(request, plan, peer);
  assert.ok(replanned.kind === "plan");
  assert.ok(replanned.seconds <= (amended?.seconds ?? Infinity) + 1e-9);
});
