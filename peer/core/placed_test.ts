// A peer with two stages in a placed schedule: it keeps to one order over both, publishes a stage's sum as soon as its own share of
// that stage is done, and leaves the order when the view is amended.
import assert from "node:assert/strict";
import { framesOf, jobsOf, PeerHarness } from "../../test/support/peer_harness.ts";
import type { PeerEffect } from "./peer_state.ts";

/** Chimera on two peers: a computes 0 and 2 of stage 0 and 1 and 3 of stage 1, b the others. */
const CHIMERA = ["a:02 b:13", "b:02 a:13"];
/** b's order: what it waits for comes from a. */
const ORDER_OF_B = "F1/0 F0/1 B0/1 W0/1 B1/0 W1/0 F3/0 F2/1 B2/1 W2/1 B3/0 W3/0";

function inRound(): PeerHarness {
  return PeerHarness.inRound("b", { schedule: "chimera" }, CHIMERA);
}

function activation(peer: PeerHarness, microBatch: number): PeerEffect[] {
  return peer.receive("a", peer.header("activation", { fromStage: 0, toStage: 1, microBatch }));
}

function gradient(peer: PeerHarness, microBatch: number): PeerEffect[] {
  return peer.receive("a", peer.header("gradient", { fromStage: 1, toStage: 0, microBatch }));
}

function opsOf(effects: PeerEffect[]): string[] {
  return jobsOf(effects).flatMap((job) =>
    job.job === "op" ? [`${job.kind}${job.microBatch}/${job.stage}`] : []
  );
}

function parts(effects: PeerEffect[]): string[] {
  return framesOf(effects).flatMap((frame) =>
    frame.kind === "part" ? [`stage ${frame.toStage} [${frame.set}] to ${frame.to}`] : []
  );
}

Deno.test("placed: one order over both stages, whatever came first", () => {
  const peer = inRound();
  assert.equal(peer.state.busy?.job === "op" && peer.state.busy.stage, 0);
  activation(peer, 2);
  gradient(peer, 3);
  const ran = ["F1/0", ...opsOf(peer.work())];
  assert.deepEqual(ran, ["F1/0"], "2 is here, 0 is due");
  ran.push(...opsOf(activation(peer, 0)), ...opsOf(peer.work()));
  assert.deepEqual(
    ran,
    ["F1/0", "F0/1", "B0/1", "W0/1"],
    "the gradient of 1 is due, though another could go on",
  );
  ran.push(...opsOf(gradient(peer, 1)), ...opsOf(peer.work()));
  assert.equal(ran.join(" "), ORDER_OF_B);
});

Deno.test("placed: a stage's sum goes out when its share is done, while the other stage is still computed", () => {
  const peer = inRound();
  const effects = [
    ...peer.work(),
    ...activation(peer, 0),
    ...peer.work(),
    ...gradient(peer, 1),
    ...peer.work(),
  ];
  assert.deepEqual(parts(effects), []);
  const last = [...activation(peer, 2), ...peer.work()];
  assert.deepEqual(parts(last), ["stage 1 [0,2] to a"]);
  assert.equal(peer.instance(0).work!.progress!.weightGrads, 1, "stage 0 still waits for a gradient");
  const rest = [...gradient(peer, 3), ...peer.work()];
  assert.deepEqual(parts(rest), ["stage 0 [1,3] to a"]);
});

Deno.test("placed: the mirror takes over in the dynamic order, from where the step is", () => {
  const peer = inRound();
  peer.work();
  const ran = alone(peer, peer.amend(["b:0123", "b:0123"]));
  assert.deepEqual(ran.slice(0, 3), ["F0/0", "F1/1", "B1/1"], "no longer F0/1");
  assert.equal(ran.length, 3 * 8 - 1, "one forward was done before");
  assert.equal(peer.state.recomputed, 4, "two micro-batches of each stage were a's");
});

Deno.test("placed: who begins the step after the view was amended does not wait for an order that others have left", () => {
  for (const amendedBefore of [true, false]) {
    const peer = logged();
    peer.commit(0);
    assert.equal(peer.state.busy?.job, "apply");
    if (amendedBefore) peer.amend(CHIMERA);
    peer.open(1);
    if (!amendedBefore) peer.amend(CHIMERA);
    while (peer.instance(0).work?.step !== 1) peer.finish({ hash: "h" });
    assert.equal(peer.instance(0).work!.progress!.ranks !== null, amendedBefore);
  }
});

/** What b runs when its own frames come back to it, as from the shell. */
function alone(peer: PeerHarness, first: PeerEffect[]): string[] {
  const ran: string[] = [];
  for (let effects = first; effects.length > 0;) {
    ran.push(...opsOf(effects));
    const own = framesOf(effects).filter((frame) =>
      frame.to === "b" && /activation|gradient/.test(frame.kind)
    );
    const next = own.flatMap(({ kind, fromStage, toStage, microBatch }) =>
      peer.receive("b", peer.header(kind as "activation" | "gradient", { fromStage, toStage, microBatch }))
    );
    effects = [
      ...next,
      ...peer.state.busy === null ? [] : peer.finish({ loss: 1, hash: "h", gradNormSq: 1 }),
    ];
  }
  return ran;
}

/** b has done its share of step 0 and logged both totals. */
function logged(): PeerHarness {
  const peer = inRound();
  for (const microBatch of [0, 2]) activation(peer, microBatch);
  for (const microBatch of [1, 3]) gradient(peer, microBatch);
  peer.frame("a", peer.header("part", { fromStage: 0, toStage: 0, set: [0, 2] }));
  peer.frame("a", peer.header("part", { fromStage: 1, toStage: 1, set: [1, 3] }));
  peer.work();
  for (const stage of [0, 1]) assert.equal(peer.instance(stage).work!.total, "logged");
  return peer;
}
