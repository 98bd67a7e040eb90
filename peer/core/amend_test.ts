// Amendments: somebody has gone and the same step goes on. What is finished stays finished, what was sent is sent again only
// to whoever is new to it, what belongs to the generation before is void.
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
import type { Job, JobResult } from "./peer_state.ts";

/** Operations in the order in which they ran: "F0 B0 W0". */
function recorder(): { ops: string[]; run: (job: Job) => JobResult } {
  const ops: string[] = [];
  const run = (job: Job) => {
    ops.push(job.job === "op" ? `${job.kind}${job.microBatch}` : job.job);
    return { loss: 1, hash: "h", gradNormSq: 1 };
  };
  return { ops, run };
}

/** c of stage 1 in a round in which it has done its share, and waits for the part of d. */
function waiting(changes: Record<string, unknown> = {}): PeerHarness {
  const peer = PeerHarness.inRound("c", changes);
  for (const microBatch of [0, 2]) peer.frame("a", peer.header("activation", { microBatch }));
  peer.work();
  return peer;
}

Deno.test("amend: finished micro-batches stay finished, and only what is taken over is computed", () => {
  const peer = waiting();
  const { engine, step } = peer.instance(1);
  peer.amend(["a:02 b:13", "c:0123 e"]);
  assert.deepEqual([peer.instance(1).engine, peer.instance(1).step], [engine, step]);
  assert.deepEqual(peer.instance(1).work!.losses, { 0: 1, 2: 1 });
  for (const microBatch of [1, 3]) {
    assert.ok(peer.frame("b", peer.header("activation", { microBatch })));
  }
  const { ops, run } = recorder();
  const effects = peer.work(run);
  assert.deepEqual(ops.toSorted(), ["B1", "B3", "F1", "F3", "W1", "W3", "seal", "sum"]);
  assert.deepEqual(answers(effects).map((message) => message.type), ["logged"]);
  assert.equal(peer.state.recomputed, 2, "micro-batches computed because somebody left are counted");
  const told = said(effects).find((message) => message.type === "losses");
  assert.ok(told?.type === "losses");
  assert.deepEqual(told.microBatches, [0, 1, 2, 3], "a later report has all of its own");
});

Deno.test("amend: a job that runs meanwhile counts, for its micro-batch is still this peer's", () => {
  const peer = PeerHarness.inRound("a");
  const running = peer.state.busy;
  assert.ok(running?.job === "op" && running.kind === "F" && running.microBatch === 0);
  peer.amend(["a:0123", "c:02 d:13 e"]);
  assert.equal(peer.state.busy, running, "it was dropped");
  const effects = peer.finish();
  assert.deepEqual(sends(effects), ["activation 0 to c"]);
  assert.equal(framesOf(effects)[0]!.gen, GEN + 1);
  assert.deepEqual(jobsOf(effects).map((job) => job.job === "op" && `${job.kind}${job.microBatch}`), ["F1"]);
});

Deno.test("amend: retained frames go again to new owners, and to nobody else", () => {
  const peer = PeerHarness.inRound("a");
  assert.deepEqual(sends(peer.work()), ["activation 0 to c", "activation 2 to c"]);
  const effects = peer.amend(["a:02 b:13", "c:0 d:13 e:2"]);
  assert.deepEqual(sends(effects), ["activation 2 to e"]);
  const [frame] = framesOf(effects);
  assert.deepEqual([frame!.recovery, frame!.gen, frame!.cut], [true, GEN + 1, CUT]);
  assert.deepEqual(sends(peer.amend(["a:02 b:13", "c:0 d:13 e:2"])), [], "e has it since the view before");
  assert.deepEqual(sends(peer.amend(["a:02 b:13", "d:013 e:2"])), ["activation 0 to d"]);
});

Deno.test("amend: gradients go again as well, to the new owner of the stage before", () => {
  const peer = PeerHarness.inRound("c");
  peer.frame("a", peer.header("activation"));
  assert.deepEqual(sends(peer.work()), ["gradient 0 to a"]);
  assert.deepEqual(sends(peer.amend(["b:0123", "c:02 d:13 e"])), ["gradient 0 to b"]);
});

Deno.test("amend: what is not computed yet has no frame to send again", () => {
  const peer = PeerHarness.inRound("a");
  peer.finish();
  assert.ok(peer.state.busy?.job === "op" && peer.state.busy.microBatch === 2);
  assert.deepEqual(sends(peer.amend(["a:02 b:13", "d:0123 e"])), ["activation 0 to d"]);
});

Deno.test("amend: frames that came before the view count for whoever takes their micro-batch over", () => {
  const peer = waiting();
  for (const microBatch of [1, 3]) {
    assert.ok(peer.frame("b", peer.header("activation", { microBatch, gen: GEN + 1 })), "kept for later");
  }
  assert.equal(peer.state.busy, null, "it computed what is not its own");
  peer.amend(["a:02 b:13", "c:0123 e"]);
  const { ops, run } = recorder();
  peer.work(run);
  assert.equal(ops.filter((op) => /^[FBW][13]$/.test(op)).length, 6, ops.join());
});

Deno.test("amend: a promoted shadow builds its engine first, then computes what it has taken over", () => {
  const peer = PeerHarness.inRound("e");
  assert.equal(peer.instance(1).engine, "none");
  const effects = peer.amend(["a:02 b:13", "d:13 e:02"]);
  const [job] = jobsOf(effects);
  assert.ok(job?.job === "engine" && job.stage === 1 && job.plan.replicas[1]!.peer === "e");
  assert.ok(peer.frame("a", peer.header("activation")));
  assert.equal(peer.state.busy, job, "an operation without an engine");
  const { ops, run } = recorder();
  peer.work(run);
  assert.deepEqual(ops, ["engine", "F0", "B0", "W0"]);
  assert.equal(peer.instance(1).engine, "ready");
});

Deno.test("amend: a shadow whose engine lacks the newest parameters brings it up to date before it computes", () => {
  const peer = PeerHarness.inRound("e");
  for (const [from, set] of [["c", [0, 2]], ["d", [1, 3]]] as const) {
    peer.frame(from, peer.header("part", { set: [...set] }));
  }
  peer.work();
  peer.commit(0);
  peer.work();
  assert.equal(peer.instance(1).engine, "ready");
  peer.open(1);
  for (const [from, set] of [["c", [0, 2]], ["d", [1, 3]]] as const) {
    peer.frame(from, peer.header("part", { set: [...set] }));
  }
  peer.work();
  peer.commit(1);
  peer.work();
  assert.equal(peer.instance(1).engine, "stale", "a shadow's engine is not loaded at each step");
  peer.open(2);
  assert.deepEqual(jobsOf(peer.amend(["a:02 b:13", "d:13 e:02"])).map((job) => job.job), ["engine"]);
});

Deno.test("amend: parts of the generation before are void, and every part goes out again", () => {
  const peer = PeerHarness.inRound("c");
  assert.ok(peer.frame("d", peer.header("part")));
  assert.equal(peer.instance(1).work!.parts.length, 1);
  for (const microBatch of [0, 2]) peer.frame("a", peer.header("activation", { microBatch }));
  peer.finish();
  peer.amend(["a:02 b:13", "c:02 d:13"]);
  assert.deepEqual(peer.instance(1).work!.parts, []);
  assert.equal(peer.frame("d", peer.header("part", { gen: GEN })), false, "a late one of the view before");
  assert.ok(!answers(peer.work()).some((message) => message.type === "logged"), "a void part was summed");
  assert.ok(peer.frame("d", peer.header("part", { gen: GEN + 1 })));
  assert.deepEqual(answers(peer.work()).map((message) => message.type), ["logged"]);
});

Deno.test("amend: the own part is published once in each generation, the second time as recovery", () => {
  const peer = waiting();
  const parts = (effects: Parameters<typeof framesOf>[0]) =>
    framesOf(effects).filter((frame) => frame.kind === "part").map(({ to, gen, recovery }) => [
      to,
      gen,
      recovery,
    ]);
  const effects = peer.amend(["a:02 b:13", "c:02 d:13"]);
  assert.deepEqual(parts(effects), [["d", GEN + 1, true]]);
  assert.deepEqual(parts(peer.open(0)), []);
});

Deno.test("amend: parts of a view that came early are judged when it is here", () => {
  const peer = waiting();
  assert.ok(peer.frame("d", peer.header("part", { gen: GEN + 1, set: [1, 3] })));
  assert.ok(peer.frame("e", peer.header("part", { gen: GEN + 1, set: [0] })));
  peer.amend(["a:02 b:13", "c:02 d:13 e"]);
  assert.deepEqual(peer.instance(1).work!.parts.map((part) => part.from), ["d"], "not as that view has it");
  assert.deepEqual(answers(peer.work()).map((message) => message.type), ["logged"]);
});

Deno.test("amend: a part of a later view still than the newest goes on waiting", () => {
  const peer = waiting();
  assert.ok(peer.frame("d", peer.header("part", { gen: GEN + 2 })));
  peer.amend(["a:02 b:13", "c:02 d:13"]);
  assert.deepEqual(peer.instance(1).work!.parts, []);
  peer.amend(["a:02 b:13", "c:02 d:13"]);
  assert.deepEqual(peer.instance(1).work!.parts.map((part) => part.gen), [GEN + 2]);
});

Deno.test("amend: a fixed order ends with the amendment, for the lowest number may come last now", () => {
  const peer = PeerHarness.inRound("a", { schedule: "1f1b" });
  assert.ok(peer.instance(0).work!.progress!.order !== null);
  peer.amend(["a:02 b:13", "c:0123"]);
  assert.equal(peer.instance(0).work!.progress!.order, null);
});

Deno.test("amend: a share never loses a micro-batch in the middle of a step", () => {
  const peer = waiting();
  assert.throws(() => peer.amend(["a:02 b:13", "c:0 d:123"]), /an open step lost micro-batches/);
});

Deno.test("amend: between two steps a share may shrink, also where the commit is still being followed", () => {
  const peer = waiting();
  peer.commit(0);
  assert.deepEqual(peer.state.committed, 1);
  peer.amend(["a:02 b:13", "c:0 d:123 e"]);
  peer.open(1);
  assert.ok(peer.frame("d", peer.header("total", { step: 0 })));
  peer.work();
  assert.deepEqual(peer.instance(1).work!.progress!.cells.map((cell) => cell.microBatch), [0]);
});

Deno.test("amend: an evaluation is begun anew by the coordinator, a training round goes on", () => {
  const peer = new PeerHarness("c");
  peer.load();
  peer.open(0, "eval");
  peer.frame("a", peer.header("activation", { pass: "eval" }));
  peer.finish({ loss: 1 });
  peer.amend(["a:02 b:13", "c:0123 e"]);
  assert.deepEqual([peer.instance(1).evaluation, peer.state.open], [null, null]);
  peer.open(0, "eval");
  assert.deepEqual(peer.instance(1).evaluation!.left, [0, 1, 2, 3, 4, 5]);
  const training = PeerHarness.inRound("c");
  training.amend(["a:02 b:13", "c:0123 e"]);
  assert.equal(training.state.open?.pass, "train");
});

Deno.test("amend: an evaluation's frame of the view to come waits for it", () => {
  const peer = new PeerHarness("c");
  peer.load();
  peer.open(0, "eval");
  const header = peer.header("activation", { pass: "eval", gen: GEN + 1 });
  assert.deepEqual(jobsOf(peer.receive("a", header)), [], "it was computed under the view before");
  peer.amend(["a:02 b:13", "c:02 d:13 e"]);
  assert.deepEqual(jobsOf(peer.open(0, "eval")).map((job) => job.job === "op" && job.microBatch), [0]);
});

Deno.test("amend: a total that is being looked at counts by its own hash, and no more for the one that was named", () => {
  for (const hash of ["w", "forged"]) {
    const peer = waiting();
    peer.step({ type: "adopt", cut: CUT, step: 0, stage: 1, hash: "w" });
    peer.frame("d", peer.header("total"));
    assert.equal(peer.state.busy?.job, "install");
    peer.amend(["a:02 b:13", "c:02 d:13 e"]);
    const logged = answers(peer.finish({ hash })).filter((message) => message.type === "logged");
    assert.equal(logged.length, hash === "w" ? 1 : 0);
    assert.equal(peer.instance(1).work!.total, hash === "w" ? "logged" : "none");
  }
});

Deno.test("amend: a stage is let go of when the running job has ended, and its frames with it", () => {
  const peer = PeerHarness.inRound("c", {}, ["a:02 b:13 c", "c:02 d:13"]);
  const gradient = peer.header("gradient", { toStage: 0, fromStage: 1, microBatch: 1 });
  assert.ok(peer.frame("d", gradient));
  assert.ok(peer.frame("a", peer.header("activation", { toStage: 1 })));
  assert.equal(peer.state.busy?.job, "op");
  peer.step({ type: "snapshot", cut: CUT, step: 0, stage: 0 });
  assert.deepEqual(peer.state.jobs.map((job) => job.job), ["export"]);
  const effects = peer.amend(["a:02 b:13", "c:02 d:13"]);
  assert.ok(!effects.some((effect) => effect.do === "release"), "the job may be using it");
  assert.deepEqual(peer.state.arrived.map((frame) => frame.stage), [1]);
  const after = peer.finish({ loss: 1 });
  assert.deepEqual(after.filter((effect) => effect.do === "release"), [{ do: "release", stage: 0 }]);
  assert.ok(
    after.findIndex((effect) => effect.do === "release") < after.findIndex((effect) => effect.do === "job"),
    "the next job began before",
  );
  assert.deepEqual(jobsOf(after).map((job) => job.job), ["op"], "a job for a stage that is let go of");
});

Deno.test("amend: links to peers that are no neighbours any more are closed, new ones are made", () => {
  const peer = PeerHarness.inRound("c");
  const effects = peer.amend(["a:0123", "c:02 d:13 g?"]);
  assert.deepEqual(effects.filter((effect) => effect.do === "disconnect" || effect.do === "connect"), [
    { do: "disconnect", peers: ["b", "e"] },
    { do: "connect", peers: [{ peer: "g", initiator: true }] },
  ]);
});

Deno.test("amend: a peer that logged says so again, for the coordinator may have restarted", () => {
  const peer = waiting();
  peer.frame("d", peer.header("part"));
  const [logged] = answers(peer.work());
  assert.equal(logged?.type, "logged");
  assert.deepEqual(
    answers(peer.amend(["a:02 b:13", "c:0123 e"])),
    [{ ...logged, gen: GEN + 1 }],
  );
});

Deno.test("amend: a total that was to be sent by somebody may never come: it is added up again", () => {
  const peer = waiting();
  peer.step({ type: "adopt", cut: CUT, step: 0, stage: 1, hash: "of the one that is gone" });
  assert.equal(peer.instance(1).work!.total, "asked");
  peer.amend(["a:02 b:13", "c:02 d:13"]);
  assert.deepEqual([peer.instance(1).work!.total, peer.instance(1).work!.wanted], ["none", null]);
  assert.ok(peer.frame("d", peer.header("part")));
  const [message] = answers(peer.work());
  assert.ok(message?.type === "logged" && message.hash === "h", "the hash of the gone one was waited for");
});

Deno.test("amend: a sum that runs while the view is amended is made anew", () => {
  const peer = waiting();
  peer.frame("d", peer.header("part"));
  assert.equal(peer.state.busy?.job, "sum");
  peer.amend(["a:02 b:13", "c:02 d:13"]);
  assert.deepEqual(answers(peer.work()), [], "it was sealed under the view before");
  peer.frame("d", peer.header("part"));
  const { ops, run } = recorder();
  assert.deepEqual(answers(peer.work(run)).map((message) => message.type), ["logged"]);
  assert.deepEqual(ops, ["sum", "seal"]);
});

Deno.test("amend: an amendment of a cut that a peer never had a part in makes it a learner or a spare", () => {
  const late = new PeerHarness("g");
  const view = tinyView(late.config, ["a:02 b:13", "c:02 d:13 e g?"], { gen: GEN + 1, baseStep: 7 });
  const effects = late.step({ type: "view", view, source: null });
  assert.deepEqual(jobsOf(effects), [], "there is nothing to load: its state is on its way");
  assert.deepEqual([late.state.committed, late.instance(1).step], [7, null]);
  const spare = new PeerHarness("z");
  assert.deepEqual(spare.step({ type: "view", view, source: null }), [{ do: "unload" }]);
});
