// The planner's promises on random swarms: what it plans fits, covers everything once and is what the search and the simulator
// said; what it refuses cannot be done. Small swarms against the exact optimum, large ones against a bound.
import assert from "node:assert/strict";
import fc from "fast-check";
import { stageLayout, wholeModel } from "../../peer/model/layout.ts";
import type { ScheduleId } from "../../peer/wire/run.ts";
import { plan } from "./planner.ts";
import {
  checkPlan,
  drawSwarm,
  equalPeers,
  hasTwoEach,
  type SwarmOptions,
} from "../../test/support/swarm_requests.ts";
import type { Infeasible, Plan, PlannerPeer, PlanRequest } from "./planner_types.ts";

const swarm = fc.record({
  seed: fc.nat(),
  peers: fc.integer({ min: 1, max: 9 }),
  layers: fc.integer({ min: 1, max: 8 }),
  N: fc.constantFrom(1, 2, 8, 13),
  n_stage: fc.constantFrom(0, 0, 0, 2, 4),
  shadows: fc.boolean(),
  tight: fc.boolean(),
  schedule: fc.constantFrom("auto" as const, "dynamic" as const, "1f1b" as const, "gpipe" as const),
});

interface Drawn {
  seed: number;
  peers: number;
  layers: number;
  N: number;
  n_stage: number;
  shadows: boolean;
  tight: boolean;
  schedule: "auto" | ScheduleId;
}

function request(of: Drawn): PlanRequest {
  const { seed, peers, layers, N, n_stage, shadows, tight, schedule } = of;
  const options: SwarmOptions = {
    ...{ peers, seed, memory: tight ? [0.15, 0.6] : [0.5, 4] },
    config: { n_layer: layers, gradient_accumulation_steps: N, n_stage: Math.min(n_stage, layers), shadows },
  };
  return { ...drawSwarm(options), schedule, codecs: "auto" };
}

Deno.test("every plan covers layers and micro-batches once and keeps within each memory; every refusal is right", () => {
  const seen = { plans: 0, refusals: 0, shadows: 0, replicas: 0, recomputing: 0 };
  fc.assert(
    fc.property(swarm, (of) => {
      const asked = request(of);
      const answer = plan(asked);
      if (answer.kind === "infeasible") {
        seen.refusals++;
        return checkRefusal(asked, answer);
      }
      seen.plans++;
      seen.shadows += Number(answer.stages.some((stage) => stage.shadows.length > 0));
      seen.replicas += Number(answer.stages.some((stage) => stage.replicas.length > 1));
      seen.recomputing += Number(answer.stages.some((stage) => stage.recompute !== "none"));
      checkPlan(asked, answer, { doubled: hasTwoEach(answer) });
    }),
    { seed: 71, numRuns: 250 },
  );
  for (const [what, count] of Object.entries(seen)) assert.ok(count > 15, `only ${count} ${what}`);
});

/** No line of single peers fits, with one slot and the leanest mode; tried in every order. */
function checkRefusal(
  { peers, spec, config, memory }: PlanRequest,
  { reason, missingBytes }: Infeasible,
): void {
  assert.match(reason, /missing/);
  assert.ok(missingBytes > 0);
  if (peers.length > 6) return;
  const most = config.n_stage > 0 ? config.n_stage : peers.length;
  const fits = (used: readonly number[], first: number): boolean =>
    first === spec.n_layer ||
    (used.length < most && peers.some((peer, i) => {
      if (used.includes(i)) return false;
      for (let end = first + 1; end <= spec.n_layer; end++) {
        const ends = { embed: first === 0, head: end === spec.n_layer };
        const stage = { index: 0, firstLayer: first, endLayer: end, ...ends };
        if (memory(stage, { slots: 1, recompute: "block" }, "wgsl") > peer.memoryBytes) break;
        if (fits([...used, i], end)) return true;
      }
      return false;
    }));
  assert.ok(!fits([], 0), "a pipeline fits, but the planner refused");
}

Deno.test("the same request gives the same plan", () => {
  const asked = () => request({ ...FIXED, seed: 5, peers: 9, layers: 8 });
  assert.deepEqual(plan(asked()), plan(asked()));
});

const FIXED = { N: 8, n_stage: 0, shadows: true, tight: false, schedule: "auto" as const };

function planOf(asked: PlanRequest): Plan {
  const answer = plan(asked);
  assert.ok(answer.kind === "plan", answer.kind === "infeasible" ? answer.reason : "");
  return answer;
}

Deno.test("a peer whose memory is the limit is named", () => {
  const { reasons, stages } = planOf(
    equalPeers([3, 1], { gradient_accumulation_steps: 8, recompute: "none" }),
  );
  const small = stages.find(({ replicas }) => replicas[0]!.peer === "id1")!;
  assert.equal(small.endLayer - small.firstLayer, 1);
  assert.ok(reasons.includes("tab 2 holds 1 layer: its memory is the limit."), reasons.join("\n"));
});

Deno.test("what does not fit is a sentence that says how much is missing", () => {
  const lone = plan(equalPeers([2], { recompute: "none" }));
  assert.ok(lone.kind === "infeasible");
  assert.match(
    lone.reason,
    /^The model does not fit: in one stage it takes about \d+ MB, .* \d+ MB are missing\.$/,
  );
  const short = plan(equalPeers([1, 1, 1], { recompute: "none" }));
  assert.ok(short.kind === "infeasible");
  assert.match(
    short.reason,
    /^The model's 4 layers do not fit: 3 peers can hold 3 of them; room for 1 more, about/,
  );
  const none = plan(equalPeers([0, 0], { recompute: "none" }));
  assert.ok(none.kind === "infeasible");
  assert.match(none.reason, /^The model does not fit: its two ends take about/);
  const nobody = plan({ ...equalPeers([1]), peers: [] });
  assert.ok(nobody.kind === "infeasible" && /^There are no peers/.test(nobody.reason));
});

Deno.test("a slow link takes the coarser codec, a quick one the finer", () => {
  const asked: PlanRequest = { ...equalPeers([2, 2], { n_stage: 2 }), codecs: "auto" };
  const codecs = (bytesPerS: number) => planOf({ ...asked, link: () => ({ latency: 0, bytesPerS }) }).codecs;
  assert.deepEqual(codecs(1e9), [{ forward: "f16s", backward: "f16s" }]);
  assert.deepEqual(codecs(2e5), [{ forward: "i8b64", backward: "i8b64" }]);
});

Deno.test("each boundary and direction has its own codec, and the sentence gives the slowest link's rate", () => {
  const config = { n_stage: 3, n_layer: 3, gradient_accumulation_steps: 8 };
  const asked: PlanRequest = { ...equalPeers([2, 2, 2], config), codecs: "auto" };
  // id0 and id2 do not reach one another, so id1 is in the middle; what one of id1 and id2 sends the other is slow.
  for (const sender of ["id1", "id2"]) {
    const link: PlanRequest["link"] = (from, to) => {
      if (from !== "id1" && to !== "id1") return null;
      return { latency: 0.01, bytesPerS: from === sender && to !== "id0" ? 2e5 : 1e9 };
    };
    const { stages, codecs, reasons } = planOf({ ...asked, link });
    const slow = stages[0]!.replicas[0]!.peer === "id2" ? 0 : 1;
    const activations = (slow === 0) === (sender === "id2");
    const coarse = activations
      ? { forward: "i8b64", backward: "f16s" }
      : { forward: "f16s", backward: "i8b64" };
    assert.deepEqual([codecs[slow], codecs[1 - slow]], [coarse, { forward: "f16s", backward: "f16s" }]);
    assert.deepEqual(
      reasons.filter((reason) => reason.startsWith("Boundary")).toSorted(),
      [
        `Boundary ${2 - slow}: f16s, because its slowest link has room at 1000 MB/s.`,
        `Boundary ${
          1 + slow
        }: ${coarse.forward} forward and ${coarse.backward} backward, because its slowest ` +
        "link carries 0.20 MB/s.",
      ].toSorted(),
    );
  }
});

Deno.test("codecs that leave nothing to choose are not spoken of", () => {
  const asked = equalPeers([2, 2], { n_stage: 2, codec_forward: "raw32", codec_backward: "f16s" });
  const { codecs, reasons } = planOf({ ...asked, codecs: "auto" });
  assert.deepEqual(codecs, [{ forward: "raw32", backward: "f16s" }]);
  assert.deepEqual(reasons.filter((reason) => reason.startsWith("Boundary")), []);
});

Deno.test("latency turns the choice of schedule to the dynamic order, and the sentence gives the seconds", () => {
  const asked = equalPeers([4, 4, 4, 4], { n_stage: 4, gradient_accumulation_steps: 16 });
  const far = planOf({ ...asked, schedule: "auto", link: () => ({ latency: 0.1, bytesPerS: 1e8 }) });
  assert.equal(far.schedule, "dynamic");
  const seconds = new Map(far.schedules.map((tried) => [tried.schedule, tried.seconds]));
  assert.ok(seconds.get("dynamic")! * 1.5 < seconds.get("1f1b")!);
  assert.ok(
    far.reasons.some((line) => /^Schedule dynamic: .* per step; 1f1b .* s, gpipe .* s\.$/.test(line)),
  );
});

Deno.test("where memory holds two micro-batches, a fixed order may be faster, and is then chosen", () => {
  const config = { n_layer: 4, n_embd: 256, gradient_accumulation_steps: 16 };
  const asked = drawSwarm({ peers: 2, seed: 69, config: { ...config, n_stage: 2, recompute: "none" } });
  const { schedule, schedules } = planOf({ ...asked, schedule: "auto" });
  const seconds = new Map(schedules.map((tried) => [tried.schedule, tried.seconds]));
  assert.equal(schedule, "1f1b");
  assert.ok(seconds.get("1f1b")! < 0.97 * seconds.get("dynamic")!);
  assert.equal(planOf({ ...asked, schedule: "dynamic" }).schedule, "dynamic");
});

Deno.test("memory that is left becomes slots, where the dynamic order gains from them", () => {
  const config = { n_layer: 3, n_stage: 3, gradient_accumulation_steps: 32, shadows: false };
  const asked = equalPeers([40, 40, 40], config);
  const inflight = (latency: number) =>
    planOf({ ...asked, link: () => ({ latency, bytesPerS: 1e8 }) }).stages.map((stage) => stage.inflight);
  assert.deepEqual(inflight(0.5), [32, 32, 32]);
  // Without latency nothing is gained, so the memory stays the owner's.
  assert.ok(Math.max(...inflight(0)) <= 8, `${inflight(0)}`);
  // A link that was not measured may be slow, and what a cut has too few of it lacks for good.
  const unknown = planOf({ ...asked, link: () => ({ latency: 0, latencyMost: 0.5, bytesPerS: 1e8 }) });
  assert.deepEqual(unknown.stages.map((stage) => stage.inflight), [32, 32, 32]);
});

Deno.test("peers that cannot reach one another are not neighbours", () => {
  const asked = equalPeers([4, 4, 4]);
  const cut = (from: string, to: string) => `${from}${to}`.includes("id0") && `${from}${to}`.includes("id1");
  const link: PlanRequest["link"] = (from, to) => cut(from, to) ? null : { latency: 0.01, bytesPerS: 5e6 };
  const { stages } = planOf({ ...asked, link });
  for (let s = 0; s + 1 < stages.length; s++) {
    for (const a of stages[s]!.replicas) {
      for (const b of stages[s + 1]!.replicas) assert.ok(!cut(a.peer, b.peer), `${a.peer} and ${b.peer}`);
    }
  }
});

Deno.test("peers that reach nobody make a plan impossible, unless one of them is enough", () => {
  const apart = plan({ ...equalPeers([2, 2, 2], { recompute: "none" }), link: () => null });
  assert.ok(apart.kind === "infeasible");
  assert.match(apart.reason, /do not reach one another: 3 of 3 links are missing/);
  assert.equal(planOf({ ...equalPeers([5, 5]), link: () => null }).stages.length, 1);
});

Deno.test("the exchange of sums and the commit count", () => {
  const asked = equalPeers([5, 5], { n_stage: 1, reduce: "raw32" });
  const rate = (bytesPerS: number) => ({ ...asked, link: () => ({ latency: 0, bytesPerS }) });
  const bytes = stageLayout(asked.spec, wholeModel(asked.spec)).size * 4;
  const [quick, slow] = [planOf(rate(1e12)), planOf(rate(1e7))];
  assert.equal(quick.stages[0]!.replicas.length, 2);
  assert.ok(Math.abs(slow.seconds - quick.seconds - bytes / 1e7) < 1e-3);
  assert.ok(Math.abs(planOf({ ...rate(1e12), commitSeconds: 0.5 }).seconds - quick.seconds - 0.5) < 1e-9);
});

Deno.test("the fastest engine of a peer is used, and a tab in the background counts half", () => {
  const asked = equalPeers([4, 4], { n_stage: 1 });
  const [first, second] = asked.peers as [PlannerPeer, PlannerPeer];
  const slow = { engine: "tfjs-wasm", forward: 1, backward: 1, weightGrad: 1 };
  const peers = [{ ...first, engines: [slow, ...first.engines] }, { ...second, hidden: true }];
  const { stages } = planOf({ ...asked, peers });
  assert.deepEqual(stages[0]!.replicas.map(({ engine }) => engine), ["wgsl", "wgsl"]);
  const shares = new Map(stages[0]!.replicas.map(({ peer, microBatches }) => [peer, microBatches.length]));
  assert.ok(shares.get("id0")! >= 2 * shares.get("id1")! - 1);
});

Deno.test("a batch size is suggested where a micro-batch's fixed cost outweighs its transfer", () => {
  const asked = equalPeers([4, 4], { n_stage: 2, batch_size: 2, gradient_accumulation_steps: 16 });
  const engines = [{ engine: "wgsl", forward: 0.001, backward: 0.001, weightGrad: 0.001, overhead: 0.02 }];
  const peers = asked.peers.map((peer) => ({ ...peer, engines }));
  const suggestion = planOf({ ...asked, peers, link: () => ({ latency: 0, bytesPerS: 1e8 }) })
    .batchSuggestion!;
  assert.ok(suggestion.batchSize > 4, `${suggestion.batchSize}`);
  assert.equal(suggestion.batchSize * suggestion.microBatches, 32);
  assert.equal(planOf(asked).batchSuggestion, null);
});

Deno.test("requests that mean nothing are refused", () => {
  const asked = equalPeers([4, 4]);
  const [first] = asked.peers as [PlannerPeer];
  assert.throws(() => plan({ ...asked, peers: [first, first] }), /the same id/);
  assert.throws(() => plan({ ...asked, peers: [{ ...first, engines: [] }] }), /peer id0 has no engine/);
  const crowd = Array.from({ length: 257 }, (_, i) => ({ ...first, id: `p${i}` }));
  assert.throws(() => plan({ ...asked, peers: crowd }), /at most 256 peers are planned, got 257/);
});

Deno.test("the whole model on one peer is one stage without boundaries", () => {
  const asked = equalPeers([5]);
  const { stages, codecs } = planOf(asked);
  assert.deepEqual({ ...stages[0]!, ...wholeModel(asked.spec) }, stages[0]);
  assert.deepEqual(codecs, []);
});
