// Learning a stage: a state is believed only for its hash, the totals since are fetched one by one, and nothing that was
// committed meanwhile is missed.
import assert from "node:assert/strict";
import { CUT, GEN, jobsOf, PeerHarness, said, stateFile } from "../../test/support/peer_harness.ts";
import type { PeerEffect } from "./peer_state.ts";

/** g learns stage 1; three steps are committed when it comes. */
function learner(): PeerHarness {
  const peer = new PeerHarness("g", { max_iters: 100 }, ["a:02 b:13", "c:02 d:13 e g?"]);
  peer.view.baseStep = 3;
  peer.load();
  return peer;
}

function announce(peer: PeerHarness, step: number, hash = "state"): PeerEffect[] {
  return peer.step({ type: "state", cut: CUT, step, stage: 1, file: stateFile(1, hash) });
}

function fetched(peer: PeerHarness, step: number, problem: string | null = null): PeerEffect[] {
  return peer.step({ type: "fetched", cut: CUT, step, stage: 1, file: stateFile(1), problem });
}

Deno.test("learner: fetches the state it is told of, adopts it by its hash, and says what it has", () => {
  const peer = learner();
  assert.deepEqual(announce(peer, 3), [{ do: "fetch", cut: CUT, stage: 1, step: 3, file: stateFile(1) }]);
  assert.deepEqual(announce(peer, 3), [], "one at a time");
  const [job] = jobsOf(fetched(peer, 3));
  assert.ok(job?.job === "adopt" && job.step === 3 && job.file.hash === "state");
  assert.equal(peer.instance(1).step, null, "counted before it was checked");
  assert.deepEqual(said(peer.finish({ hash: "state" })), [
    { type: "applied", cut: CUT, gen: GEN, step: 2, stage: 1, hash: "state" },
  ]);
  assert.deepEqual([peer.instance(1).step, peer.instance(1).oldest], [3, 3]);
});

Deno.test("learner: a state with another hash, or one that does not come, is asked for again", () => {
  const peer = learner();
  announce(peer, 3);
  fetched(peer, 3);
  const [wrong] = said(peer.finish({ hash: "forged" }));
  assert.ok(wrong?.type === "want-state" && wrong.stage === 1 && /another hash/.test(wrong.reason));
  assert.equal(peer.instance(1).step, null);
  announce(peer, 3);
  const [missing] = said(fetched(peer, 3, "404"));
  assert.ok(missing?.type === "want-state" && /404/.test(missing.reason));
  announce(peer, 3);
  fetched(peer, 3);
  assert.equal(said(peer.finish({ hash: "state" }))[0]?.type, "applied", "it may succeed at last");
});

Deno.test("learner: commits meanwhile are kept, and each total since is fetched in its order", () => {
  const peer = learner();
  peer.commit(3);
  announce(peer, 3);
  peer.commit(4);
  fetched(peer, 3);
  peer.commit(5);
  const effects = peer.finish({ hash: "state" });
  const applied: number[] = [];
  for (const step of [3, 4, 5]) {
    assert.deepEqual(said(effects).at(-1), { type: "want-total", cut: CUT, step, stage: 1 });
    assert.ok(peer.frame("d", peer.header("total", { step })), `total of step ${step}`);
    effects.splice(
      0,
      effects.length,
      ...peer.work((job) => {
        if (job.job === "apply") applied.push(job.step);
        return { hash: job.job === "apply" ? `after ${job.step}` : "h" };
      }),
    );
  }
  assert.deepEqual([applied, peer.instance(1).step, peer.state.committed], [[3, 4, 5], 6, 6]);
  assert.equal(peer.instance(1).engine, "stale", "built, so that it can compute once it must");
  assert.deepEqual(
    Object.keys(peer.state.commits).map(Number).filter((step) => step < 6),
    [],
    "kept for ever",
  );
});

Deno.test("learner: it takes part in the open step once it has caught up, but has no share", () => {
  const peer = learner();
  peer.open(3);
  announce(peer, 3);
  fetched(peer, 3);
  peer.finish({ hash: "state" });
  assert.deepEqual(
    said(peer.finish()),
    [{ type: "warm", cut: CUT, gen: GEN, stage: 1 }],
    "its engine is built",
  );
  assert.equal(peer.instance(1).work?.step, 3);
  for (const [from, set] of [["c", [0, 2]], ["d", [1, 3]]] as const) {
    assert.ok(peer.frame(from, peer.header("part", { set: [...set] })));
  }
  assert.equal(peer.state.busy?.job, "sum");
});

Deno.test("learner: a holder keeps its state whatever is announced, and so does one that is up to date", () => {
  const holder = PeerHarness.inRound("c");
  assert.deepEqual(announce(holder, 0), []);
  assert.deepEqual(jobsOf(fetched(holder, 0)), []);
  const peer = learner();
  assert.deepEqual(
    peer.step({ type: "state", cut: CUT + 1, step: 3, stage: 1, file: stateFile(1) }),
    [],
    "of another cut",
  );
  assert.deepEqual(fetched(peer, 3), [], "a state that it did not fetch");
});

Deno.test("learner: a coordinator that is back is asked for the state that is missing", () => {
  const peer = learner();
  const [message] = said(peer.step({ type: "resumed" }));
  assert.ok(message?.type === "want-state" && message.stage === 1);
  announce(peer, 3);
  assert.deepEqual(said(peer.step({ type: "resumed" })), [], "it is on its way");
});

Deno.test("learner: a peer that holds one stage may learn another, at its own step", () => {
  const peer = PeerHarness.inRound("a");
  const effects = peer.amend(["a:02 b:13", "c:02 d:13 e a?"]);
  assert.ok(!effects.some((effect) => effect.do === "unload" || effect.do === "release"));
  assert.deepEqual([peer.instance(0).step, peer.instance(1).step], [0, null]);
  announce(peer, 0);
  fetched(peer, 0);
  const jobs: string[] = [];
  peer.work((job) => {
    jobs.push(job.job);
    return { hash: "state" };
  });
  assert.ok(jobs.includes("adopt"));
  assert.equal(peer.instance(1).step, 0);
});

Deno.test("learner: an engine that was built for the stage as it was held before is told to nobody", () => {
  const peer = PeerHarness.inRound("e");
  peer.amend(["a:02 b:13", "c:0 d:13 e:2"]);
  assert.equal(peer.state.busy?.job, "engine");
  peer.amend(["a:02 b:13", "c:02 d:13"]);
  peer.amend(["a:02 b:13", "c:02 d:13 e?"]);
  assert.equal(peer.instance(1).step, null, "it learns the stage anew");
  assert.deepEqual(said(peer.finish()).filter((message) => message.type === "warm"), []);
  assert.equal(peer.instance(1).engine, "none");
});
