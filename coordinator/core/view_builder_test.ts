// From measured peers to a view, as properties over random peers and configurations: every layer in one stage, every
// micro-batch with one replica, nobody idle who could help. Exact layouts of small cases beside them.
import assert from "node:assert/strict";
import fc from "fast-check";
import { readConfig } from "../../peer/model/config.ts";
import { specOf } from "../../peer/model/layout.ts";
import type { View } from "../../peer/wire/run.ts";
import { peersOf } from "../../peer/wire/view.ts";
import { PLANNED_PEERS_MAX } from "../plan/planner.ts";
import type { Plan } from "../plan/planner_types.ts";
import { type PeerRecord, zeroCounters } from "./run_state.ts";
import { planView, shareMicroBatches, usablePeers } from "./view_builder.ts";

const RUNS = { seed: 4, numRuns: 120 };

function peerOf(id: string, blockMs: number, changes: Partial<PeerRecord> = {}): PeerRecord {
  const zeros = { joinedAt: 0, heardAt: 0, ...zeroCounters() };
  const flags = { paused: false, leaving: false, hidden: false };
  const about = { id, runtime: "deno" as const, adapter: "", engine: "cpu", name: id };
  return { ...about, ...zeros, ...flags, blockMs, memoryBytes: 1e9, ...changes };
}

/** Of peers that have room for everything. */
function buildView(request: Parameters<typeof planView>[0]): View {
  const { view, missing } = planView(request);
  assert.ok(view !== null, missing ?? "");
  return view;
}

function viewOf(speeds: number[], changes: Record<string, unknown> = {}): View {
  return planned(speeds, changes).view;
}

function planned(
  speeds: number[],
  changes: Record<string, unknown> = {},
  about: Partial<PeerRecord> = {},
): { view: View; plan: Plan | undefined } {
  const config = readConfig({ n_layer: 6, shadows: false, ...changes });
  const peers = speeds.map((blockMs, i) => peerOf(`p${i}`, blockMs, about));
  const answer = planView({ gen: 3, baseStep: 9, spec: specOf(config, 20), config, peers });
  assert.ok(answer.view !== null, answer.missing ?? "");
  return { view: answer.view, plan: answer.plan };
}

function layers(view: View): number[] {
  return view.stages.map((stage) => stage.endLayer - stage.firstLayer);
}

function groups(view: View): string[] {
  return view.stages.map((stage) => stage.replicas.map((replica) => replica.peer).join("+"));
}

Deno.test("view builder: where peers hold several stages, slots cover the round trip that was measured", () => {
  const config = readConfig({ n_layer: 6, n_stage: 3, shadows: false, gradient_accumulation_steps: 32 });
  const slots = (rttMs: number) => {
    const link = { rttMs, upBytesPerS: 0, downBytesPerS: 0, path: "direct" as const, open: true };
    const peers = ["b", "a"].map((other, i) => {
      return peerOf(i === 0 ? "a" : "b", 10, rttMs === 0 ? {} : { links: { [other]: link } });
    });
    return buildView({ gen: 1, baseStep: 0, spec: specOf(config, 20), config, peers }).stages[0]!.inflight;
  };
  assert.ok(slots(200) > 2 * slots(20) && slots(0) > 1, `${slots(0)} ${slots(20)} ${slots(200)}`);
});

Deno.test("view builder: n_stage decides where it is given; where it is not, what is fastest does", () => {
  assert.equal(viewOf([1, 1, 1, 1], { n_stage: 2 }).stages.length, 2);
  assert.equal(viewOf([1], { n_stage: 3 }).stages.length, 3);
  // Small gradients travel sooner than a micro-batch passes through a pipeline.
  assert.deepEqual(groups(viewOf([30, 30])), ["p0+p1"]);
  // The sums of a wide model do not: fewer parameters a peer, fewer bytes to send.
  const wide = { n_embd: 256, n_inner: 1024, n_head: 4, n_kv_head: 4, batch_size: 1, block_size: 16 };
  assert.equal(
    viewOf([1, 1, 1], { ...wide, shadows: false, gradient_accumulation_steps: 16 }).stages.length,
    3,
  );
});

Deno.test("view builder: layers in proportion to speed, at least one each, the head counted", () => {
  assert.deepEqual(layers(viewOf([10, 10], { n_stage: 2 })), [3, 3]);
  const uneven = (speeds: number[]) => {
    const view = viewOf(speeds, { n_stage: 2 });
    return Object.fromEntries(
      view.stages.map((stage) => [stage.replicas[0]!.peer, stage.endLayer - stage.firstLayer]),
    );
  };
  assert.deepEqual(uneven([10, 20]), { p0: 4, p1: 2 });
  assert.deepEqual(uneven([1, 1000]), { p0: 5, p1: 1 });
  assert.deepEqual(uneven([1000, 1]), { p0: 1, p1: 5 });
});

Deno.test("view builder: further peers become replicas where they help, and stay spares where none would", () => {
  assert.deepEqual(groups(viewOf([10, 20, 20], { n_stage: 2 })), ["p0", "p1+p2"]);
  // Each half of the micro-batches is the quicker one's: the slowest would be done last with a single one.
  const { view, plan } = planned([20, 10, 10, 5], { n_stage: 2 });
  assert.deepEqual(groups(view), ["p1", "p3+p2"]);
  assert.ok(plan!.reasons.includes("p0 computes nothing: with it a step would not be shorter."));
});

Deno.test("view builder: with fewer peers than stages a peer holds several", () => {
  assert.deepEqual(groups(viewOf([10, 10], { n_stage: 5 })), ["p0", "p1", "p0", "p1", "p0"]);
});

Deno.test("view builder: the dynamic order gets a slot for every micro-batch that memory has room for", () => {
  const changes = { n_stage: 3, gradient_accumulation_steps: 16 };
  const { view, plan } = planned([5, 5, 5], changes);
  assert.deepEqual(view.stages.map((stage) => stage.inflight), [16, 16, 16]);
  assert.ok(plan!.seconds > 0.16 && plan!.seconds < 0.3, `${plan!.seconds} s for 16 micro-batches of 10 ms`);
  const slots = (memoryBytes: number) =>
    planned([5, 5, 5], changes, { memoryBytes }).view.stages.map((stage) => stage.inflight);
  const [few] = slots(6e7);
  assert.ok(few! < 16 && few! >= 3, `${slots(6e7)}`);
});

Deno.test("view builder: generation, base and codecs are those of the request, and a cut of its own begins", () => {
  const { gen, cut, baseStep, codecForward, codecBackward, schedule } = viewOf([1], {
    ...{ codec_forward: "raw32", codec_backward: "f16s", schedule: "1f1b" },
  });
  assert.deepEqual({ gen, cut, baseStep, codecForward, codecBackward, schedule }, {
    ...{ gen: 3, cut: 3, baseStep: 9, codecForward: "raw32", codecBackward: "f16s", schedule: "1f1b" },
  });
});

/** Views of peers of one speed, of which those named are hidden. */
function hiddenView(count: number, hidden: number[], changes: Record<string, unknown>): View {
  const config = readConfig({ n_layer: 6, shadows: false, ...changes });
  const peers = Array.from({ length: count }, (_, i) => peerOf(`p${i}`, 10, { hidden: hidden.includes(i) }));
  return buildView({ gen: 3, baseStep: 9, spec: specOf(config, 20), config, peers });
}

Deno.test("view builder: a hidden peer gets half of a like peer's micro-batches, and fewer layers", () => {
  const shares = (hidden: number[]) =>
    hiddenView(2, hidden, { n_stage: 1, gradient_accumulation_steps: 12 }).stages[0]!.replicas
      .map((replica) => [replica.peer, replica.microBatches.length]);
  assert.deepEqual(shares([]), [["p0", 6], ["p1", 6]]);
  assert.deepEqual(shares([1]), [["p0", 8], ["p1", 4]]);
  const view = hiddenView(2, [1], { n_stage: 2 });
  const held = new Map(
    view.stages.map((stage) => [stage.replicas[0]!.peer, stage.endLayer - stage.firstLayer]),
  );
  assert.deepEqual([held.get("p0"), held.get("p1")], [4, 2]);
});

Deno.test("view builder: a hidden peer holds a stage alone only if there is nobody else", () => {
  assert.deepEqual(groups(hiddenView(3, [0], { n_stage: 2 })), ["p1", "p2+p0"]);
  const two = readConfig({ n_layer: 6, shadows: false, n_stage: 2 });
  const quick = [peerOf("hidden", 8, { hidden: true }), peerOf("a", 30), peerOf("b", 30)];
  const tempting = buildView({ gen: 1, baseStep: 0, spec: specOf(two, 20), config: two, peers: quick });
  assert.ok(!groups(tempting).includes("hidden"), groups(tempting).join());
  assert.deepEqual(groups(hiddenView(2, [0], { n_stage: 2 })).toSorted(), ["p0", "p1"]);
  assert.deepEqual(groups(hiddenView(2, [0, 1], { n_stage: 2 })), ["p0", "p1"]);
  // Nobody else has the memory for it.
  const config = readConfig({ n_layer: 6, shadows: false });
  const peers = [peerOf("small", 1, { memoryBytes: 1e5 }), peerOf("hidden", 9, { hidden: true })];
  const view = buildView({ gen: 1, baseStep: 0, spec: specOf(config, 20), config, peers });
  assert.deepEqual(groups(view), ["hidden"]);
});

Deno.test("view builder: a shadow goes to a hidden peer last", () => {
  const shadows = (count: number, hidden: number[]) =>
    hiddenView(count, hidden, { n_stage: 3, n_layer: 3, shadows: true }).stages
      .map((stage) => stage.replicas.at(-1)!.peer);
  assert.deepEqual(shadows(3, []).toSorted(), ["p0", "p1", "p2"]);
  assert.ok(!shadows(3, [2]).includes("p2"), shadows(3, [2]).join());
});

Deno.test("view builder: peers that nothing tells apart stand in the order in which they joined", () => {
  assert.deepEqual(groups(viewOf([7, 7, 7, 7], { n_stage: 2 })), ["p0+p2", "p1+p3"]);
  const { view } = planned([7, 9, 7, 9], { n_stage: 2 });
  const names = peersOf(view);
  assert.ok(names.indexOf("p0") < names.indexOf("p2") && names.indexOf("p1") < names.indexOf("p3"));
});

Deno.test("view builder: a peer that is believed slower than it measured gets less", () => {
  const config = readConfig({ n_layer: 6, shadows: false, n_stage: 1, gradient_accumulation_steps: 12 });
  const peers = [peerOf("a", 10), peerOf("b", 10, { slowdown: 3 })];
  const view = buildView({ gen: 1, baseStep: 0, spec: specOf(config, 20), config, peers });
  assert.deepEqual(view.stages[0]!.replicas.map((it) => [it.peer, it.microBatches.length]), [["a", 9], [
    "b",
    3,
  ]]);
});

Deno.test("view builder: 300 peers are planned with the best of them", () => {
  const config = readConfig({ n_layer: 6, shadows: false, gradient_accumulation_steps: 256, n_stage: 2 });
  const peers = Array.from({ length: 300 }, (_, i) => peerOf(`p${i}`, i < 20 ? 500 : 5));
  const { view, plan } = planView({ gen: 1, baseStep: 0, spec: specOf(config, 20), config, peers }) as {
    view: View;
    plan: Plan;
  };
  assert.ok(peersOf(view).every((id) => Number(id.slice(1)) >= 20));
  assert.equal(peersOf(view).length + plan.spares.length, PLANNED_PEERS_MAX);
});

const speeds = fc.array(fc.double({ min: 0.01, max: 5_000, noNaN: true }), { minLength: 1, maxLength: 9 });

Deno.test("view builder: any peers give contiguous layers, exact covers and work for everyone", () => {
  const options = fc.record({
    n_stage: fc.nat(6),
    gradient_accumulation_steps: fc.integer({ min: 1, max: 40 }),
    shadows: fc.boolean(),
    schedule: fc.constantFrom("gpipe", "1f1b", "dynamic"),
  });
  const property = fc.property(speeds, options, (blockMs, changes) => {
    const { view, plan } = planned(blockMs, changes);
    let next = 0;
    for (const stage of view.stages) {
      assert.equal(stage.firstLayer, next);
      assert.ok(stage.endLayer > stage.firstLayer, "a stage without a layer");
      next = stage.endLayer;
      const shares = stage.replicas.flatMap((replica) => replica.microBatches);
      const all = Array.from({ length: changes.gradient_accumulation_steps }, (_, m) => m);
      assert.deepEqual(shares.toSorted((a, b) => a - b), all, "not an exact cover");
      for (const { microBatches } of stage.replicas) {
        assert.deepEqual(microBatches, microBatches.toSorted((a, b) => a - b));
      }
      const names = stage.replicas.map((replica) => replica.peer);
      assert.equal(new Set(names).size, names.length, "a peer is its own replica");
      assert.ok(stage.inflight >= 1 && stage.inflight <= changes.gradient_accumulation_steps);
    }
    assert.equal(next, 6);
    assert.deepEqual(view.stages.map((stage) => stage.embed), view.stages.map((_, s) => s === 0));
    assert.deepEqual(
      view.stages.map((stage) => stage.head),
      view.stages.map((_, s) => s === view.stages.length - 1),
    );
    const count = Math.min(blockMs.length, view.stages.length);
    assert.ok(peersOf(view).length >= count);
    if (plan !== undefined) {
      const spares = blockMs.map((_, i) => `p${i}`).filter((id) => !peersOf(view).includes(id));
      assert.deepEqual(plan.spares.toSorted(), spares.toSorted(), "a peer is left out, and nobody says so");
    }
  });
  fc.assert(property, RUNS);
});

Deno.test("view builder: with shadows every stage has a second holder, which computes nothing", () => {
  const property = fc.property(speeds.filter((list) => list.length > 1), fc.nat(6), (blockMs, n_stage) => {
    for (const stage of viewOf(blockMs, { n_stage, shadows: true }).stages) {
      const idle = stage.replicas.filter((replica) => replica.microBatches.length === 0);
      assert.ok(stage.replicas.length >= 2, "nobody would have the stage's state");
      assert.equal(idle.length, stage.replicas.length - idle.length === 1 ? 1 : 0);
    }
  });
  fc.assert(property, RUNS);
  assert.deepEqual(groups(viewOf([5], { shadows: true })), ["p0"], "one peer has nobody to be its shadow");
});

Deno.test("view builder: shares follow speed, and neighbours interleave", () => {
  const shares = shareMicroBatches([peerOf("fast", 1), peerOf("slow", 3)], 8).map((plan) =>
    plan.microBatches
  );
  assert.deepEqual(shares.map((share) => share.length), [6, 2]);
  assert.deepEqual(shareMicroBatches([peerOf("a", 2), peerOf("b", 2)], 4).map((plan) => plan.microBatches), [
    [0, 2],
    [1, 3],
  ]);
});

Deno.test("view builder: only measured peers that neither pause nor leave are given work", () => {
  const peers = [
    peerOf("ok", 1),
    peerOf("unmeasured", 0),
    peerOf("paused", 1, { paused: true }),
    peerOf("leaving", 1, { leaving: true }),
    peerOf("hidden", 1, { hidden: true }),
  ];
  assert.deepEqual(usablePeers(peers).map((peer) => peer.id), ["ok", "hidden"]);
});
