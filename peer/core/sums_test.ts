// Sums by shards: from three computing replicas on, each adds up a part of the gradient and sends it to everybody. Whatever is
// missing, doubled or of another view must not get into a total.
import assert from "node:assert/strict";
import {
  answers,
  CUT,
  framesOf,
  GEN,
  jobsOf,
  PeerHarness,
  sends,
  WHOLE,
} from "../../test/support/peer_harness.ts";
import { stageLayout } from "../model/layout.ts";
import { shardRange } from "../wire/view.ts";
import type { FrameHeader } from "../wire/frame.ts";

/** Stage 1 on three that compute and a shadow. */
const HOLDERS = ["a:0123 b", "c:03 d:1 f:2 e"];

function partTo(peer: PeerHarness, index: number, set: number[], changes: Partial<FrameHeader> = {}) {
  const [start, end] = rangeAt(peer, index);
  return peer.header("part", { microBatch: index, cols: end - start, set, ...changes });
}

function shardOf(peer: PeerHarness, index: number, changes: Partial<FrameHeader> = {}) {
  const [start, end] = rangeAt(peer, index);
  return peer.header("shard", { microBatch: index, cols: end - start, ...changes });
}

function rangeAt(peer: PeerHarness, index: number): [number, number] {
  return shardRange(stageLayout(peer.state.spec, peer.view.stages[1]!).size, 3, index);
}

/** d (micro-batch 1, shard 1) with its own share done. */
function shareDone(): PeerHarness {
  const peer = PeerHarness.inRound("d", {}, HOLDERS);
  peer.frame("a", peer.header("activation", { microBatch: 1 }));
  const effects = peer.work();
  const parts = framesOf(effects).filter((frame) => frame.kind === "part");
  assert.deepEqual(parts.map(({ to, microBatch, set, range }) => [to, microBatch, set, range]), [
    ["c", 0, [1], rangeAt(peer, 0)],
    ["f", 2, [1], rangeAt(peer, 2)],
  ], "each owner gets its own shard, a shadow none");
  return peer;
}

Deno.test("sums: shards cover the gradient without gap or overlap, each at least one value", () => {
  for (const size of [3, 7, 64, 191, 192, 193, 640, 1_000]) {
    for (const count of [3, 4, 7]) {
      if (size < count) continue;
      let next = 0;
      for (let index = 0; index < count; index++) {
        const [start, end] = shardRange(size, count, index);
        assert.equal(start, next, `${size}/${count}`);
        assert.ok(end > start, `shard ${index} of ${size}/${count} is empty`);
        next = end;
      }
      assert.equal(next, size);
    }
  }
});

Deno.test("sums: an owner adds up its shard when every part of it is here, and sends it to every holder", () => {
  const peer = shareDone();
  assert.deepEqual(jobsOf(peer.receive("c", partTo(peer, 1, [0, 3]))), []);
  const [job] = jobsOf(peer.receive("f", partTo(peer, 1, [2])));
  assert.ok(job?.job === "reduce");
  assert.deepEqual([job.range, job.parts], [rangeAt(peer, 1), [{ from: "c", gen: GEN }, {
    from: "f",
    gen: GEN,
  }]]);
  const effects = peer.finish();
  assert.deepEqual(sends(effects), ["shard 1 to c", "shard 1 to f", "shard 1 to e"]);
  assert.ok(framesOf(effects).every((frame) => frame.set.length === 4));
  assert.deepEqual(jobsOf(effects), [], "summed without the others' shards");
});

Deno.test("sums: the total is put together of everybody's shard, the own one among them", () => {
  const peer = shareDone();
  peer.frame("c", partTo(peer, 1, [0, 3]));
  for (const [from, index] of [["c", 0], ["f", 2]] as const) peer.frame(from, shardOf(peer, index));
  assert.equal(peer.state.busy, null, "summed without its own shard");
  peer.frame("f", partTo(peer, 1, [2]));
  const [sum] = jobsOf(peer.finish());
  assert.ok(sum?.job === "sum");
  assert.deepEqual(sum.shards, [
    { from: "c", gen: GEN, range: rangeAt(peer, 0) },
    { from: "f", gen: GEN, range: rangeAt(peer, 2) },
  ]);
  assert.deepEqual(answers(peer.work()).map((message) => message.type), ["logged"]);
});

Deno.test("sums: a shadow sums nothing itself; it puts the owners' shards together", () => {
  const peer = PeerHarness.inRound("e", {}, HOLDERS);
  assert.equal(peer.frame("c", partTo(peer, 0, [0, 3])), false, "nobody owes it a part");
  for (const [from, index] of [["c", 0], ["d", 1], ["f", 2]] as const) {
    assert.equal(peer.state.busy, null);
    assert.ok(peer.frame(from, shardOf(peer, index)));
  }
  const [sum] = jobsOf([{ do: "job", job: peer.state.busy! }]);
  assert.ok(sum?.job === "sum" && sum.shards?.length === 3);
});

Deno.test("sums: parts that are no exact cover are never added up, whatever the plan says", () => {
  const peer = PeerHarness.inRound("d", {}, ["a:0123 b", "c:03 d:1 f:1"]);
  peer.frame("a", peer.header("activation", { microBatch: 1 }));
  peer.work();
  peer.frame("c", partTo(peer, 1, [0, 3]));
  assert.throws(() => peer.step({ type: "frame", from: "f", header: partTo(peer, 1, [1]) }), /micro-batch 1/);
});

Deno.test("sums: a part of another shard, a shard of another owner and the like are refused", () => {
  const refused: [string, string, (peer: PeerHarness) => FrameHeader][] = [
    ["a part of another's shard", "c", (peer) => partTo(peer, 0, [0, 3])],
    ["a whole sum where shards are due", "c", (peer) => peer.header("part", { set: [0, 3] })],
    ["a part of another share", "c", (peer) => partTo(peer, 1, [2])],
    ["a shard of another owner", "c", (peer) => shardOf(peer, 2)],
    ["a shard of itself", "c", (peer) => shardOf(peer, 1)],
    ["a shard of a shadow", "e", (peer) => shardOf(peer, 0)],
    ["a shard of half the step", "c", (peer) => shardOf(peer, 0, { set: [0, 3] })],
    ["a shard a value short", "c", (peer) => shardOf(peer, 0, { cols: rangeAt(peer, 0)[1] - 1 })],
    ["a shard larger than the stage", "c", (peer) => shardOf(peer, 0, { cols: 1 << 20 })],
    ["a shard of an evaluation", "c", (peer) => shardOf(peer, 0, { pass: "eval", step: 1 })],
    ["a shard of the view before", "c", (peer) => shardOf(peer, 0, { gen: GEN - 1 })],
    ["a shard of another stage", "a", (peer) => shardOf(peer, 0, { fromStage: 0 })],
  ];
  for (const [why, from, header] of refused) {
    const peer = shareDone();
    assert.equal(peer.frame(from, header(peer)), false, why);
  }
  const peer = shareDone();
  assert.ok(peer.frame("c", shardOf(peer, 0)));
  assert.equal(peer.frame("c", shardOf(peer, 0)), false, "twice");
});

Deno.test("sums: a shard is a matter of one view; after an amendment it is added up and sent anew", () => {
  const peer = shareDone();
  peer.frame("c", partTo(peer, 1, [0, 3]));
  peer.frame("f", partTo(peer, 1, [2]));
  assert.equal(peer.state.busy?.job, "reduce");
  const effects = peer.amend(HOLDERS);
  assert.deepEqual(sends(effects).filter((it) => it.startsWith("part")), ["part 0 to c", "part 2 to f"]);
  assert.deepEqual(sends(peer.finish()), [], "a shard of the view before was sent as one of this");
  peer.frame("c", partTo(peer, 1, [0, 3]));
  peer.frame("f", partTo(peer, 1, [2]));
  const frames = framesOf(peer.work());
  assert.deepEqual(frames.map(({ kind, to, gen }) => [kind, to, gen]), [
    ["shard", "c", GEN + 1],
    ["shard", "f", GEN + 1],
    ["shard", "e", GEN + 1],
  ]);
});

Deno.test("sums: a holder that is told the winner meanwhile sends no shard", () => {
  const peer = shareDone();
  peer.frame("c", partTo(peer, 1, [0, 3]));
  peer.frame("f", partTo(peer, 1, [2]));
  assert.equal(peer.state.busy?.job, "reduce");
  peer.step({ type: "adopt", cut: CUT, step: 0, stage: 1, hash: "w" });
  assert.deepEqual(sends(peer.finish()), []);
});

Deno.test("sums: who waits for the other end of a tied embedding gives its shard again under a new view", () => {
  const peer = PeerHarness.inRound("d", { tie_word_embeddings: true }, HOLDERS);
  const meet = () => {
    peer.frame("c", partTo(peer, 1, [0, 3]));
    peer.frame("f", partTo(peer, 1, [2]));
    for (const [from, index] of [["c", 0], ["f", 2]] as const) peer.frame(from, shardOf(peer, index));
    return sends(peer.work()).filter((it) => it.startsWith("shard"));
  };
  peer.frame("a", peer.header("activation", { microBatch: 1 }));
  peer.work();
  assert.equal(meet().length, 3);
  assert.equal(peer.instance(1).work!.total, "summed");
  peer.amend(HOLDERS);
  assert.equal(meet().length, 3, "the others lack it, and it would never come");
});

Deno.test("sums: when one of three goes, the two that are left send their whole sums again", () => {
  const peer = shareDone();
  peer.frame("c", partTo(peer, 1, [0, 3]));
  const effects = peer.amend(["a:0123 b", "c:03 d:12 e"]);
  assert.deepEqual(sends(effects), [], "its share is not done yet");
  peer.frame("a", peer.header("activation", { microBatch: 2 }));
  const parts = framesOf(peer.work()).filter((frame) => frame.kind === "part");
  assert.deepEqual(parts.map(({ to, set, range, recovery }) => [to, set, range, recovery]), [
    ["c", [1, 2], null, true],
    ["e", [1, 2], null, true],
  ]);
  assert.ok(peer.frame("c", peer.header("part", { set: [0, 3] })));
  assert.deepEqual(answers(peer.work()).map((message) => message.type), ["logged"]);
});

Deno.test("sums: with two that compute nobody sums shards", () => {
  const peer = PeerHarness.inRound("c");
  for (const microBatch of [0, 2]) peer.frame("a", peer.header("activation", { microBatch }));
  assert.deepEqual(framesOf(peer.work()).filter((it) => it.kind === "part").map((it) => it.range), [
    null,
    null,
  ]);
  assert.equal(peer.frame("d", peer.header("shard", { set: WHOLE })), false);
});
