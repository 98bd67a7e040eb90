// Links that break while both ends live: the peers link up again by themselves, what may have been lost is sent again, and the
// coordinator hears of it only if it does not help.
import assert from "node:assert/strict";
import { CUT, framesOf, GEN, PeerHarness, said, sends, stateFile } from "../../test/support/peer_harness.ts";
import type { PeerEffect } from "./peer_state.ts";

function connects(effects: PeerEffect[]): string[] {
  return effects.flatMap((effect) => effect.do === "connect" ? effect.peers.map((it) => it.peer) : []);
}

Deno.test("links: a lost link is made again; only the third failure in a row is told, with its generation", () => {
  const peer = PeerHarness.inRound("c");
  const lost = () => peer.step({ type: "link", peer: "d", open: false, reason: "x".repeat(900) });
  for (let i = 0; i < 3; i++) {
    const effects = lost();
    assert.deepEqual([connects(effects), said(effects)], [["d"], []], `attempt ${i}`);
  }
  const effects = lost();
  assert.deepEqual(said(effects), [{ type: "link-lost", gen: GEN, peer: "d", reason: "x".repeat(500) }]);
  assert.deepEqual(connects(effects), []);
  assert.deepEqual(lost(), [], "one loss was told twice");
});

Deno.test("links: a link that comes up in between starts the count anew", () => {
  const peer = PeerHarness.inRound("c");
  for (let i = 0; i < 20; i++) {
    for (let failures = 0; failures < 3; failures++) assert.deepEqual(said(peer.link("d", false)), []);
    peer.link("d");
  }
  assert.deepEqual(peer.state.linkFailures, {});
});

Deno.test("links: a link that the view does not need is nobody's business", () => {
  const peer = PeerHarness.inRound("c");
  for (let i = 0; i < 5; i++) assert.deepEqual(peer.link("z", false), []);
});

Deno.test("links: with a new view a link that was given up is tried again", () => {
  const peer = PeerHarness.inRound("c");
  for (let i = 0; i < 4; i++) peer.link("d", false);
  assert.deepEqual(connects(peer.amend(["a:02 b:13", "c:02 d:13 e"])), ["d"]);
  assert.deepEqual(said(peer.link("d", false)), [], "and again it is told only after repeated failures");
});

/** a of stage 0 has sent c both of its activations. */
function sentBoth(changes: Record<string, unknown> = {}, holders?: string[]): PeerHarness {
  const peer = PeerHarness.inRound("a", changes, holders);
  peer.work();
  return peer;
}

Deno.test("links: over a link that is open again goes what the open step has sent there, and nothing to others", () => {
  const peer = sentBoth();
  peer.link("c", false);
  const frames = framesOf(peer.link("c"));
  assert.deepEqual(frames.map(({ kind, microBatch, to, recovery }) => [kind, microBatch, to, recovery]), [
    ["activation", 0, "c", true],
    ["activation", 2, "c", true],
  ]);
  peer.link("d", false);
  assert.deepEqual(sends(peer.link("d")), [], "d owns none of them");
  assert.deepEqual(sends(peer.link("c")), [], "opened twice, without having been closed");
});

Deno.test("links: what was sent before a link opened for the first time was lost, as after the coordinator's restart", () => {
  const peer = sentBoth();
  // A view that was never heard of before is opened at once, links or no links.
  peer.state.links = peer.state.links.filter((it) => it !== "c");
  assert.deepEqual(peer.state.linkFailures, {});
  assert.deepEqual(framesOf(peer.link("c")).map(({ microBatch, to }) => [microBatch, to]), [[0, "c"], [
    2,
    "c",
  ]]);
});

Deno.test("links: parts, shards and tied sums go again too, once they were sent", () => {
  const peer = sentBoth({ tie_word_embeddings: true }, ["a:0123 b", "c:0123 d"]);
  peer.link("b", false);
  assert.deepEqual(sends(peer.link("b")), [], "its share is not done");
  for (const microBatch of [0, 1, 2, 3]) peer.frame("c", peer.header("gradient", { microBatch }));
  peer.work();
  peer.link("b", false);
  assert.deepEqual(sends(peer.link("b")), ["part 0 to b"]);
  peer.link("c", false);
  assert.deepEqual(sends(peer.link("c")).at(-1), "tied 0 to c");
  const owner = PeerHarness.inRound("c", {}, ["a:0123 b", "c:0 d:1 e:23"]);
  owner.frame("a", owner.header("activation"));
  owner.work();
  owner.link("d", false);
  assert.deepEqual(sends(owner.link("d")), ["part 1 to d"], "only the shard that d adds up");
});

Deno.test("links: after the commit nothing of the step is sent again", () => {
  const waiting = PeerHarness.inRound("c");
  for (const microBatch of [0, 2]) waiting.frame("a", waiting.header("activation", { microBatch }));
  waiting.work();
  waiting.link("d", false);
  waiting.commit(0);
  assert.deepEqual(sends(waiting.link("d")), [], "a part of a step whose total is known");
  const peer = sentBoth();
  peer.link("c", false);
  peer.commit(0);
  assert.deepEqual(sends(peer.link("c")), []);
});

Deno.test("links: whoever waits for a total says so again, for it may have been on that link", () => {
  const peer = PeerHarness.inRound("e");
  peer.commit(0);
  peer.link("d", false);
  assert.deepEqual(said(peer.link("d")), [{ type: "want-total", cut: CUT, step: 0, stage: 1 }]);
});

Deno.test("links: an evaluation's frames go again as well", () => {
  const peer = new PeerHarness("a");
  peer.load();
  peer.open(0, "eval");
  const sent = sends(peer.work());
  assert.deepEqual(sent, ["activation 0 to c", "activation 2 to c", "activation 4 to c"]);
  peer.link("c", false);
  const frames = framesOf(peer.link("c"));
  assert.deepEqual(frames.map((frame) => [frame.pass, frame.microBatch, frame.recovery]), [
    ["eval", 0, true],
    ["eval", 2, true],
    ["eval", 4, true],
  ]);
});

Deno.test("links: a new neighbour's first link brings what was sent while it was being made", () => {
  const peer = sentBoth({}, ["a:02 b:13", "c:02 d:13 e"]);
  peer.amend(["a:02 b:13", "c:02 d:13 e g?"]);
  assert.deepEqual(sends(peer.link("g")), [], "a learner is owed no activation");
  const learner = new PeerHarness("g", {}, ["a:02 b:13", "c:02 d:13 e g?"]);
  learner.load();
  learner.step({ type: "state", cut: CUT, step: 0, stage: 1, file: stateFile(1) });
  const holder = PeerHarness.inRound("c");
  for (const microBatch of [0, 2]) holder.frame("a", holder.header("activation", { microBatch }));
  holder.work();
  const effects = holder.amend(["a:02 b:13", "c:02 d:13 e g?"]);
  assert.ok(sends(effects).includes("part 0 to g"));
  assert.deepEqual(sends(holder.link("g")), ["part 0 to g"], "the first one found no link");
});
