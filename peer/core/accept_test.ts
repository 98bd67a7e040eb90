// Fencing: a frame counts if this generation's view promises it, from the peer it names, in the shape it fixes, once.
// Every refusal is counted and keeps no payload; each line below is a frame that some guard alone stops.
import assert from "node:assert/strict";
import { GEN, PeerHarness } from "../../test/support/peer_harness.ts";
import type { FrameHeader } from "../wire/frame.ts";

interface Forgery {
  why: string;
  from?: string;
  change: Partial<FrameHeader>;
}

/** c holds stage 1 and micro-batches 0 and 2; a sends it their activations. */
const ACTIVATIONS: Forgery[] = [
  { why: "an older generation", change: { gen: GEN - 1 } },
  { why: "a later generation", change: { gen: GEN + 1 } },
  { why: "a replica that does not own the micro-batch", from: "b", change: {} },
  { why: "a peer of the same stage", from: "d", change: {} },
  { why: "a stranger", from: "z", change: {} },
  { why: "a micro-batch of another receiver", from: "b", change: { microBatch: 1 } },
  { why: "a micro-batch beyond the step", change: { microBatch: 4 } },
  { why: "another stage", change: { toStage: 0 } },
  { why: "a stage that is not", change: { toStage: 9 } },
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

Deno.test("accept: an activation as the view promises it, and no other", () => {
  for (const { why, from = "a", change } of ACTIVATIONS) {
    const peer = PeerHarness.inRound("c");
    assert.equal(peer.frame(from, peer.header("activation", change)), false, why);
    assert.deepEqual(peer.state.arrived, [], why);
  }
  const peer = PeerHarness.inRound("c");
  assert.ok(peer.frame("a", peer.header("activation")));
  assert.ok(peer.frame("a", peer.header("activation", { microBatch: 2 })));
});

Deno.test("accept: a gradient comes from the next stage's owner, in training only", () => {
  const peer = PeerHarness.inRound("a");
  const refused: Forgery[] = [
    { why: "the next stage's other replica", from: "d", change: {} },
    { why: "from the stage before", from: "c", change: { fromStage: 0 } },
    { why: "in an evaluation", from: "c", change: { pass: "eval", step: 1 } },
    { why: "in the forward codec", from: "c", change: { codec: "i8b64" } },
  ];
  for (const { why, from, change } of refused) {
    assert.equal(peer.frame(from!, peer.header("gradient", change)), false, why);
  }
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

Deno.test("accept: a part is the whole share of the replica that sends it", () => {
  const refused: Forgery[] = [
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
  for (const { why, from = "d", change } of refused) {
    const peer = PeerHarness.inRound("c");
    assert.equal(peer.frame(from, peer.header("part", change)), false, why);
  }
  assert.ok(PeerHarness.inRound("c").frame("d", PeerHarness.inRound("c").header("part")));
  const shadow = PeerHarness.inRound("e");
  assert.ok(shadow.frame("c", shadow.header("part", { set: [0, 2] })), "a shadow needs every part");
});

Deno.test("accept: a tied sum covers the step and comes from the partner of the first or last stage", () => {
  const tied = { tie_word_embeddings: true };
  const refused: Forgery[] = [
    { why: "half of the step", change: { set: [0, 2] } },
    { why: "nothing of the step", change: { set: [] } },
    { why: "from the partner stage's other replica", from: "d", change: {} },
    { why: "from its own stage", from: "b", change: { fromStage: 0 } },
    { why: "of another size", change: { cols: 8 } },
    { why: "under a second number", change: { microBatch: 1 } },
    { why: "in an evaluation", change: { pass: "eval", step: 1 } },
  ];
  for (const { why, from = "c", change } of refused) {
    const peer = PeerHarness.inRound("a", tied);
    assert.equal(peer.frame(from, peer.header("tied", change)), false, why);
  }
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

Deno.test("accept: evaluation micro-batches wrap round the replicas, up to eval_iters", () => {
  const peer = new PeerHarness("c");
  peer.load();
  peer.step({ type: "open", gen: GEN, step: 0, pass: "eval" });
  const header = (microBatch: number) => peer.header("activation", { pass: "eval", microBatch });
  assert.ok(peer.frame("a", header(4)), "micro-batch 4 belongs to the owner of 0");
  assert.equal(peer.frame("b", header(5)), false, "micro-batch 5 belongs to the owner of 1");
  assert.equal(peer.frame("a", header(6)), false, "beyond eval_iters");
});
