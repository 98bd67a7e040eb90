// The choice of a schedule: which one is taken on which peers, links and memory, what is said about the others, and, as a property,
// that it is never predicted to be slower than the dynamic order and always fits.
import assert from "node:assert/strict";
import fc from "fast-check";
import { readConfig } from "../../peer/model/config.ts";
import { specOf } from "../../peer/model/layout.ts";
import { isPlaced } from "../../peer/schedule/catalogue.ts";
import { placedOf } from "../../peer/schedule/placed.ts";
import { plan as planAnew } from "../plan/planner.ts";
import type { Plan } from "../plan/planner_types.ts";
import { bestSchedule, SCHEDULE_GAIN } from "./auto_schedule.ts";
import { createFit, roomBeside, roomOf } from "./fit.ts";
import { requestOf } from "./plan_request.ts";
import { planKey } from "./planning.ts";
import { type PeerRecord, zeroCounters } from "./run_state.ts";
import { type Planned, planView } from "./view_builder.ts";

interface Swarm {
  /** Milliseconds per block of each peer. */
  speeds: number[];
  /** Round trip of every link; 0 = no link was measured. */
  rttMs?: number;
  memory?: number;
  changes?: Partial<PeerRecord>[];
  config?: Record<string, unknown>;
}

function requestFor({ speeds, rttMs = 0.1, memory = 1e10, changes = [], config: keys = {} }: Swarm) {
  const config = readConfig({ n_layer: 8, gradient_accumulation_steps: 6, schedule: "auto", ...keys });
  const ids = speeds.map((_, i) => `p${i}`);
  const link = { rttMs, upBytesPerS: 1e8, downBytesPerS: 1e8, open: true, path: "direct" as const };
  const peers = speeds.map((blockMs, i): PeerRecord => ({
    ...{ id: ids[i]!, runtime: "deno", adapter: "", engine: "wgsl", name: "", joinedAt: i, heardAt: 0 },
    ...{ ...zeroCounters(), paused: false, leaving: false, hidden: false, blockMs, memoryBytes: memory },
    links: Object.fromEntries(ids.filter((id) => id !== ids[i] && rttMs > 0).map((id) => [id, link])),
    ...changes[i],
  }));
  return { gen: 3, baseStep: 5, spec: specOf(config, 20), config, peers };
}

function planned(swarm: Swarm): Planned & { plan: Plan } {
  const found = planView(requestFor(swarm));
  assert.ok(found.view !== null && found.plan !== undefined, found.missing ?? "the planner did not plan");
  return found as Planned & { plan: Plan };
}

/** Two alike, a stage each, so that the dynamic order has a drain to wait in. */
const LINE: Swarm = { speeds: [30, 30], config: { n_stage: 2 } };

Deno.test("auto: without latency DualPipe is taken where peers have one stage otherwise, and peers can follow its order", () => {
  const { view, plan } = planned(LINE);
  assert.equal(view!.schedule, "dualpipe");
  assert.notEqual(placedOf(view!), null);
  assert.deepEqual([view!.gen, view!.cut, view!.baseStep], [3, 3, 5]);
  const { seconds } = plan.schedules.find(({ schedule }) => schedule === "dynamic")!;
  assert.ok(plan.seconds <= SCHEDULE_GAIN * seconds, `${plan.seconds} s, dynamic ${seconds} s`);
  assert.match(
    plan.reasons[0]!,
    /^Schedule dualpipe: 0\.\d+ s per step; .*dynamic 0\.\d+ s.*, 1f1b 0\.\d+ s/,
  );
  assert.equal(plan.schedules.length, 7, "neither 2bw, nor those that cannot be had");
  assert.ok(plan.schedules.every(({ schedule }) => schedule !== "2bw"));
  assert.deepEqual(plan.spares, []);
  for (const stage of plan.stages) assert.ok(stage.bytes > 0 && stage.replicas[0]!.engine === "wgsl");
});

Deno.test("auto: at 50 ms one way the dynamic order is taken, and the others' seconds are told", () => {
  const { view, plan } = planned({
    speeds: [30, 30, 30, 30],
    rttMs: 100,
    config: { n_stage: 4, gradient_accumulation_steps: 8 },
  });
  assert.equal(view!.schedule, "dynamic");
  assert.match(plan.reasons[0]!, /^Schedule dynamic: [\d.]+ s per step; .*dualpipe [\d.]+ s/);
});

Deno.test("auto: two holders of a stage pay for the way of their sums, where one would have none", () => {
  // Chimera's two pipelines wait for one another less than one pipeline does.
  const config = { n_stage: 2, gradient_accumulation_steps: 8, shadows: false };
  const gain = (rttMs: number) => {
    const { schedules } = planned({ ...LINE, rttMs, config }).plan;
    const of = (name: string) => schedules.find(({ schedule }) => schedule === name)!.seconds;
    return { alone: of("dynamic"), both: of("chimera-doubling") };
  };
  const [near, far] = [gain(0.1), gain(100)];
  assert.ok(near.both < near.alone);
  assert.ok(far.both - near.both > 0.0499, `${far.both} s, ${near.both} s`);
  // A shadow hears of the sums over the same way.
  const kept = planned({ ...LINE, rttMs: 100, config: { ...config, shadows: true } }).plan.schedules;
  const shadowed = kept.find(({ schedule }) => schedule === "chimera-doubling")!.seconds;
  assert.ok(Math.abs(far.both - shadowed - 0.05) < 1e-3, `${shadowed} s`);
});

Deno.test("auto: memory for one stage each, not for two, leaves the dynamic order, and the refusal names the peer", () => {
  const small = { block_size: 16, batch_size: 1, shadows: false, recompute: "none" };
  const config = { ...small, n_stage: 2, n_inner: 256 };
  const roomy = planned({ ...LINE, config }).plan;
  const alone = planned({ ...LINE, config: { ...config, schedule: "dynamic" } }).plan;
  const most = ({ stages }: Plan) => Math.max(...stages.map(({ bytes }) => bytes));
  assert.ok(roomy.schedule === "dualpipe" && most(alone) < 1.3 * most(roomy));
  const share = roomOf(requestFor({ ...LINE, memory: 1e9 }).peers[0]!) / 1e9;
  const { view, plan } = planned({ ...LINE, memory: 1.05 * most(alone) / share, config });
  assert.equal(view!.schedule, "dynamic");
  assert.match(
    plan.reasons.join("\n"),
    /Not here: .*dualpipe: p\d has too little memory for stages \d and \d of 2/,
  );
});

Deno.test("auto: less than 3 % is no reason, and said", () => {
  const { view, plan } = planned({ ...LINE, config: { n_stage: 2, gradient_accumulation_steps: 30 } });
  assert.equal(view!.schedule, "dynamic");
  assert.match(
    plan.reasons[1]!,
    /^dualpipe would be \d\.\d % faster, and an order that is less patient must be 3 %\.$/,
  );
});

Deno.test("auto: nothing else is tried on one peer, for pins, over links that nobody measured, or for a crowd", () => {
  const first = (swarm: Swarm) => planned(swarm).plan.reasons[0];
  assert.equal(first({ speeds: [30] }), "Schedule dynamic: on one peer no order differs from any other.");
  assert.equal(
    first({ ...LINE, changes: [{}, { pin: 0, name: "tab 2" }] }),
    "Schedule dynamic: the others place their stages themselves, and peers are pinned (tab 2).",
  );
  assert.equal(
    first({ ...LINE, rttMs: 0 }),
    "Schedule dynamic: the others bear no surprises, and no link was measured yet of some peers (p0, p1).",
  );
  assert.equal(
    first({ speeds: Array(33).fill(30) }),
    "Schedule dynamic: the others are not tried for more than 32 peers.",
  );
});

Deno.test("auto: what the simulator has no time for is not tried, and the run's own schedule is nobody's choice", () => {
  const of = requestFor(LINE);
  const request = requestOf(of);
  const dynamic = planAnew(request);
  const short = bestSchedule(dynamic, { ...of, request, simulated: 2 * 6 * 3 * 2 }) as Plan;
  assert.equal(short.schedule, "dualpipe");
  assert.match(short.reasons.join("\n"), /zb-h2 has too long an order to try it/);
  const config = { ...of.config, schedule: "dynamic" as const };
  assert.equal(bestSchedule(dynamic, { ...of, config, request }), dynamic);
});

Deno.test("auto: a fixed order waits for no tab in the background, and for nobody without a measured link", () => {
  // It takes two of the three, the quick one among them if it may.
  const secondsWith = (speeds: number[], change: Partial<PeerRecord>) =>
    planned({ speeds, config: { n_stage: 2 }, changes: [change] }).plan.schedules
      .find(({ schedule }) => schedule === "zb-h2")!.seconds;
  const [all, others] = [secondsWith([10, 30, 30], {}), secondsWith([30, 30], {})];
  assert.ok(others > 1.2 * all);
  for (const change of [{ hidden: true }, { links: {} }]) {
    assert.ok(Math.abs(secondsWith([10, 30, 30], change) - others) < 1e-9);
  }
});

Deno.test("auto: steps on a GPU do not take an order's slots away", () => {
  const changes = Array(2).fill({ gpuOptimizer: true });
  const config = {
    n_stage: 4,
    optimizer: "auto",
    shadows: false,
    schedule: "breadth-first",
    recompute: "none",
  };
  const of = (memory: number) => planView(requestFor({ ...LINE, memory, changes, config })).view!;
  const roomy = of(1e10);
  assert.ok(roomy.stages.every((stage) => stage.optimizer === "gpu"));
  const { spec, config: full, peers } = requestFor({ ...LINE, changes, config });
  const fit = createFit(spec, full);
  const used = Math.max(...peers.map((peer) => roomOf(peer) - roomBeside(fit, roomy.stages, peer)));
  const share = roomOf(peers[0]!) / peers[0]!.memoryBytes;
  let exact = 0;
  for (let part = 0.8; part < 1.01; part += 0.02) {
    const view = of(part * used / share);
    if (view.schedule !== "breadth-first") continue;
    assert.notEqual(placedOf(view), null, `${part}`);
    exact += Number(view.stages.every((stage) => stage.optimizer === undefined));
  }
  assert.ok(exact > 0, "memory was never short");
});

Deno.test("auto: an answer that was worked out beforehand is for one schedule, its pairs and codecs", () => {
  const { config, peers } = requestFor(LINE);
  const changed = [{ schedule: "dynamic" as const }, { chimera_pairs: 2 }, {
    codec_forward: "raw32" as const,
  }];
  const keys = [{}, ...changed].map((change) => planKey({ config: { ...config, ...change } }, peers));
  assert.equal(new Set(keys).size, keys.length);
});

Deno.test("auto: more stages than the planner places are cut as for the dynamic order", () => {
  const { view } = planView(requestFor({ speeds: [30, 30], config: { n_stage: 6 } }));
  assert.equal(view!.schedule, "dynamic");
  assert.equal(view!.stages.length, 6);
  const { plan } = planned({ ...LINE, config: { n_stage: 4 } });
  assert.match(plan.reasons.join("\n"), /Not here: .*; dualpipe on 2 peers has 2 stages, n_stage is 4;/);
});

Deno.test("auto: whatever is chosen is not predicted to be slower than the dynamic order, fits, and can be followed", () => {
  const swarms = fc.record({
    speeds: fc.array(fc.integer({ min: 10, max: 40 }), { minLength: 1, maxLength: 7 }),
    rttMs: fc.constantFrom(0.1, 0.1, 4, 60),
    memory: fc.constantFrom(1.2e7, 3e7, 1e9),
    n_layer: fc.integer({ min: 2, max: 9 }),
    gradient_accumulation_steps: fc.integer({ min: 1, max: 12 }),
    n_stage: fc.constantFrom(0, 2, 4, 6),
    chimera_pairs: fc.constantFrom(1, 2),
    shadows: fc.boolean(),
  });
  const chosen = new Map<string, number>();
  fc.assert(
    fc.property(swarms, ({ speeds, rttMs, memory, ...keys }) => {
      const n_stage = Math.min(keys.n_stage, keys.n_layer);
      const request = requestFor({ speeds, rttMs, memory, config: { ...keys, n_stage } });
      const { view, plan } = planView(request) as Planned & { plan?: Plan };
      if (view === null) return;
      chosen.set(view.schedule, (chosen.get(view.schedule) ?? 0) + 1);
      assert.equal(isPlaced(view.schedule), placedOf(view) !== null);
      const fit = createFit(request.spec, request.config);
      for (const peer of request.peers) assert.ok(roomBeside(fit, view.stages, peer) >= 0, peer.id);
      if (plan === undefined) return assert.equal(view.schedule, "dynamic");
      const asked = requestOf(request);
      const dynamic = planAnew(asked) as Plan;
      assert.ok(plan.seconds <= dynamic.seconds + 1e-12, `${plan.seconds} s, dynamic ${dynamic.seconds} s`);
      assert.match(plan.reasons[0]!, new RegExp(`^Schedule ${view.schedule}: `));
      // Told beforehand, the same plan is the same view.
      assert.deepEqual(planView({ ...request, prepared: plan }).view, view);
    }),
    { seed: 5, numRuns: 120 },
  );
  assert.ok(chosen.size > 2 && chosen.get("dynamic")! > 20, JSON.stringify([...chosen]));
});
