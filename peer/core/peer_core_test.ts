// The peer's core: readiness, the order of early frames, commits, snapshots and stale results. What crosses in flight must
// end as if it had come in order.
import assert from "node:assert/strict";
import { GEN, PeerHarness, said, tinyView } from "../../test/support/peer_harness.ts";
import type { PeerEffect } from "./peer_state.ts";

function sends(effects: PeerEffect[]): string[] {
  return effects.flatMap((effect) =>
    effect.do === "send" ? [`${effect.frame.kind} ${effect.frame.microBatch} to ${effect.frame.to}`] : []
  );
}

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
  const messages = ["a", "b", "d"].flatMap((id) =>
    said(peer.step({ type: "link", peer: id, open: true, reason: "" }))
  );
  assert.deepEqual(messages, []);
  assert.deepEqual(said(peer.finish()), [], "ready with a link missing");
  const link = { type: "link" as const, peer: "e", open: true, reason: "" };
  assert.deepEqual(said(peer.step(link)), [{ type: "ready", gen: GEN }]);
  assert.deepEqual(said(peer.step(link)), []);
});

Deno.test("peer core: a lost link is told if the view needs it, with its generation", () => {
  const peer = PeerHarness.inRound("c");
  const lost = (id: string) =>
    said(peer.step({ type: "link", peer: id, open: false, reason: "x".repeat(900) }));
  assert.deepEqual(lost("z"), []);
  assert.deepEqual(lost("d"), [{ type: "link-lost", gen: GEN, peer: "d", reason: "x".repeat(500) }]);
  assert.deepEqual(lost("d"), [], "one loss was told twice");
});

Deno.test("peer core: views only go forward, and an older one changes nothing", () => {
  const peer = PeerHarness.inRound("c");
  const before = JSON.stringify(peer.state);
  for (const gen of [GEN, GEN - 1]) {
    assert.deepEqual(peer.step({ type: "view", view: { ...peer.view, gen }, source: null }), []);
  }
  assert.equal(JSON.stringify(peer.state), before);
  const mine = tinyView(peer.config, { gen: GEN + 1, stages: tinyView(peer.config).stages.slice(0, 1) });
  const effects = peer.step({ type: "view", view: mine, source: null });
  assert.deepEqual(effects, [{ do: "unload" }], "a view without it makes it a spare");
});

Deno.test("peer core: open, commit and snapshot of another generation change nothing", () => {
  const peer = PeerHarness.inRound("c");
  const before = JSON.stringify(peer.state);
  for (const gen of [GEN - 1, GEN + 1]) {
    assert.deepEqual(peer.step({ type: "open", gen, step: 0, pass: "train" }), []);
    assert.deepEqual(peer.step({ type: "commit", gen, step: 0, gradNormSq: 1 }), []);
    assert.deepEqual(peer.step({ type: "snapshot", gen, step: 0, stage: 1 }), []);
  }
  assert.deepEqual(
    peer.step({ type: "commit", gen: GEN, step: 4, gradNormSq: 1 }),
    [],
    "a commit of another step",
  );
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
      if (what !== order.at(-1)) assert.deepEqual(said(effects), [], `logged after ${what} of ${order}`);
    }
    const logged = said(effects);
    assert.deepEqual(logged.map((message) => message.type), ["logged"], order.join());
    const [message] = logged;
    assert.ok(message?.type === "logged");
    assert.deepEqual([message.lossSum, message.lossCount, message.step, message.stage], [2, 2, 0, 1]);
    assert.deepEqual(
      sends(effects).sort(),
      ["gradient 0 to a", "gradient 2 to a", "part 0 to d", "part 0 to e"],
      order.join(),
    );
  }
});

Deno.test("peer core: shares that are no exact cover are never summed, whatever the plan says", () => {
  for (
    const { share, why } of [{ share: [1], why: /3 is missing/ }, { share: [1, 2, 3], why: /micro-batch 2/ }]
  ) {
    const peer = new PeerHarness("c");
    peer.view.stages[1]!.replicas[1]!.microBatches = share;
    peer.load();
    peer.step({ type: "open", gen: GEN, step: 0, pass: "train" });
    feedStep(peer, 0, ["0", "2"]);
    peer.work();
    const part = peer.header("part", { set: share });
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
    peer.step({ type: "commit", gen: GEN, step: 0, gradNormSq: 1 });
    peer.work();
    assert.equal(peer.state.committed, 1);
    peer.step({ type: "open", gen: GEN, step: 1, pass: "train" });
    assert.deepEqual(said(peer.work()).map((message) => message.type), ["logged"], order.join());
  }
});

Deno.test("peer core: an OPEN that comes while the commit is applied waits for it", () => {
  const peer = PeerHarness.inRound("c");
  feedStep(peer, 0, ["0", "2", "part"]);
  peer.work();
  peer.step({ type: "commit", gen: GEN, step: 0, gradNormSq: 1 });
  assert.deepEqual(peer.step({ type: "open", gen: GEN, step: 1, pass: "train" }), []);
  assert.deepEqual(peer.state.round?.step, 0);
  const effects = peer.finish({ hash: "state" });
  assert.deepEqual(said(effects), [{ type: "applied", gen: GEN, step: 0, stage: 1, hash: "state" }]);
  assert.deepEqual([peer.state.round?.step, peer.state.committed], [1, 1]);
});

Deno.test("peer core: a commit is applied once", () => {
  const peer = PeerHarness.inRound("c");
  feedStep(peer, 0, ["0", "2", "part"]);
  peer.work();
  peer.step({ type: "commit", gen: GEN, step: 0, gradNormSq: 1 });
  peer.work();
  assert.deepEqual(peer.step({ type: "commit", gen: GEN, step: 0, gradNormSq: 1 }), []);
  assert.equal(peer.state.committed, 1);
});

Deno.test("peer core: a snapshot is of exactly the step asked for", () => {
  const peer = PeerHarness.inRound("c");
  peer.step({ type: "snapshot", gen: GEN, step: 1, stage: 1 });
  peer.step({ type: "snapshot", gen: GEN, step: 1, stage: 0 });
  feedStep(peer, 0, ["0", "2", "part"]);
  peer.work((job) => {
    assert.notEqual(job.job, "export", "exported before the commit");
    return { loss: 1, hash: "h" };
  });
  peer.step({ type: "commit", gen: GEN, step: 0, gradNormSq: 1 });
  const exported: unknown[] = [];
  peer.work((job) => {
    if (job.job === "export") exported.push([job.step, job.stage]);
    return { hash: "h" };
  });
  assert.deepEqual(exported, [[1, 1]], "its own stage only, once, after the commit");
  assert.deepEqual(peer.step({ type: "snapshot", gen: GEN, step: 0, stage: 1 }), [], "a step that is gone");
});

Deno.test("peer core: a snapshot asked for behind an OPEN is exported before the new step's work", () => {
  const peer = PeerHarness.inRound("a");
  const [job] = peer.step({ type: "snapshot", gen: GEN, step: 0, stage: 0 }).filter((it) => it.do === "job");
  assert.equal(job, undefined, "one job at a time");
  const next = peer.finish().find((effect) => effect.do === "job");
  assert.ok(next?.do === "job" && next.job.job === "export");
});

Deno.test("peer core: results of an older view are dropped", () => {
  const peer = PeerHarness.inRound("a");
  const running = peer.state.busy;
  assert.equal(running?.job, "op");
  peer.step({ type: "view", view: { ...peer.view, gen: GEN + 1 }, source: null });
  const effects = peer.step({ type: "finished", job: running!, result: {} });
  assert.deepEqual(sends(effects), [], "an activation of an older view was sent");
  assert.deepEqual(effects.map((effect) => effect.do === "job" && effect.job.job), ["load"]);
});

Deno.test("peer core: an older view that has finished loading does not make the newer one ready", () => {
  const peer = new PeerHarness("c");
  peer.step({ type: "view", view: peer.view, source: null });
  const older = peer.state.busy;
  peer.step({ type: "view", view: { ...peer.view, gen: GEN + 1 }, source: null });
  for (const id of peer.state.neighbours) peer.step({ type: "link", peer: id, open: true, reason: "" });
  const effects = peer.step({ type: "finished", job: older!, result: {} });
  assert.deepEqual(said(effects), []);
  assert.equal(peer.state.loaded, false);
  assert.deepEqual(said(peer.finish()), [{ type: "ready", gen: GEN + 1 }]);
});

Deno.test("peer core: an evaluation runs forward only and is told by the last stage", () => {
  const peer = new PeerHarness("c");
  peer.load();
  peer.step({ type: "open", gen: GEN, step: 0, pass: "eval" });
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
  const effects = peer.work((job) => {
    jobs.push(job.job);
    return { hash: "h", gradNormSq: 1 };
  });
  assert.deepEqual(jobs, ["sum", "seal"]);
  assert.deepEqual(said(effects).map((message) => message.type), ["logged"]);
  assert.deepEqual(sends(effects), []);
});
