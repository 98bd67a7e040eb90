// What a peer's core makes of a loss scale and of a step that is passed over: both reach the jobs they are meant for, whenever the
// commit comes, and no other. The arithmetic is tested in peer/exact and test/kernels.
import assert from "node:assert/strict";
import { CUT, framesOf, jobsOf, PeerHarness } from "../../test/support/peer_harness.ts";
import type { Job, PeerEffect } from "./peer_state.ts";

/** d of stage 1, in a training round that was opened with scales. */
function opened(lossScale?: number[]): PeerHarness {
  const peer = new PeerHarness("d");
  peer.load();
  const scale = lossScale === undefined ? {} : { lossScale };
  peer.step({ type: "open", gen: peer.view.gen, step: 0, pass: "train", ...scale });
  return peer;
}

/** Everything that is done of the open step, until the peer waits again. */
function compute(peer: PeerHarness): Job[] {
  const done: Job[] = [];
  for (const microBatch of [1, 3]) peer.frame("a", peer.header("activation", { microBatch }));
  peer.work((job) => {
    done.push(job);
    return { loss: 1, hash: "h", gradNormSq: 1 };
  });
  return done;
}

function commit(peer: PeerHarness, changes: { skip?: boolean }): PeerEffect[] {
  return peer.step({ type: "commit", cut: CUT, step: 0, gradNormSq: 1, hashes: ["h", "h"], ...changes });
}

function scales(jobs: Job[]): (number | undefined)[] {
  return [...new Set(jobs.filter((job) => job.job === "op").map((job) => job.lossScale))];
}

Deno.test("overflow: each operation of a round has its own stage's loss scale", () => {
  assert.deepEqual(scales(compute(opened([12, 9]))), [9]);
  assert.deepEqual(scales(compute(opened())), [undefined]);
});

Deno.test("overflow: an evaluation has no loss scale, whatever the round before had", () => {
  const peer = opened([12, 9]);
  compute(peer);
  peer.frame("c", peer.header("part", { set: [0, 2] }));
  peer.work();
  commit(peer, {});
  peer.work();
  peer.open(1, "eval");
  const { microBatches } = peer.instance(1);
  const microBatch = microBatches[0]!;
  peer.frame("b", peer.header("activation", { step: 1, pass: "eval", microBatch }));
  const { busy } = peer.state;
  assert.ok(busy?.job === "op" && busy.pass === "eval", JSON.stringify(busy));
  assert.equal(busy.lossScale, undefined);
});

Deno.test("overflow: a commit that passes over the step says so to the job that ends it", () => {
  for (const skip of [true, false]) {
    const peer = opened([12, 9]);
    compute(peer);
    peer.frame("c", peer.header("part", { set: [0, 2] }));
    peer.work();
    const [job] = jobsOf(commit(peer, skip ? { skip } : {}));
    assert.ok(job?.job === "apply");
    assert.equal(job.skip ?? false, skip);
  }
});

Deno.test("overflow: who fetches a total after its commit passes over the step too", () => {
  const peer = opened([12, 9]);
  assert.deepEqual(framesOf(commit(peer, { skip: true })), []);
  peer.work();
  peer.frame("c", peer.header("total"));
  peer.finish({ hash: "h", gradNormSq: 1 });
  const { busy } = peer.state;
  assert.ok(busy?.job === "apply" && busy.skip === true, JSON.stringify(busy));
});
