// Fencing: a frame counts if the view promises it, from the peer it names, in the shape it fixes, once. Every refusal is
// counted and keeps no payload; each line below is a frame that some guard alone stops.
import assert from "node:assert/strict";
import { CUT, GEN, PeerHarness, type RoundKind, WHOLE } from "../../test/support/peer_harness.ts";
import type { FrameHeader } from "../wire/frame.ts";

interface Forgery {
  why: string;
  from?: string;
  change: Partial<FrameHeader>;
}

/** Each forgery against a fresh peer, so that none hides behind another; nothing of it is remembered. */
function assertRefused(
  reach: () => PeerHarness,
  kind: RoundKind,
  { from, forgeries }: { from: string; forgeries: Forgery[] },
): void {
  for (const { why, from: sender = from, change } of forgeries) {
    const peer = reach();
    const { arrived } = peer.state;
    assert.equal(peer.frame(sender, peer.header(kind, change)), false, why);
    assert.deepEqual(peer.state.arrived, arrived, why);
  }
}

Deno.test("accept: an activation as the view promises it, and no other", () => {
  // c holds stage 1 and micro-batches 0 and 2; a sends it their activations.
  const forgeries: Forgery[] = [
    { why: "an earlier cut", change: { cut: CUT - 1 } },
    { why: "a later cut", change: { cut: CUT + 1 } },
    { why: "a peer of the same stage", from: "d", change: {} },
    { why: "a stranger", from: "z", change: {} },
    { why: "a micro-batch beyond the step", change: { microBatch: 4 } },
    { why: "another stage", change: { toStage: 0, fromStage: 0 } },
    { why: "a stage that is not", change: { fromStage: 0, toStage: 9 } },
    { why: "a stage that is not its neighbour", change: { fromStage: 1 } },
    { why: "its own stage, from itself", from: "c", change: { fromStage: 1 } },
    { why: "a stage that nobody has", change: { fromStage: 9 } },
    { why: "the codec of the other direction", change: { codec: "f16s" } },
    { why: "a codec of sums", change: { codec: "int32" } },
    { why: "a row too many", change: { rows: 9 } },
    { why: "a column too few", change: { cols: 7 } },
    { why: "a transposed shape", change: { rows: 8 * 8, cols: 1 } },
    { why: "a round that is over", change: { pass: "eval" } },
    { why: "a round far ahead", change: { step: 3 } },
  ];
  assertRefused(() => PeerHarness.inRound("c"), "activation", { from: "a", forgeries });
  const peer = PeerHarness.inRound("c");
  assert.ok(peer.frame("a", peer.header("activation")));
  assert.ok(peer.frame("a", peer.header("activation", { microBatch: 2 })));
});

Deno.test("accept: a boundary tensor of a training step may come under any generation, from any holder of its stage", () => {
  const peer = PeerHarness.inRound("c");
  assert.ok(
    peer.frame("b", peer.header("activation", { gen: GEN - 1 })),
    "b took over from a, under an old view",
  );
  assert.ok(
    peer.frame("a", peer.header("activation", { gen: GEN + 1, microBatch: 1 })),
    "c is about to get it",
  );
  assert.equal(peer.frame("a", peer.header("activation")), false, "whoever sends it, it is the same tensor");
});

Deno.test("accept: a gradient comes from a holder of the next stage, in training only", () => {
  const forgeries: Forgery[] = [
    { why: "from the stage before", from: "c", change: { fromStage: 0 } },
    { why: "from a peer of its own stage", from: "b", change: {} },
    { why: "in an evaluation", change: { pass: "eval", step: 1 } },
    { why: "in the forward codec", change: { codec: "i8b64" } },
    { why: "of an earlier cut", change: { cut: CUT - 1 } },
  ];
  assertRefused(() => PeerHarness.inRound("a"), "gradient", { from: "c", forgeries });
  const peer = PeerHarness.inRound("a");
  assert.ok(peer.frame("c", peer.header("gradient")));
});

Deno.test("accept: a frame arrives once, whoever repeats it", () => {
  const peer = PeerHarness.inRound("c");
  assert.ok(peer.frame("a", peer.header("activation")));
  assert.equal(peer.frame("a", peer.header("activation")), false);
  assert.ok(peer.frame("d", peer.header("part")));
  assert.equal(peer.frame("d", peer.header("part")), false);
  assert.equal(peer.state.fenced, 2);
});

Deno.test("accept: a part is the whole share of the replica that sends it, under this generation", () => {
  const forgeries: Forgery[] = [
    { why: "an older generation", change: { gen: GEN - 1 } },
    { why: "another cut", change: { cut: CUT + 1 } },
    { why: "less than its share", change: { set: [1] } },
    { why: "more than its share", change: { set: [1, 2, 3] } },
    { why: "another replica's share", change: { set: [0, 2] } },
    { why: "no micro-batch at all", change: { set: [] } },
    { why: "in an evaluation", change: { pass: "eval", step: 1 } },
    { why: "under a second number, which would replace the first", change: { microBatch: 1 } },
    { why: "a value too few", change: { cols: 10 } },
    { why: "in two rows", change: { rows: 2 } },
    { why: "from another stage", change: { fromStage: 0 } },
    { why: "from a peer that does not hold the stage", from: "a", change: { set: [] } },
    { why: "from a shadow, which computes nothing", from: "e", change: { set: [] } },
  ];
  assertRefused(() => PeerHarness.inRound("c"), "part", { from: "d", forgeries });
  assert.ok(PeerHarness.inRound("c").frame("d", PeerHarness.inRound("c").header("part")));
  const shadow = PeerHarness.inRound("e");
  assert.ok(shadow.frame("c", shadow.header("part", { set: [0, 2] })), "a shadow needs every part");
});

Deno.test("accept: a part of a view that is still on its way waits for it, a few of each sender", () => {
  const peer = PeerHarness.inRound("c");
  const early = (gen: number) => peer.frame("d", peer.header("part", { gen, set: WHOLE }));
  for (let ahead = 1; ahead <= 4; ahead++) assert.ok(early(GEN + ahead), `${ahead} generations ahead`);
  assert.equal(early(GEN + 5), false, "any number of them could be kept waiting");
  assert.equal(early(GEN + 1), false, "the same once more");
  assert.deepEqual(peer.instance(1).work!.parts, [], "it counted before its view");
  assert.equal(peer.frame("z", peer.header("part", { gen: GEN + 1 })), false, "of a stranger");
});

Deno.test("accept: a total is taken only while it is asked for, from a holder of the stage", () => {
  const asked = () => {
    const peer = PeerHarness.inRound("e");
    peer.step({ type: "adopt", cut: CUT, step: 0, stage: 1, hash: "w" });
    return peer;
  };
  const forgeries: Forgery[] = [
    { why: "of another cut", change: { cut: CUT + 1 } },
    { why: "of another step", change: { step: 1 } },
    { why: "from a peer of another stage", from: "a", change: {} },
    { why: "that names another stage", from: "a", change: { fromStage: 0 } },
    { why: "of a stranger", from: "z", change: {} },
    { why: "in an evaluation", change: { pass: "eval", step: 1 } },
    { why: "under a second number", change: { microBatch: 1 } },
    { why: "a value short", change: { cols: 10 } },
    { why: "in two rows", change: { rows: 2 } },
    { why: "in a codec of boundary tensors", change: { codec: "raw32" } },
  ];
  assertRefused(asked, "total", { from: "c", forgeries });
  assertRefused(() => PeerHarness.inRound("e"), "total", {
    from: "c",
    forgeries: [{ why: "unasked", change: {} }],
  });
  const peer = asked();
  assert.ok(peer.frame("c", peer.header("total", { gen: GEN - 1 })), "whoever has it, from whichever view");
  assert.equal(peer.frame("d", peer.header("total")), false, "a second one while the first is looked at");
});

Deno.test("accept: a tied sum covers the step and comes from the partner of the first or last stage", () => {
  const tied = { tie_word_embeddings: true };
  const forgeries: Forgery[] = [
    { why: "half of the step", change: { set: [0, 2] } },
    { why: "nothing of the step", change: { set: [] } },
    { why: "from the partner stage's other replica", from: "d", change: {} },
    { why: "from its own stage", from: "b", change: { fromStage: 0 } },
    { why: "of another size", change: { cols: 8 } },
    { why: "under a second number", change: { microBatch: 1 } },
    { why: "in an evaluation", change: { pass: "eval", step: 1 } },
    { why: "of an older generation", change: { gen: GEN - 1 } },
  ];
  assertRefused(() => PeerHarness.inRound("a", tied), "tied", { from: "c", forgeries });
  const peer = PeerHarness.inRound("a", tied);
  assert.ok(peer.frame("c", peer.header("tied")));
  const untied = PeerHarness.inRound("a");
  assert.equal(untied.frame("c", untied.header("tied")), false, "a tied sum in a model that ties nothing");
});

Deno.test("accept: nothing before a view, and nothing while it loads", () => {
  const peer = new PeerHarness("c");
  assert.equal(peer.frame("a", peer.header("activation")), false);
  peer.step({ type: "view", view: peer.view, source: null });
  assert.equal(peer.frame("a", peer.header("activation")), false, "there is no place for a payload yet");
  peer.finish();
  assert.ok(peer.frame("a", peer.header("activation")));
});

Deno.test("accept: evaluation micro-batches wrap round the replicas, up to eval_iters, in this generation", () => {
  const peer = new PeerHarness("c");
  peer.load();
  peer.open(0, "eval");
  const header = (microBatch: number, gen = GEN) =>
    peer.header("activation", { pass: "eval", microBatch, gen });
  assert.equal(peer.frame("a", header(4, GEN - 1)), false, "an evaluation that was begun anew since");
  assert.ok(peer.frame("a", header(4)), "micro-batch 4 belongs to the owner of 0");
  assert.equal(peer.frame("b", header(5)), false, "micro-batch 5 belongs to the owner of 1");
  assert.equal(peer.frame("b", header(0)), false, "micro-batch 0 is computed by another replica");
  assert.equal(peer.frame("a", header(6)), false, "beyond eval_iters");
});

Deno.test("accept: a learner without a state has nowhere to put a frame", () => {
  const peer = new PeerHarness("f", {}, ["a:02 b:13", "c:02 d:13 f?"]);
  peer.load();
  peer.open(0);
  assert.equal(peer.frame("c", peer.header("part", { set: [0, 2] })), false);
  assert.equal(peer.frame("c", peer.header("total")), false);
});
