// The peer's core: readiness, the order of early frames, commits, snapshots and stale results. What crosses in flight must
// end as if it had come in order. Amendments, totals, sums by shards, learners and links have tests of their own.
import assert from "node:assert/strict";
import {
  answers,
  CUT,
  framesOf,
  GEN,
  jobsOf,
  PeerHarness,
  said,
  sends,
  tinyView,
} from "../../test/support/peer_harness.ts";
import type { PeerEffect } from "./peer_state.ts";

/** Everything peer c (stage 1, micro-batches 0 and 2) needs in a step, in the order given. */
function feedStep(peer: PeerHarness, step: number, order: ("0" | "2" | "part")[]): void {
  for (const what of order) {
    const header = what === "part"
      ? peer.header("part", { step })
      : peer.header("activation", { step, microBatch: Number(what) });
    assert.ok(peer.frame(what === "part" ? "d" : "a", header), `${what} of step ${step}`);
  }
}

Deno.test("peer core: ready is said once, when the view is loaded and every link is open", () => {
  const peer = new PeerHarness("c");
  const begun = peer.step({ type: "view", view: peer.view, source: null });
  const connect = begun.find((effect) => effect.do === "connect");
  assert.deepEqual(connect?.do === "connect" && connect.peers, [
    { peer: "a", initiator: false },
    { peer: "b", initiator: false },
    { peer: "d", initiator: true },
    { peer: "e", initiator: true },
  ]);
  assert.deepEqual(["a", "b", "d"].flatMap((id) => said(peer.link(id))), []);
  assert.deepEqual(said(peer.finish()), [], "ready with a link missing");
  assert.deepEqual(said(peer.link("e")), [{ type: "ready", gen: GEN }]);
  assert.deepEqual(said(peer.link("e")), []);
});

Deno.test("peer core: views only go forward, and an older one changes nothing", () => {
  const peer = PeerHarness.inRound("c");
  const before = JSON.stringify(peer.state);
  for (const gen of [GEN, GEN - 1]) {
    assert.deepEqual(peer.step({ type: "view", view: { ...peer.view, gen }, source: null }), []);
    assert.deepEqual(peer.step({ type: "view", view: { ...peer.view, gen, cut: gen }, source: null }), []);
  }
  assert.equal(JSON.stringify(peer.state), before);
  const next = { gen: GEN + 1, cut: GEN + 1 };
  const mine = tinyView(peer.config, ["a:0123"], next);
  const effects = peer.step({ type: "view", view: mine, source: null });
  assert.deepEqual(effects, [{ do: "unload" }], "a view without it makes it a spare");
});

Deno.test("peer core: open of another generation, commit and snapshot of another cut change nothing", () => {
  const peer = PeerHarness.inRound("c");
  const before = JSON.stringify(peer.state);
  for (const gen of [GEN - 1, GEN + 1]) {
    assert.deepEqual(peer.step({ type: "open", gen, step: 1, pass: "train" }), []);
  }
  const hashes = ["h", "h"];
  for (const cut of [CUT - 1, CUT + 1, GEN]) {
    assert.deepEqual(peer.step({ type: "commit", cut, step: 0, gradNormSq: 1, hashes }), []);
    assert.deepEqual(peer.step({ type: "snapshot", cut, step: 0, stage: 1 }), []);
    assert.deepEqual(peer.step({ type: "adopt", cut, step: 0, stage: 1, hash: "h" }), []);
    assert.deepEqual(peer.step({ type: "send-total", cut, step: 0, stage: 1, to: "d" }), []);
  }
  assert.deepEqual(peer.commit(4), [], "a commit behind a gap");
  const short = { type: "commit" as const, cut: CUT, step: 0, gradNormSq: 1, hashes: ["h"] };
  assert.deepEqual(peer.step(short), [], "a commit that does not name every stage");
  assert.equal(JSON.stringify(peer.state), before);
});

const ORDERS: ("0" | "2" | "part")[][] = [["0", "2", "part"], ["part", "2", "0"], ["2", "part", "0"]];

Deno.test("peer core: a step is logged once all frames are there, whatever their order", () => {
  for (const order of ORDERS) {
    const peer = PeerHarness.inRound("c");
    const effects: PeerEffect[] = [];
    for (const what of order) {
      feedStep(peer, 0, [what]);
      effects.push(...peer.work());
      if (what !== order.at(-1)) assert.deepEqual(answers(effects), [], `logged after ${what} of ${order}`);
    }
    assert.deepEqual(answers(effects), [{
      ...{ type: "logged", cut: CUT, gen: GEN, step: 0, stage: 1, hash: "h", gradNormSq: 1, saturated: 0 },
      nonFinite: 0,
    }], order.join());
    assert.deepEqual(
      sends(effects).sort(),
      ["gradient 0 to a", "gradient 2 to a", "part 0 to d", "part 0 to e"],
      order.join(),
    );
    assert.ok(framesOf(effects).every((frame) => !frame.recovery && frame.cut === CUT && frame.gen === GEN));
  }
});

Deno.test("peer core: the last stage tells the losses of its micro-batches, once, before its total", () => {
  const peer = PeerHarness.inRound("c");
  feedStep(peer, 0, ["0", "2"]);
  const losses = new Map([[0, 1.5], [2, 2.5]]);
  const effects = peer.work((job) => {
    const loss = job.job === "op" && job.kind === "F" ? losses.get(job.microBatch) : undefined;
    return loss === undefined ? {} : { loss };
  });
  const told = {
    ...{ type: "losses", cut: CUT, step: 0, stage: 1, microBatches: [0, 2], losses: [1.5, 2.5] },
  };
  assert.deepEqual(said(effects), [told]);
  feedStep(peer, 0, ["part"]);
  assert.deepEqual(said(peer.work()).map((message) => message.type), ["logged"]);
  const first = PeerHarness.inRound("a");
  for (const microBatch of [0, 2]) first.frame("c", first.header("gradient", { microBatch }));
  assert.ok(!said(first.work()).some((message) => message.type === "losses"), "the first stage has none");
});

Deno.test("peer core: shares that are no exact cover are never summed, whatever the plan says", () => {
  for (
    const { share, why } of [{ share: "1", why: /3 is missing/ }, { share: "123", why: /micro-batch 2/ }]
  ) {
    const peer = PeerHarness.inRound("c", {}, ["a:02 b:13", `c:02 d:${share}`]);
    feedStep(peer, 0, ["0", "2"]);
    peer.work();
    const part = peer.header("part", { set: [...share].map(Number) });
    assert.throws(() => peer.step({ type: "frame", from: "d", header: part }), why);
    assert.equal(peer.state.jobs.length, 0, "a sum was ordered");
  }
});

Deno.test("peer core: frames of the next step that overtake its OPEN are kept and used", () => {
  for (const order of ORDERS) {
    const peer = PeerHarness.inRound("c");
    feedStep(peer, 0, ["0", "2", "part"]);
    peer.work();
    feedStep(peer, 1, order);
    assert.equal(peer.state.busy, null, "it began a step that is not open");
    peer.commit(0);
    peer.work();
    assert.deepEqual([peer.state.committed, peer.instance(1).step], [1, 1]);
    peer.open(1);
    assert.deepEqual(answers(peer.work()).map((message) => message.type), ["logged"], order.join());
  }
});

Deno.test("peer core: an OPEN that comes while the commit is applied waits for it", () => {
  const peer = PeerHarness.inRound("c");
  feedStep(peer, 0, ["0", "2", "part"]);
  peer.work();
  const [apply] = jobsOf(peer.commit(0));
  assert.ok(apply?.job === "apply" && apply.upload && apply.gradNormSq === 1);
  assert.deepEqual(peer.open(1), []);
  assert.equal(peer.instance(1).work?.step, 0);
  const effects = peer.finish({ hash: "state" });
  assert.deepEqual(said(effects), [
    { type: "applied", cut: CUT, gen: GEN, step: 0, stage: 1, hash: "state" },
  ]);
  assert.deepEqual([peer.instance(1).work?.step, peer.state.committed], [1, 1]);
});

Deno.test("peer core: a commit is applied once", () => {
  const peer = PeerHarness.inRound("c");
  feedStep(peer, 0, ["0", "2", "part"]);
  peer.work();
  peer.commit(0);
  peer.work();
  assert.deepEqual(peer.commit(0), []);
  assert.equal(peer.instance(1).step, 1);
});

Deno.test("peer core: a peer of two stages applies each by its own total", () => {
  const peer = PeerHarness.inRound("c", {}, ["a:0123 c", "c:02 d:13"]);
  for (const microBatch of [0, 2]) {
    assert.ok(peer.frame("a", peer.header("activation", { toStage: 1, microBatch })));
  }
  const part = { set: [0, 1, 2, 3], toStage: 0, fromStage: 0 };
  assert.ok(peer.frame("a", peer.header("part", part)));
  peer.work((job) => ({ loss: 1, hash: `h${job.job === "seal" ? job.stage : ""}` }));
  assert.ok(peer.frame("d", peer.header("part", { toStage: 1 })));
  const logged = answers(peer.work((job) => ({ hash: `h${job.job === "seal" ? job.stage : ""}` })));
  assert.deepEqual(logged.map((it) => it.type === "logged" && [it.stage, it.hash]), [[1, "h1"]]);
  const commit = { type: "commit" as const, cut: CUT, step: 0, gradNormSq: 1, hashes: ["h0", "h1"] };
  const applied: unknown[] = [];
  peer.step(commit);
  peer.work((job) => {
    if (job.job === "apply") applied.push([job.stage, job.upload]);
    return { hash: "s" };
  });
  assert.deepEqual(applied, [[0, false], [1, true]], "a shadow has no engine to upload to");
});

Deno.test("peer core: a snapshot is of exactly the step asked for, also of one that is still to come", () => {
  const peer = PeerHarness.inRound("c");
  for (const stage of [1, 0]) peer.step({ type: "snapshot", cut: CUT, step: 1, stage });
  feedStep(peer, 0, ["0", "2", "part"]);
  peer.work((job) => {
    assert.notEqual(job.job, "export", "exported before the commit");
    return { loss: 1, hash: "h" };
  });
  peer.commit(0);
  const exported: unknown[] = [];
  peer.work((job) => {
    if (job.job === "export") exported.push([job.step, job.stage]);
    return { hash: "h" };
  });
  assert.deepEqual(exported, [[1, 1]], "its own stage only, once, after the commit");
  assert.deepEqual(peer.step({ type: "snapshot", cut: CUT, step: 0, stage: 1 }), [], "a step that is gone");
});

Deno.test("peer core: a snapshot asked for behind an OPEN is exported before the new step's work", () => {
  const peer = PeerHarness.inRound("a");
  assert.deepEqual(jobsOf(peer.step({ type: "snapshot", cut: CUT, step: 0, stage: 0 })), [], "one at a time");
  assert.deepEqual(jobsOf(peer.finish()).map((job) => job.job), ["export"]);
});

Deno.test("peer core: a snapshot is not taken while the state is being changed", () => {
  const peer = PeerHarness.inRound("c");
  feedStep(peer, 0, ["0", "2", "part"]);
  peer.work();
  assert.deepEqual(jobsOf(peer.commit(0)).map((job) => job.job), ["apply"]);
  peer.step({ type: "snapshot", cut: CUT, step: 0, stage: 1 });
  peer.step({ type: "snapshot", cut: CUT, step: 1, stage: 1 });
  const exported: number[] = [];
  peer.work((job) => {
    if (job.job === "export") exported.push(job.step);
    return { hash: "h" };
  });
  assert.deepEqual(exported, [1]);
});

Deno.test("peer core: results of an earlier cut are dropped", () => {
  const peer = PeerHarness.inRound("a");
  const running = peer.state.busy;
  assert.equal(running?.job, "op");
  const view = tinyView(peer.config, undefined, { gen: GEN + 1, cut: GEN + 1 });
  peer.step({ type: "view", view, source: null });
  const effects = peer.step({ type: "finished", job: running!, result: {} });
  assert.deepEqual(sends(effects), [], "an activation of an earlier cut was sent");
  assert.deepEqual(jobsOf(effects).map((job) => job.job), ["load"]);
});

Deno.test("peer core: an older cut that has finished loading does not make the newer one ready", () => {
  const peer = new PeerHarness("c");
  peer.step({ type: "view", view: peer.view, source: null });
  const older = peer.state.busy;
  const view = tinyView(peer.config, undefined, { gen: GEN + 1, cut: GEN + 1 });
  peer.step({ type: "view", view, source: null });
  for (const id of peer.state.neighbours) peer.link(id);
  const effects = peer.step({ type: "finished", job: older!, result: {} });
  assert.deepEqual(said(effects), []);
  assert.equal(peer.state.loaded, false);
  assert.deepEqual(said(peer.finish()), [{ type: "ready", gen: GEN + 1 }]);
});

Deno.test("peer core: an evaluation runs forward only and is told by the last stage", () => {
  const peer = new PeerHarness("c");
  peer.load();
  peer.open(0, "eval");
  for (const microBatch of [4, 0, 2]) {
    assert.ok(peer.frame("a", peer.header("activation", { pass: "eval", microBatch })));
  }
  const kinds: unknown[] = [];
  const effects = peer.work((job) => {
    kinds.push(job.job === "op" && [job.kind, job.slot]);
    return { loss: 1.5 };
  });
  assert.deepEqual(kinds, [["F", null], ["F", null], ["F", null]]);
  assert.deepEqual(said(effects), [
    { type: "evaluated", gen: GEN, step: 0, stage: 1, lossSum: 4.5, lossCount: 3 },
  ]);
  assert.deepEqual(sends(effects), []);
});

Deno.test("peer core: a shadow logs and applies what it is sent, and computes nothing", () => {
  const peer = PeerHarness.inRound("e");
  assert.equal(peer.state.busy, null);
  assert.ok(peer.frame("c", peer.header("part", { set: [0, 2] })));
  assert.equal(peer.state.busy, null, "it summed an incomplete step");
  assert.ok(peer.frame("d", peer.header("part")));
  const jobs: string[] = [];
  const note = (job: { job: string }) => {
    jobs.push(job.job);
    return { hash: "h", gradNormSq: 1 };
  };
  const effects = peer.work(note);
  assert.deepEqual(jobs, ["sum", "seal"]);
  assert.deepEqual(said(effects).map((message) => message.type), ["logged"]);
  assert.deepEqual(sends(effects), []);
  peer.commit(0);
  assert.deepEqual(said(peer.work(note)), [
    { type: "applied", cut: CUT, gen: GEN, step: 0, stage: 1, hash: "h" },
    { type: "warm", cut: CUT, gen: GEN, stage: 1 },
  ]);
  assert.deepEqual(
    jobs,
    ["sum", "seal", "apply", "engine"],
    "it gets its engine once the first step is over",
  );
});

Deno.test("peer core: when the coordinator is back, it is told again what it may not have heard", () => {
  const peer = PeerHarness.inRound("c");
  const warm = { type: "warm" as const, cut: CUT, gen: GEN, stage: 1 };
  assert.deepEqual(said(peer.step({ type: "resumed" })), [warm], "nothing is done yet");
  feedStep(peer, 0, ["0", "2", "part"]);
  const before = said(peer.work());
  assert.deepEqual(said(peer.step({ type: "resumed" })), [warm, ...before]);
  peer.step({ type: "adopt", cut: CUT, step: 0, stage: 1, hash: "other" });
  assert.deepEqual(answers(peer.step({ type: "resumed" })), [
    warm,
    { type: "want-total", cut: CUT, step: 0, stage: 1 },
  ]);
});
