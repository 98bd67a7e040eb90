// Each rung of the ladder where it is the right one, and none where a change would not pay.
import assert from "node:assert/strict";
import fc from "fast-check";
import { plan as planFor } from "./planner.ts";
import { drawSwarm, equalPeers } from "../../test/support/swarm_requests.ts";
import type { Plan, PlanRequest } from "./planner_types.ts";
import { rebalance, secondsAt } from "./rebalance.ts";

const HORIZON = { horizonSteps: 1000 };

function planOf(request: PlanRequest): Plan {
  const answer = planFor(request);
  assert.ok(answer.kind === "plan");
  return answer;
}

/** The request with one peer's operations taking longer. */
function slowed(request: PlanRequest, id: string, factor: number): PlanRequest {
  const peers = request.peers.map((peer) =>
    peer.id !== id ? peer : {
      ...peer,
      engines: peer.engines.map(({ engine, forward, backward, weightGrad }) => ({
        ...{
          engine,
          forward: forward * factor,
          backward: backward * factor,
          weightGrad: weightGrad * factor,
        },
      })),
    }
  );
  return { ...request, peers };
}

function sharesOf(plan: Plan, peer: string): number {
  return plan.stages.flatMap(({ replicas }) => replicas).find((replica) => replica.peer === peer)
    ?.microBatches.length ?? 0;
}

Deno.test("nothing has changed: the plan stays, and the prediction is its own", () => {
  const request = equalPeers([9, 9, 9], { gradient_accumulation_steps: 16 });
  const plan = planOf(request);
  const answer = rebalance(request, plan, HORIZON);
  assert.equal(answer.rung, null);
  assert.equal(answer.plan, plan);
  assert.ok(Math.abs(answer.now / plan.seconds - 1) < 1e-9);
  assert.match(answer.reason, /^The plan stays: the best change would save \d % of a step\.$/);
});

Deno.test("shares: among replicas a slow one gets fewer micro-batches, and nothing travels", () => {
  const request = equalPeers([9, 9, 9], { n_stage: 1, gradient_accumulation_steps: 18 });
  const plan = planOf(request);
  const answer = rebalance(slowed(request, "id1", 3), plan, HORIZON);
  assert.equal(answer.rung, "shares");
  assert.equal(answer.diff!.bytes, 0);
  assert.deepEqual([sharesOf(plan, "id1"), sharesOf(answer.plan, "id1")], [6, 2]);
  assert.ok(answer.plan.seconds < 0.6 * answer.now);
});

Deno.test("shadow: an idle second holder takes a slow one's place", () => {
  const request = equalPeers([9, 9, 9], { n_stage: 2, shadows: true, gradient_accumulation_steps: 16 });
  const drawn = planOf(request);
  // Two stages of one replica each, both shadowed by the third peer.
  const all = Array.from({ length: 16 }, (_, m) => m);
  const plan: Plan = {
    ...drawn,
    stages: drawn.stages.map((stage, s) => ({
      ...stage,
      firstLayer: 2 * s,
      endLayer: 2 * s + 2,
      replicas: [{ peer: `id${s}`, engine: "wgsl", microBatches: all }],
      shadows: ["id2"],
    })),
  };
  const answer = rebalance(slowed(request, "id0", 3), plan, { ...HORIZON, rungs: ["shares", "shadow"] });
  assert.equal(answer.rung, "shadow");
  assert.ok(answer.plan.stages[0]!.replicas.some(({ peer }) => peer === "id2"));
  assert.equal(answer.diff!.transfers.filter(({ peer }) => peer === "id2").length, 0);
});

Deno.test("boundary: a slow lone holder gives layers to its neighbour", () => {
  const request = equalPeers([9, 9], {
    n_stage: 2,
    n_layer: 8,
    shadows: false,
    gradient_accumulation_steps: 16,
  });
  const plan = planOf(request);
  const answer = rebalance(slowed(request, "id0", 3), plan, {
    ...HORIZON,
    rungs: ["shares", "shadow", "boundary"],
  });
  assert.equal(answer.rung, "boundary");
  const layers = (of: Plan) => {
    const stage = of.stages.find(({ replicas }) => replicas[0]!.peer === "id0")!;
    return stage.endLayer - stage.firstLayer;
  };
  assert.ok(layers(answer.plan) < layers(plan));
  assert.ok(answer.diff!.bytes > 0);
  assert.match(answer.reason, /^Layers move to a neighbour\. A step is expected/);
});

Deno.test("migrate: a spare that joined takes work, and the diff has its transfer", () => {
  const request = equalPeers([9, 9, 9], {
    n_stage: 2,
    n_layer: 8,
    shadows: false,
    gradient_accumulation_steps: 16,
  });
  const two = { ...request, peers: request.peers.slice(0, 2) };
  const answer = rebalance(request, planOf(two), {
    ...HORIZON,
    rungs: ["shares", "shadow", "boundary", "migrate"],
  });
  assert.equal(answer.rung, "migrate");
  assert.ok(sharesOf(answer.plan, "id2") > 0);
  assert.ok(answer.diff!.transfers.some(({ peer }) => peer === "id2"));
});

Deno.test("a move that is not earned back within the horizon is not made", () => {
  const request = equalPeers([9, 9], {
    n_stage: 2,
    n_layer: 8,
    shadows: false,
    gradient_accumulation_steps: 16,
  });
  // So slow a link that a layer takes minutes.
  const narrow: PlanRequest = {
    ...slowed(request, "id0", 1.6),
    link: () => ({ latency: 0.01, bytesPerS: 2e5 }),
  };
  const plan = planOf({ ...request, link: narrow.link });
  const brief = rebalance(narrow, plan, { horizonSteps: 5 });
  assert.ok(brief.rung === null || brief.rung === "shares", `${brief.rung}`);
  if (brief.rung === null) {
    assert.match(brief.reason, /does not earn its transfer back|the best change would save/);
  }
  const long = rebalance(narrow, plan, { horizonSteps: 100_000 });
  assert.ok(long.rung !== null && long.diff!.bytes > 0);
});

Deno.test("the chosen rung is the cheapest that is nearly as good as any that pays", () => {
  const drawn = fc.record({ seed: fc.nat(100_000), peers: fc.integer({ min: 2, max: 6 }), pick: fc.nat() });
  let spared = 0;
  fc.assert(
    fc.property(drawn, ({ seed, peers, pick }) => {
      const request = drawSwarm({ peers, seed, memory: [1, 4], config: { n_layer: 8, shadows: true } });
      const plan = planOf(request);
      const computing = plan.stages.flatMap(({ replicas }) => replicas.map(({ peer }) => peer));
      const answer = rebalance(slowed(request, computing[pick % computing.length]!, 3), plan, HORIZON);
      const { now, considered, rung } = answer;
      const worth = considered.map((it) => it.transferSeconds + HORIZON.horizonSteps * it.seconds);
      const pays = considered.map((it) =>
        it.seconds <= 0.9 * now && (now - it.seconds) * HORIZON.horizonSteps >= 2 * it.transferSeconds
      );
      const chosen = considered.findIndex((it) => it.rung === rung);
      if (chosen < 0) return assert.ok(!pays.includes(true));
      assert.ok(pays[chosen]);
      const best = Math.min(...worth.filter((_, i) => pays[i]));
      assert.ok(0.95 * worth[chosen]! <= best, "another rung is worth more");
      for (let i = 0; i < chosen; i++) {
        if (pays[i]) assert.ok(0.95 * worth[i]! > best, "a cheaper rung would have done");
      }
      spared += Number(best < worth[chosen]!);
    }),
    { seed: 111, numRuns: 25 },
  );
  assert.ok(spared > 2, `only ${spared} slightly better rungs were left alone`);
});

Deno.test("a plan whose peer is gone takes forever as it is, and anything that fits is better", () => {
  const request = equalPeers([9, 9, 9], { n_stage: 2, shadows: false, gradient_accumulation_steps: 8 });
  const plan = planOf(request);
  const lone = plan.stages.find(({ replicas }) => replicas.length === 1)!.replicas[0]!.peer;
  const left = { ...request, peers: request.peers.filter(({ id }) => id !== lone) };
  assert.equal(secondsAt(left, plan), Infinity);
  const answer = rebalance(left, plan, HORIZON);
  assert.equal(answer.now, Infinity);
  assert.equal(answer.rung, "replan");
});
