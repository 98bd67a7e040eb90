// An instance whose steps are made on the GPU: when its state is taken back, and what it does not send or promise until then.
import assert from "node:assert/strict";
import { CUT, framesOf, GEN, jobsOf, PeerHarness, said } from "../../test/support/peer_harness.ts";
import type { Job, PeerEffect } from "./peer_state.ts";
import type { OptimizerId } from "../wire/run.ts";

const ALONE = ["a:0123", "c:0123"];
const LEARNING = ["a:0123", "c:0123 g?"];

/** The same view with an optimizer for stage 1. */
function planned(peer: PeerHarness, optimizer: OptimizerId): void {
  Object.assign(peer.view.stages[1]!, { optimizer });
}

/** c, which holds stage 1 alone and makes its steps on the GPU. */
function onGpu(): PeerHarness {
  const peer = new PeerHarness("c", { max_iters: 100 }, ALONE);
  planned(peer, "gpu");
  peer.load();
  return peer;
}

/** g begins to learn stage 1. */
function amended(peer: PeerHarness): PeerEffect[] {
  const { stages } = peer.view;
  const [first, second] = stages;
  const learner = { peer: "g", microBatches: [], learning: true };
  const exact = { ...second!, optimizer: "exact" as const, replicas: [...second!.replicas, learner] };
  const gen = peer.view.gen + 1;
  peer.view = { ...peer.view, gen, stages: [first!, exact] };
  return peer.step({ type: "view", view: peer.view, source: null });
}

/** A step from its opening to its commit; the jobs that are done until the peer waits again. */
function train(peer: PeerHarness, step: number): Job["job"][] {
  const done: Job["job"][] = [];
  const work = () =>
    peer.work((job) => {
      done.push(job.job);
      return { hash: job.job === "apply" ? "unread" : "h", loss: 1 };
    });
  peer.open(step);
  for (const microBatch of [0, 1, 2, 3]) peer.frame("a", peer.header("activation", { step, microBatch }));
  work();
  peer.commit(step);
  work();
  return done;
}

Deno.test("optimizer: between two steps the state is taken back at once, and told with its hash", () => {
  const peer = onGpu();
  assert.ok(!train(peer, 0).includes("exact"));
  assert.equal(peer.instance(1).optimizer, "gpu");
  const [job, ...others] = jobsOf(amended(peer));
  assert.deepEqual([job?.job, others.length], ["exact", 0]);
  assert.ok(job?.job === "exact" && job.step === 1 && job.stage === 1);
  assert.deepEqual(said(peer.finish({ hash: "state" })), [
    { type: "applied", cut: CUT, gen: GEN + 1, step: 0, stage: 1, hash: "state" },
  ]);
  assert.deepEqual([peer.instance(1).optimizer, peer.instance(1).oldest], ["exact", 1]);
  assert.ok(!train(peer, 1).includes("exact"), "once");
});

Deno.test("optimizer: a commit that is still being applied comes first", () => {
  const peer = onGpu();
  peer.open(0);
  for (const microBatch of [0, 1, 2, 3]) peer.frame("a", peer.header("activation", { microBatch }));
  peer.work();
  assert.deepEqual(jobsOf(peer.commit(0)).map(({ job }) => job), ["apply"]);
  assert.deepEqual(jobsOf(amended(peer)), []);
  const [job] = jobsOf(peer.finish({ hash: "unread" }));
  assert.ok(job?.job === "exact" && job.step === 1, "it says which steps the state contains");
});

Deno.test("optimizer: a step that is under way ends as it began; nobody is promised its total", () => {
  const peer = onGpu();
  peer.open(0);
  for (const microBatch of [0, 1, 2, 3]) peer.frame("a", peer.header("activation", { microBatch }));
  const effects = amended(peer);
  const done: Job["job"][] = [];
  effects.push(...peer.work(({ job }) => {
    done.push(job);
    return { hash: "h", loss: 1 };
  }));
  assert.ok(!done.includes("exact") && done.at(-1) === "seal");
  assert.deepEqual(framesOf(effects).filter(({ kind }) => kind === "part"), [], "its sum is on the GPU");
  const asked = { type: "send-total" as const, cut: CUT, stage: 1, to: "g" };
  const noTotal = (step: number) => [{ type: "no-total", cut: CUT, step, stage: 1, to: "g" }];
  assert.deepEqual(said(peer.step({ ...asked, step: 0 })), noTotal(0));
  peer.commit(0);
  peer.work((job) => {
    done.push(job.job);
    return { hash: "state" };
  });
  assert.deepEqual(done.slice(-2), ["apply", "exact"]);
  assert.deepEqual(said(peer.step({ ...asked, step: 0 })), noTotal(0), "it was never an integer");
  train(peer, 1);
  assert.equal(framesOf(peer.step({ ...asked, step: 1 })).length, 1, "from there on totals are kept");
});

Deno.test("optimizer: a plan without one, and a learner's, are exact from the start", () => {
  const peer = PeerHarness.inRound("c", {}, ALONE);
  assert.equal(peer.instance(1).optimizer, "exact");
  const learner = new PeerHarness("g", {}, LEARNING);
  planned(learner, "exact");
  learner.load();
  assert.equal(learner.instance(1).optimizer, "exact");
  assert.deepEqual(jobsOf(learner.open(0)), []);
});
