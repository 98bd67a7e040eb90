// Two steps at once in one peer (schedule 2bw): the second is computed while the first waits for its commit, keeps to itself until it
// is its turn, and goes through departures like the first.
import assert from "node:assert/strict";
import { answers, framesOf, GEN, jobsOf, PeerHarness, sends } from "../../test/support/peer_harness.ts";
import type { Job, PeerEffect } from "./peer_state.ts";

/** Peer c of stage 1, with micro-batches 0 and 2; both steps are open. */
function inBoth(holders?: string[]): PeerHarness {
  const peer = PeerHarness.inRound("c", { schedule: "2bw" }, holders);
  peer.open(1);
  return peer;
}

function activation(peer: PeerHarness, step: number, microBatch: number): PeerEffect[] {
  return peer.receive("a", peer.header("activation", { step, microBatch }));
}

function opsOf(effects: PeerEffect[]): string[] {
  return jobsOf(effects).flatMap((job) =>
    job.job === "op" ? [`${job.kind}${job.microBatch}@${job.step}`] : []
  );
}

/** Computes everything that can be; the operations, in order. */
function compute(peer: PeerHarness, begun: PeerEffect[] = []): string[] {
  return [...opsOf(begun), ...opsOf(peer.work())];
}

Deno.test("ahead: the next step is computed while the open one waits, the older one first", () => {
  const peer = inBoth();
  assert.deepEqual(compute(peer, activation(peer, 1, 0)), ["F0@1", "B0@1", "W0@1"]);
  const begun = activation(peer, 1, 2);
  assert.deepEqual(opsOf(begun), ["F2@1"]);
  activation(peer, 0, 0);
  // The gradient that is ready goes first, whichever step it is of: it frees memory and the neighbour waits for it.
  assert.deepEqual(compute(peer), ["B2@1", "F0@0", "B0@0", "W0@0", "W2@1"]);
  assert.deepEqual(compute(peer, activation(peer, 0, 2)), ["F2@0", "B2@0", "W2@0"]);
});

Deno.test("ahead: of operations of one kind the older step's goes first, whatever its number", () => {
  const peer = inBoth();
  activation(peer, 1, 2);
  activation(peer, 1, 0);
  activation(peer, 0, 2);
  assert.deepEqual(compute(peer), ["B2@1", "F2@0", "B2@0", "F0@1", "B0@1", "W2@0", "W0@1", "W2@1"]);
});

Deno.test("ahead: frames carry their step, and nothing of the next one is summed before its turn", () => {
  const peer = inBoth();
  activation(peer, 1, 0);
  activation(peer, 1, 2);
  const effects = peer.work();
  assert.deepEqual(sends(effects), ["gradient 0 to a", "gradient 2 to a"]);
  assert.deepEqual(framesOf(effects).map(({ step }) => step), [1, 1]);
  assert.ok(peer.frame("d", peer.header("part", { step: 1 })), "a part of the next step comes early");
  assert.deepEqual(jobsOf(effects).filter((job) => job.job !== "op"), []);
  assert.deepEqual(answers(effects), []);
});

/** Step 0 as far as this peer brings it. */
function logFirst(peer: PeerHarness): void {
  for (const m of [0, 2]) activation(peer, 0, m);
  assert.ok(peer.frame("d", peer.header("part", { step: 0 })));
  peer.work();
  assert.equal(peer.instance(1).work?.total, "logged");
}

Deno.test("ahead: when the open step is applied, the next goes on with what is done of it", () => {
  const peer = inBoth();
  activation(peer, 1, 0);
  logFirst(peer);
  assert.ok(peer.frame("d", peer.header("part", { step: 1 })));
  const effects = [...peer.commit(0), ...peer.work()];
  assert.deepEqual(effects.flatMap((it) => it.do === "begin" ? [[it.pass, it.step]] : []), [["train", 1]]);
  assert.deepEqual([peer.instance(1).step, peer.instance(1).ahead], [1, null]);
  const rest = [...activation(peer, 1, 2), ...peer.work()];
  assert.deepEqual(opsOf(rest), ["F2@1", "B2@1", "W2@1"], "an operation was done twice");
  assert.deepEqual(sends(rest).filter((it) => it.startsWith("part")), ["part 0 to d", "part 0 to e"]);
  assert.deepEqual(answers(rest).map((it) => it.type), ["logged"], "the part that came early was lost");
});

Deno.test("ahead: an operation of the next step that ends while the open one is applied counts", () => {
  const peer = inBoth();
  logFirst(peer);
  const [running] = jobsOf(activation(peer, 1, 0)) as (Job & { job: "op" })[];
  assert.deepEqual([running?.kind, running?.step], ["F", 1]);
  peer.commit(0);
  assert.equal(peer.instance(1).applying, true);
  peer.finish({ loss: 1 });
  assert.deepEqual(opsOf(peer.work()), ["B0@1", "W0@1"]);
});

Deno.test("ahead: there is none in another schedule, in a shadow, before it is open, and once it is committed", () => {
  const plain = PeerHarness.inRound("c");
  plain.open(1);
  assert.equal(plain.instance(1).ahead, null);
  for (const schedule of ["dynamic", "2bw"]) {
    const late = new PeerHarness("c", { schedule });
    late.load();
    late.open(1);
    const { work } = late.instance(1);
    assert.equal(work?.step ?? null, schedule === "2bw" ? 0 : null, "the step before it is open only in 2bw");
  }
  const shadow = PeerHarness.inRound("e", { schedule: "2bw" });
  shadow.open(1);
  assert.deepEqual([shadow.instance(1).work?.step, shadow.instance(1).ahead], [0, null]);
  const early = PeerHarness.inRound("c", { schedule: "2bw" });
  assert.deepEqual(opsOf(activation(early, 1, 0)), [], "a step that nobody opened");
  assert.deepEqual(opsOf(early.open(1)), ["F0@1"]);
  early.commit(0);
  early.commit(1);
  early.work();
  assert.equal(early.instance(1).ahead?.progress, null, "a committed step is still computed");
});

Deno.test("ahead: frames of two further steps are taken, and none beyond", () => {
  const peer = inBoth();
  for (const [step, taken] of [[1, true], [2, true], [3, false]] as const) {
    assert.equal(peer.frame("a", peer.header("activation", { step, microBatch: 2 })), taken, `step ${step}`);
  }
});

Deno.test("ahead: a departure gives its share of both steps to who is left, who sends what the new owner lacks", () => {
  const peer = inBoth();
  for (const step of [0, 1]) activation(peer, step, 0);
  peer.work();
  assert.ok(peer.frame("b", peer.header("activation", { step: 1, microBatch: 1 })), "it may be owed soon");
  const effects = [...peer.amend(["b:0123", "c:0123 e"]), ...peer.work()];
  assert.deepEqual(
    framesOf(effects).filter((it) => it.kind === "gradient").map((
      it,
    ) => [it.step, it.microBatch, it.to, it.recovery]),
    [[1, 0, "b", true], [0, 0, "b", true], [1, 1, "b", false]],
  );
  assert.deepEqual(opsOf(effects), ["F1@1", "B1@1", "W1@1"], "what was here already was not used");
  assert.deepEqual(peer.instance(1).ahead?.takenOver, [1, 3]);
  assert.equal(peer.state.recomputed, 1);
});

Deno.test("ahead: a shadow that has to compute takes both steps up", () => {
  const peer = PeerHarness.inRound("e", { schedule: "2bw" });
  peer.open(1);
  for (const step of [0, 1]) {
    assert.ok(
      peer.frame("a", peer.header("activation", { step, microBatch: 0 })),
      "a shadow keeps what it may need",
    );
  }
  const effects = [...peer.amend(["a:02 b:13", "d:13 e:02"]), ...peer.work()];
  assert.equal(jobsOf(effects)[0]?.job, "engine");
  assert.deepEqual(opsOf(effects), ["F0@0", "B0@0", "F0@1", "B0@1", "W0@0", "W0@1"]);
});

Deno.test("ahead: over a link that is open again everything of both steps is sent once more", () => {
  const peer = inBoth();
  for (const step of [0, 1]) activation(peer, step, 0);
  peer.work();
  peer.link("a", false);
  const again = framesOf(peer.link("a"));
  assert.deepEqual(again.map(({ step, gen }) => [step, gen]), [[1, GEN], [0, GEN]]);
});
