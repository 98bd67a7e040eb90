// How a total comes to be applied: only with the hash that the commit names, else fetched from a holder and never computed
// again; what is sent to others, and how long it is kept; the two ends of a tied embedding.
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
  WHOLE,
} from "../../test/support/peer_harness.ts";

const WANTED = { type: "want-total", cut: CUT, step: 0, stage: 1 };

/** c of stage 1 that has logged the total "h" of step 0. */
function logged(changes: Record<string, unknown> = {}): PeerHarness {
  const peer = PeerHarness.inRound("c", changes);
  for (const microBatch of [0, 2]) peer.frame("a", peer.header("activation", { microBatch }));
  peer.frame("d", peer.header("part"));
  peer.work();
  assert.equal(peer.instance(1).work!.total, "logged");
  return peer;
}

/** The shadow e, which has nothing of step 0 yet. */
function shadow(): PeerHarness {
  return PeerHarness.inRound("e");
}

Deno.test("totals: a commit with another hash than the own total makes the peer fetch, never apply", () => {
  const peer = logged();
  const effects = peer.commit(0, "the first one");
  assert.deepEqual(said(effects), [WANTED]);
  assert.deepEqual(jobsOf(effects), []);
  assert.deepEqual([peer.instance(1).step, peer.state.committed], [0, 1]);
  const [install] = jobsOf(peer.receive("d", peer.header("total")));
  assert.ok(install?.job === "install");
  assert.deepEqual([install.hash, install.from, install.countTied], ["the first one", "d", false]);
  const then = peer.finish({ hash: "the first one", gradNormSq: 1 });
  assert.deepEqual(jobsOf(then).map((job) => job.job), ["apply"]);
});

Deno.test("totals: a commit that overtakes the step ends the computing, and the total is fetched", () => {
  const peer = PeerHarness.inRound("c");
  peer.frame("a", peer.header("activation"));
  assert.deepEqual(said(peer.commit(0)), [WANTED]);
  const effects = peer.finish({ loss: 1 });
  assert.deepEqual(jobsOf(effects), [], "it computed on for a step that is committed");
  assert.deepEqual(sends(effects), [], "nobody needs the gradient any more");
  assert.ok(peer.frame("d", peer.header("total")));
  peer.finish({ hash: "h" });
  assert.equal(peer.state.busy?.job, "apply");
});

Deno.test("totals: a commit that comes while the total is summed or sealed waits for its hash", () => {
  for (const hash of ["h", "another"]) {
    const peer = PeerHarness.inRound("e");
    peer.frame("c", peer.header("part", { set: [0, 2] }));
    peer.frame("d", peer.header("part"));
    assert.equal(peer.state.busy?.job, "sum");
    assert.deepEqual(said(peer.commit(0)), [], "asked for what it is about to have");
    peer.finish();
    assert.equal(peer.state.busy?.job, "seal");
    const effects = peer.finish({ hash });
    const same = hash === "h";
    assert.deepEqual(jobsOf(effects).map((job) => job.job), same ? ["apply"] : []);
    assert.deepEqual(said(effects).map((message) => message.type), [same ? "logged" : "want-total"]);
  }
});

Deno.test("totals: a fetched total with a wrong hash is not taken, and another is asked for", () => {
  const peer = shadow();
  assert.deepEqual(said(peer.commit(0)), [WANTED]);
  assert.ok(peer.frame("d", peer.header("total")));
  assert.deepEqual(said(peer.finish({ hash: "forged" })), [WANTED]);
  assert.equal(peer.instance(1).step, 0);
  assert.ok(peer.frame("c", peer.header("total")), "the next holder's");
  const effects = peer.finish({ hash: "h" });
  assert.deepEqual(jobsOf(effects).map((job) => job.job), ["apply"]);
});

Deno.test("totals: a commit is asked for once, whatever else happens", () => {
  const peer = shadow();
  assert.deepEqual(said(peer.commit(0)), [WANTED]);
  assert.deepEqual(said(peer.commit(0)), []);
  assert.deepEqual(said(peer.open(1)), []);
  assert.equal(peer.frame("d", peer.header("part")), true, "parts of the step are of no use, and no fault");
  assert.deepEqual(
    jobsOf(peer.receive("c", peer.header("part", { set: [0, 2] }))),
    [],
    "summed after commit",
  );
});

Deno.test("totals: adopt before the commit: the winner is waited for, logged with its hash, then applied", () => {
  const peer = shadow();
  const effects = peer.step({ type: "adopt", cut: CUT, step: 0, stage: 1, hash: "w" });
  assert.deepEqual(said(effects), [WANTED]);
  assert.ok(peer.frame("c", peer.header("part", { set: [0, 2] })));
  assert.deepEqual(jobsOf(peer.receive("d", peer.header("part"))), [], "summed although the winner is known");
  assert.ok(peer.frame("c", peer.header("total")));
  const [message] = said(peer.finish({ hash: "w" }));
  assert.ok(message?.type === "logged" && message.hash === "w");
  assert.deepEqual(said(peer.commit(0, "w")), []);
  assert.equal(peer.state.busy?.job, "apply");
});

Deno.test("totals: a holder that logged another total takes the winner over; one that logged the same says so again", () => {
  const peer = logged();
  // Said by a learner it did not count, and nobody would ask for it any more.
  const [again] = said(peer.step({ type: "adopt", cut: CUT, step: 0, stage: 1, hash: "h" }));
  assert.ok(again?.type === "logged" && again.hash === "h");
  assert.equal(peer.instance(1).work!.total, "logged");
  peer.step({ type: "adopt", cut: CUT, step: 0, stage: 1, hash: "w" });
  assert.equal(peer.instance(1).work!.total, "asked");
  assert.ok(peer.frame("d", peer.header("total")));
  const [message] = said(peer.finish({ hash: "w" }));
  assert.ok(message?.type === "logged" && message.hash === "w");
});

Deno.test("totals: an own total that ends otherwise than the winner is not logged", () => {
  const peer = shadow();
  peer.frame("c", peer.header("part", { set: [0, 2] }));
  peer.frame("d", peer.header("part"));
  peer.step({ type: "adopt", cut: CUT, step: 0, stage: 1, hash: "w" });
  peer.finish();
  assert.deepEqual(said(peer.finish({ hash: "mine" })), [WANTED]);
});

Deno.test("totals: adopt while the parts are added up is followed if the other end of a tied embedding is missing then", () => {
  const peer = PeerHarness.inRound("b", { tie_word_embeddings: true }, ["a:0123 b", "c:0123 d"]);
  assert.ok(peer.frame("a", peer.header("part", { toStage: 0, fromStage: 0, set: WHOLE })));
  assert.equal(peer.state.busy?.job, "sum");
  assert.deepEqual(said(peer.step({ type: "adopt", cut: CUT, step: 0, stage: 0, hash: "w" })), []);
  assert.deepEqual(said(peer.finish()), [{ ...WANTED, stage: 0 }]);
});

Deno.test("totals: adopt of a step that is over, or of a stage that is not held, changes nothing", () => {
  const peer = shadow();
  const before = JSON.stringify(peer.state);
  peer.step({ type: "adopt", cut: CUT, step: 0, stage: 0, hash: "w" });
  assert.equal(JSON.stringify(peer.state), before);
  shadowStep(peer, 0);
  const after = JSON.stringify(peer.state);
  assert.deepEqual(peer.step({ type: "adopt", cut: CUT, step: 0, stage: 1, hash: "w" }), []);
  assert.equal(JSON.stringify(peer.state), after);
});

Deno.test("totals: adopt of the next step says nothing about this one", () => {
  const peer = shadow();
  assert.deepEqual(peer.step({ type: "adopt", cut: CUT, step: 1, stage: 1, hash: "w" }), []);
  assert.equal(peer.instance(1).work!.wanted, null);
});

/** A shadow that still applies step 0, and is told the winner of step 1. */
function told(): PeerHarness {
  const peer = shadow();
  peer.frame("c", peer.header("part", { set: [0, 2] }));
  peer.frame("d", peer.header("part"));
  peer.work();
  peer.commit(0);
  assert.equal(peer.state.busy?.job, "apply");
  assert.deepEqual(peer.step({ type: "adopt", cut: CUT, step: 1, stage: 1, hash: "w" }), []);
  return peer;
}

Deno.test("totals: adopt may overtake the end of the step before, and is followed then", () => {
  const peer = told();
  peer.open(1);
  assert.ok(said(peer.work()).some((it) => it.type === "want-total" && it.step === 1));
  assert.equal(peer.instance(1).work!.wanted, "w");
});

Deno.test("totals: adopt that waits for its step is void under another view, for its holder may be gone", () => {
  const peer = told();
  peer.amend(["a:02 b:13", "c:02 d:13 e"]);
  peer.open(1);
  assert.ok(!said(peer.work()).some((it) => it.type === "want-total"));
  assert.equal(peer.instance(1).work!.wanted, null);
});

/** Asks c for the total of a step; what it answers. */
function ask(peer: PeerHarness, step: number, stage = 1) {
  return peer.step({ type: "send-total", cut: CUT, step, stage, to: "e" });
}

Deno.test("totals: a total is sent once it is logged, while it is applied, and from the log; else the answer is no", () => {
  const early = PeerHarness.inRound("c");
  const no = { type: "no-total", cut: CUT, step: 0, stage: 1, to: "e" };
  assert.deepEqual(said(ask(early, 0)), [no], "its own share is no total");
  assert.deepEqual(said(ask(early, 0, 0)), [{ ...no, stage: 0 }], "a stage that it does not hold");
  const peer = logged();
  const [frame] = framesOf(ask(peer, 0));
  assert.deepEqual(frame, {
    ...{ to: "e", kind: "total", cut: CUT, gen: GEN, pass: "train", step: 0, microBatch: 0, set: WHOLE },
    ...{ fromStage: 1, toStage: 1, range: null, recovery: true },
  });
  assert.deepEqual(said(ask(peer, 1)), [{ ...no, step: 1 }]);
  peer.commit(0);
  assert.equal(peer.state.busy?.job, "apply");
  assert.deepEqual(sends(ask(peer, 0)), ["total 0 to e"]);
  peer.work();
  assert.deepEqual(sends(ask(peer, 0)), ["total 0 to e"]);
});

/** The shadow e goes through a whole step with the parts of both replicas. */
function shadowStep(peer: PeerHarness, step: number): void {
  peer.open(step);
  peer.frame("c", peer.header("part", { step, set: [0, 2] }));
  peer.frame("d", peer.header("part", { step }));
  peer.work();
  peer.commit(step);
  peer.work();
}

Deno.test("totals: eight steps stay in the log, more while somebody learns the stage", () => {
  const logOf = (peer: PeerHarness) =>
    Array.from({ length: 12 }, (_, step) => step).filter((step) =>
      sends(peer.step({ type: "send-total", cut: CUT, step, stage: 1, to: "c" })).length > 0
    );
  const peer = PeerHarness.inRound("e", { max_iters: 100 });
  const keeps: number[] = [];
  for (let step = 0; step < 10; step++) shadowStep(peer, step);
  assert.deepEqual(logOf(peer), [2, 3, 4, 5, 6, 7, 8, 9]);
  peer.amend(["a:02 b:13", "c:02 d:13 e f?"]);
  peer.open(10);
  peer.frame("c", peer.header("part", { step: 10, set: [0, 2] }));
  peer.frame("d", peer.header("part", { step: 10 }));
  peer.work();
  const [apply] = jobsOf(peer.commit(10));
  if (apply?.job === "apply") keeps.push(apply.keep);
  peer.work();
  assert.deepEqual(keeps, [64], "the bench must keep what the core promises");
  assert.deepEqual(logOf(peer), [2, 3, 4, 5, 6, 7, 8, 9, 10]);
});

const TIED = { tie_word_embeddings: true };

/** a of stage 0 with its own end of a tied embedding summed: the other end's is missing. */
function summedEnd(): PeerHarness {
  const peer = PeerHarness.inRound("a", TIED, ["a:0123 b", "c:0123 d"]);
  peer.work();
  for (const microBatch of WHOLE) peer.frame("c", peer.header("gradient", { microBatch }));
  const effects = peer.work();
  assert.deepEqual(sends(effects).filter((it) => it.startsWith("tied")), ["tied 0 to c"]);
  assert.equal(peer.instance(0).work!.total, "summed");
  return peer;
}

Deno.test("totals: both ends of a tied embedding exchange their sums, and only then a total is whole", () => {
  const peer = summedEnd();
  const [seal] = jobsOf(peer.receive("c", peer.header("tied")));
  assert.ok(seal?.job === "seal" && seal.countTied, "the first stage counts the embedding in the norm");
  assert.deepEqual(seal.tied, { from: "c", gen: GEN });
  assert.deepEqual(answers(peer.finish({ hash: "h" })).map((message) => message.type), ["logged"]);
});

Deno.test("totals: a tied sum of the generation before is void, and both ends send theirs again", () => {
  const peer = summedEnd();
  const effects = peer.amend(["a:0123 b", "c:0123 e"]);
  assert.equal(peer.frame("c", peer.header("tied", { gen: GEN })), false, "a late one of the view before");
  const again = [...framesOf(effects), ...framesOf(peer.work())].filter((it) => it.kind === "tied");
  assert.deepEqual(again.map(({ to, gen, recovery }) => [to, gen, recovery]), [["c", GEN + 1, true]]);
  assert.ok(peer.frame("c", peer.header("tied")));
  assert.equal(peer.state.busy?.job, "seal");
});

Deno.test("totals: a tied sum of somebody who is gone does not get into a total", () => {
  const peer = PeerHarness.inRound("a", TIED, ["a:0123 b", "c:0123 d"]);
  peer.work();
  assert.ok(peer.frame("c", peer.header("tied")));
  peer.amend(["a:0123 b", "d:0123"]);
  for (const microBatch of WHOLE) peer.frame("d", peer.header("gradient", { microBatch }));
  peer.work();
  assert.equal(peer.instance(0).work!.total, "summed", "sealed with the sum of one that is gone");
  assert.ok(peer.frame("d", peer.header("tied")));
  const seal = peer.state.busy;
  assert.ok(seal?.job === "seal" && seal.tied?.from === "d");
});

Deno.test("totals: an end that has its total already sends its tied sum again under a new view", () => {
  const peer = summedEnd();
  peer.frame("c", peer.header("tied"));
  peer.work();
  assert.equal(peer.instance(0).work!.total, "logged");
  const effects = peer.amend(["a:0123", "c:0123 d"]);
  assert.deepEqual(
    sends(effects).filter((it) => it.startsWith("tied")).sort(),
    ["tied 0 to c", "tied 0 to d"],
    "d heard from b, which is gone, and would wait for ever",
  );
  assert.deepEqual(sends(peer.open(0)), [], "once in each generation");
});
