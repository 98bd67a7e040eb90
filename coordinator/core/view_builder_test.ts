// From measured peers to a view, as properties over random peers and configurations: every layer in one stage, every
// micro-batch with one replica, nobody idle who could help. Exact layouts of small cases beside them.
import assert from "node:assert/strict";
import fc from "fast-check";
import { readConfig } from "../../peer/model/config.ts";
import { specOf } from "../../peer/model/layout.ts";
import type { View } from "../../peer/wire/run.ts";
import { peersOf } from "../../peer/wire/view.ts";
import { type PeerRecord, zeroCounters } from "./run_state.ts";
import { planView, shareMicroBatches, usablePeers } from "./view_builder.ts";

const RUNS = { seed: 4, numRuns: 300 };

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
  const config = readConfig({ n_layer: 6, shadows: false, ...changes });
  const peers = speeds.map((blockMs, i) => peerOf(`p${i}`, blockMs));
  return buildView({ gen: 3, baseStep: 9, spec: specOf(config, 20), config, peers });
}

function layers(view: View): number[] {
  return view.stages.map((stage) => stage.endLayer - stage.firstLayer);
}

function groups(view: View): string[] {
  return view.stages.map((stage) => stage.replicas.map((replica) => replica.peer).join("+"));
}

Deno.test("view builder: as many stages as peers, at most one per layer; n_stage decides where it is given", () => {
  assert.equal(viewOf([1, 1]).stages.length, 2);
  assert.equal(viewOf(Array(9).fill(1)).stages.length, 6);
  assert.equal(viewOf([1, 1, 1, 1], { n_stage: 2 }).stages.length, 2);
  assert.equal(viewOf([1], { n_stage: 3 }).stages.length, 3);
});

Deno.test("view builder: layers in proportion to speed, at least one each", () => {
  assert.deepEqual(layers(viewOf([10, 10])), [3, 3]);
  assert.deepEqual(layers(viewOf([10, 20])), [4, 2]);
  assert.deepEqual(layers(viewOf([1, 1000])), [5, 1]);
  assert.deepEqual(layers(viewOf([1000, 1])), [1, 5]);
});

Deno.test("view builder: further peers become replicas where the stage is slowest", () => {
  assert.deepEqual(groups(viewOf([10, 20, 20], { n_stage: 2 })), ["p0", "p1+p2"]);
  assert.deepEqual(groups(viewOf([20, 10, 10, 5], { n_stage: 2 })), ["p0+p2", "p1+p3"]);
});

Deno.test("view builder: with fewer peers than stages a peer holds several", () => {
  assert.deepEqual(groups(viewOf([10, 10], { n_stage: 5 })), ["p0", "p1", "p0", "p1", "p0"]);
});

Deno.test("view builder: gpipe holds the step, dynamic gives every stage the widest window", () => {
  const inflight = (schedule: string) =>
    viewOf([5, 5, 5], { schedule, gradient_accumulation_steps: 16 }).stages.map((stage) => stage.inflight);
  assert.deepEqual(inflight("gpipe"), [16, 16, 16]);
  const [first, middle, last] = inflight("1f1b");
  assert.ok(
    first! > middle! && middle! > last! && last! >= 1,
    "an earlier stage waits for a longer round trip",
  );
  assert.deepEqual(inflight("dynamic"), [first, first, first]);
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
  assert.deepEqual(layers(hiddenView(2, [1], { n_stage: 2 })), [4, 2]);
});

Deno.test("view builder: a hidden peer holds a stage alone only if there is nobody else", () => {
  assert.deepEqual(groups(hiddenView(3, [0], { n_stage: 2 })), ["p1+p0", "p2"]);
  assert.deepEqual(groups(hiddenView(2, [0], { n_stage: 2 })), ["p1", "p0"]);
  assert.deepEqual(groups(hiddenView(2, [0, 1], { n_stage: 2 })), ["p0", "p1"]);
});

Deno.test("view builder: a shadow goes to a hidden peer only if others hold twice as much", () => {
  const shadows = (count: number, hidden: number[]) =>
    hiddenView(count, hidden, { n_stage: 3, n_layer: 3, shadows: true }).stages
      .map((stage) => stage.replicas.at(-1)!.peer);
  assert.deepEqual(shadows(3, []), ["p1", "p2", "p0"]);
  // One layer each; the hidden one counts as if it held three, so it is last until the others hold two.
  assert.deepEqual(shadows(3, [2]), ["p1", "p0", "p0"]);
});

const speeds = fc.array(fc.double({ min: 0.01, max: 5_000, noNaN: true }), { minLength: 1, maxLength: 14 });

Deno.test("view builder: any peers give contiguous layers, exact covers and work for everyone", () => {
  const options = fc.record({
    n_stage: fc.nat(6),
    gradient_accumulation_steps: fc.integer({ min: 1, max: 40 }),
    shadows: fc.boolean(),
    schedule: fc.constantFrom("gpipe", "1f1b", "dynamic"),
  });
  const property = fc.property(speeds, options, (blockMs, changes) => {
    const view = viewOf(blockMs, changes);
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
    if (blockMs.length >= view.stages.length) {
      assert.equal(peersOf(view).length, blockMs.length, "a peer is left out");
    }
  });
  fc.assert(property, RUNS);
});

Deno.test("view builder: with shadows every stage has a second holder, which computes nothing", () => {
  const property = fc.property(speeds.filter((list) => list.length > 1), fc.nat(6), (blockMs, n_stage) => {
    const bare = viewOf(blockMs, { n_stage });
    const view = viewOf(blockMs, { n_stage, shadows: true });
    view.stages.forEach((stage, s) => {
      const before = bare.stages[s]!.replicas;
      assert.deepEqual(stage.replicas.slice(0, before.length), before, "shadows changed who computes what");
      assert.ok(stage.replicas.length >= 2);
      const added = stage.replicas.slice(before.length);
      assert.ok(added.length === (before.length === 1 ? 1 : 0));
      assert.ok(added.every((replica) => replica.microBatches.length === 0));
    });
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
