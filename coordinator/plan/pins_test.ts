// Pins on finished plans: the wish is followed where memory allows it, everything else stays covered, and what cannot be is said.
import assert from "node:assert/strict";
import fc from "fast-check";
import { checkPlan, drawSwarm, equalPeers } from "../../test/support/swarm_requests.ts";
import { withPins } from "./pins.ts";
import { plan as planFor } from "./planner.ts";
import type { Plan, PlanRequest } from "./planner_types.ts";

function planOf(request: PlanRequest): Plan {
  const answer = planFor(request);
  assert.ok(answer.kind === "plan");
  return answer;
}

function stageOf(plan: Plan, peer: string): number {
  return plan.stages.findIndex(({ replicas }) => replicas.some((replica) => replica.peer === peer));
}

Deno.test("pins: a peer and whoever computes the stage change places, and the reason is told once", () => {
  const request = equalPeers([9, 9, 9], { n_stage: 3, gradient_accumulation_steps: 6 });
  const plan = planOf(request);
  const [first] = plan.stages[0]!.replicas;
  const pins = [{ peer: first!.peer, stage: 2 }];
  const next = withPins(request, plan, pins);
  assert.deepEqual([stageOf(plan, first!.peer), stageOf(next, first!.peer)], [0, 2]);
  assert.equal(stageOf(next, plan.stages[2]!.replicas[0]!.peer), 0);
  assert.equal(stageOf(next, plan.stages[1]!.replicas[0]!.peer), 1);
  assert.equal(
    next.reasons.at(-1),
    `${request.peers.find((it) => it.id === first!.peer)!.name ?? first!.peer} ` +
      "computes stage 3: it is pinned there.",
  );
  assert.deepEqual(withPins(request, next, pins), next);
  assert.deepEqual(withPins(request, plan, [{ peer: "nobody", stage: 0 }]), plan);
  const none = withPins(request, plan, [{ peer: first!.peer, stage: 7 }]);
  assert.deepEqual([none.stages, /cannot compute stage 8.* the plan has 3/.test(none.reasons.at(-1)!)], [
    plan.stages,
    true,
  ]);
});

Deno.test("pins: two wishes do not undo each other", () => {
  const request = equalPeers([9, 9, 9], { n_stage: 3, gradient_accumulation_steps: 6 });
  const plan = planOf(request);
  const peers = plan.stages.map((stage) => stage.replicas[0]!.peer);
  const next = withPins(request, plan, [{ peer: peers[0]!, stage: 1 }, { peer: peers[1]!, stage: 1 }]);
  assert.equal(stageOf(next, peers[0]!), 1);
  assert.match(next.reasons.at(-1)!, /cannot compute stage 2, where it is pinned: others are pinned there/);
});

Deno.test("pins: a stage that the peer has no room for stays where it is", () => {
  const request = equalPeers([9, 9], { n_stage: 2, gradient_accumulation_steps: 4 });
  const plan = planOf(request);
  const [small, large] = plan.stages.map((stage) => stage.replicas[0]!.peer);
  const memory: PlanRequest["memory"] = (stage) => stage.head ? 100 : 10;
  const peers = request.peers.map((peer) => ({ ...peer, memoryBytes: peer.id === small ? 99 : 1_000 }));
  const next = withPins({ ...request, memory, peers }, plan, [{ peer: small!, stage: 1 }]);
  assert.deepEqual([stageOf(next, small!), stageOf(next, large!)], [0, 1]);
  assert.match(next.reasons.at(-1)!, /has too little memory/);
});

Deno.test("pins: whatever is wished, the plan is as good as before: all is covered, and nobody's memory is exceeded", () => {
  let followed = 0;
  fc.assert(
    fc.property(fc.integer({ min: 2, max: 7 }), fc.nat(4_000), fc.nat(50), (peers, seed, wish) => {
      const request = drawSwarm({ peers, seed, config: { n_layer: 6, gradient_accumulation_steps: 8 } });
      const plan = planFor(request);
      if (plan.kind === "infeasible") return;
      const { id } = request.peers[wish % peers]!;
      const stage = wish % plan.stages.length;
      const next = withPins(request, plan, [{ peer: id, stage }]);
      checkPlan(request, next);
      const there = next.stages[stage]!.replicas.some((replica) => replica.peer === id);
      assert.equal(/cannot compute/.test(next.reasons.at(-1)!), !there);
      if (there && stageOf(plan, id) !== stage) followed++;
    }),
    { seed: 20_261, numRuns: 24 },
  );
  assert.ok(followed >= 3, `only ${followed} wishes changed anything`);
});
