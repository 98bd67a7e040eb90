// Runs with the simulator in the loop: noise alone changes nothing; a peer that becomes three times slower costs little for
// long; a peer that joins is used; everything within stated bounds of simulated time and steps.
import assert from "node:assert/strict";
import fc from "fast-check";
import { believedRequest, createBalancer, peersChanged, stepDone } from "./balancer.ts";
import { createUniform } from "./jitter.ts";
import { plan as planFor } from "./planner.ts";
import { heldBy } from "./plan_diff.ts";
import { CostModel } from "./planner_model.ts";
import { standByFor } from "./standby.ts";
import { checkPlan, drawSwarm, equalPeers, hasTwoEach } from "../../test/support/swarm_requests.ts";
import type { Plan, PlanRequest } from "./planner_types.ts";
import { type Rebalancing, secondsAt } from "./rebalance.ts";

interface Scenario {
  request: PlanRequest;
  plan: Plan;
  steps: number;
  seed: number;
  /** What a peer's operations really take in a step, over what it measured. */
  slowdown(peer: string, step: number): number;
  /** Micro-batches vary by up to this share either way. */
  noise: number;
}

interface Outcome {
  plan: Plan;
  changes: { step: number; rebalancing: Rebalancing }[];
  /** Of each step: when it ended, in simulated seconds, and what it took by the true speeds. */
  ends: number[];
  took: number[];
}

/** The request at a step's true speeds. */
function trueRequest({ request, slowdown }: Scenario, step: number): PlanRequest {
  const factors = Object.fromEntries(request.peers.map(({ id }) => [id, slowdown(id, step)]));
  return believedRequest(request, { ...createBalancer(), factors });
}

function run(scenario: Scenario, balancer = createBalancer()): Outcome {
  const { request, steps, seed, noise } = scenario;
  const uniform = createUniform(seed);
  const outcome: Outcome = { plan: scenario.plan, changes: [], ends: [], took: [] };
  let next: { plan: Plan; from: number } | null = null;
  let clock = 0;
  for (let step = 0; step < steps; step++) {
    // A new plan is used from the step boundary after its transfers have arrived.
    if (next !== null && clock >= next.from) [outcome.plan, next] = [next.plan, null];
    const truth = trueRequest(scenario, step);
    const took = secondsAt(truth, outcome.plan);
    clock += took;
    outcome.ends.push(clock);
    outcome.took.push(took);
    if (next !== null) continue;
    const seconds: Record<string, number> = {};
    for (const [peer, exact, count] of microBatchSeconds(truth, outcome.plan)) {
      let sum = 0;
      for (let i = 0; i < count; i++) sum += exact * (1 + noise * (2 * uniform() - 1));
      seconds[peer] = sum / count;
    }
    const believed = new Map(
      microBatchSeconds(believedRequest(request, balancer), outcome.plan).map((
        [peer, exact],
      ) => [peer, exact]),
    );
    const answer = stepDone(balancer, { seconds, nowMs: 1000 * clock, horizonSteps: 1000 }, {
      ...{ request, plan: outcome.plan, believedSeconds: (peer) => believed.get(peer)! },
    });
    balancer = answer.balancer;
    const { rebalancing } = answer;
    if (rebalancing === null || rebalancing.rung === null) continue;
    checkPlan(request, rebalancing.plan, { doubled: hasTwoEach(rebalancing.plan) });
    outcome.changes.push({ step, rebalancing });
    next = { plan: rebalancing.plan, from: clock + rebalancing.diff!.seconds };
  }
  return outcome;
}

/** Each computing peer, what a micro-batch takes it, and how many it has. */
function microBatchSeconds(
  request: PlanRequest,
  plan: Plan,
): [peer: string, seconds: number, count: number][] {
  const model = new CostModel(request);
  const found = new Map<string, [peer: string, seconds: number, count: number]>();
  for (const { replicas, firstLayer, endLayer, recompute } of plan.stages) {
    for (const { peer, microBatches } of replicas) {
      const index = request.peers.findIndex(({ id }) => id === peer);
      // A peer with two stages computes the same micro-batches in both.
      const [, before = 0] = found.get(peer) ?? [];
      const seconds = before + model.seconds(index, firstLayer, endLayer, recompute);
      found.set(peer, [peer, seconds, microBatches.length]);
    }
  }
  return [...found.values()];
}

function swarm(peers: number, seed: number): PlanRequest {
  return drawSwarm({
    ...{ peers, seed, layerSeconds: [0.005, 0.02], memory: [0.8, 4] },
    config: { n_layer: 8, gradient_accumulation_steps: 16, shadows: seed % 2 === 0 },
  });
}

function planOf(request: PlanRequest): Plan {
  const answer = planFor(request);
  assert.ok(answer.kind === "plan");
  return answer;
}

const instance = fc.record({ seed: fc.nat(1_000_000), peers: fc.integer({ min: 2, max: 6 }) });

Deno.test("noise of 20 % on every micro-batch changes nothing in 150 steps", () => {
  fc.assert(
    fc.property(instance, ({ seed, peers }) => {
      const request = swarm(peers, seed);
      const scenario = { request, plan: planOf(request), steps: 150, seed, noise: 0.2, slowdown: () => 1 };
      assert.deepEqual(run(scenario).changes, []);
    }),
    { seed: 81, numRuns: 12 },
  );
});

Deno.test("a peer three times slower: 85 % of the new optimum within 10 steps and 60 simulated seconds, few changes", () => {
  let changed = 0;
  fc.assert(
    fc.property(instance, fc.nat(), ({ seed, peers }, pick) => {
      const request = swarm(peers, seed);
      const plan = planOf(request);
      const computing = plan.stages.flatMap(({ replicas }) => replicas.map(({ peer }) => peer));
      const victim = computing[pick % computing.length]!;
      const from = 5;
      const scenario: Scenario = {
        ...{ request, plan, steps: from + 30, seed, noise: 0.2 },
        slowdown: (peer, step) => peer === victim && step >= from ? 3 : 1,
      };
      const { ends, took, changes } = run(scenario);
      const optimum = planOf(trueRequest(scenario, from)).seconds;
      // Step from + 10 is the first after ten slow ones.
      const late = took.slice(from + 10);
      late.forEach((seconds, i) => {
        assert.ok(
          optimum / seconds >= 0.85,
          `step ${from + 10 + i} takes ${seconds}, the optimum is ${optimum}`,
        );
      });
      assert.ok(ends[from + 9]! - ends[from - 1]! <= 60);
      assert.ok(changes.length <= 2, `${changes.length} changes`);
      changed += Number(changes.length > 0);
    }),
    { seed: 82, numRuns: 30 },
  );
  assert.ok(changed > 12, `only ${changed} runs were changed`);
});

Deno.test("a peer that becomes fast again is believed again", () => {
  const request = swarm(4, 12);
  const plan = planOf(request);
  const victim = plan.stages[0]!.replicas[0]!.peer;
  const scenario: Scenario = {
    ...{ request, plan, steps: 120, seed: 3, noise: 0.2 },
    slowdown: (peer, step) => peer === victim && step >= 5 && step < 40 ? 3 : 1,
  };
  const { took, changes } = run(scenario);
  assert.ok(took.at(-1)! <= took[0]! * 1.15, `${took.at(-1)} after, ${took[0]} before`);
  assert.ok(changes.length >= 1 && changes.length <= 4, `${changes.length} changes`);
});

Deno.test("after layers have moved only what costs no transfer is done for half a minute; the rest is remembered", () => {
  const request = equalPeers([9, 9], {
    n_stage: 2,
    n_layer: 8,
    shadows: false,
    gradient_accumulation_steps: 16,
  });
  const plan = planOf(request);
  const slow = { ...createBalancer(), factors: { id0: 3 }, pending: true, movedAt: 100_000 };
  const context = { request, plan, believedSeconds: () => 1 };
  const early = stepDone(slow, { seconds: {}, nowMs: 129_000, horizonSteps: 1000 }, context);
  assert.equal(early.rebalancing!.rung, null);
  assert.deepEqual(early.rebalancing!.considered.map(({ rung }) => rung), ["shares", "shadow"]);
  assert.ok(early.balancer.pending);
  const later = stepDone(early.balancer, { seconds: {}, nowMs: 131_000, horizonSteps: 1000 }, context);
  assert.equal(later.rebalancing!.rung, "boundary");
  assert.deepEqual([later.balancer.pending, later.balancer.movedAt], [false, 131_000]);
  const quiet = stepDone(later.balancer, { seconds: {}, nowMs: 170_000, horizonSteps: 1000 }, context);
  assert.equal(quiet.rebalancing, null);
});

Deno.test("a peer that joins is used where it shortens a step, and the gain is said", () => {
  const all = swarm(5, 21);
  const before: PlanRequest = { ...all, peers: all.peers.slice(0, 3) };
  const plan = planOf(before);
  const scenario = { request: all, plan, steps: 12, seed: 1, noise: 0.2, slowdown: () => 1 };
  const { changes, took } = run(scenario, peersChanged(createBalancer()));
  assert.equal(changes.length, 1);
  const { rebalancing } = changes[0]!;
  assert.ok(rebalancing.diff!.transfers.some(({ peer }) => !before.peers.some(({ id }) => id === peer)));
  assert.match(rebalancing.reason, /A step is expected to take .* s before, .* s after\. It has paid/);
  assert.ok(took.at(-1)! < took[0]! * 0.9);
});

Deno.test("churn: a peer is lost, the others take over at once, and within 60 simulated seconds are near the new optimum", () => {
  let taken = 0;
  fc.assert(
    fc.property(instance, fc.nat(), ({ seed, peers }, pick) => {
      const request = swarm(peers, seed);
      const plan = planOf(request);
      const holders = [...heldBy(plan).keys()];
      const gone = holders[pick % holders.length]!;
      const left = { ...request, peers: request.peers.filter(({ id }) => id !== gone) };
      const { amended } = standByFor(request, plan, gone);
      const best = planFor(left);
      if (amended === null || best.kind === "infeasible") return;
      taken++;
      const scenario = { request: left, plan: amended, steps: 20, seed, noise: 0.2, slowdown: () => 1 };
      const { took, ends } = run(scenario, peersChanged(createBalancer()));
      const settled = took.findIndex((seconds) => best.seconds / seconds >= 0.85);
      assert.ok(
        settled >= 0 && settled < 10,
        `${took.map((seconds) => seconds.toFixed(2))}, ${best.seconds}`,
      );
      assert.ok(ends[settled]! <= 60, `${ends[settled]} s`);
    }),
    { seed: 83, numRuns: 25 },
  );
  assert.ok(taken > 8, `only ${taken} losses were made good by others`);
});
