// Departures: who notices, what is collected, how far a run falls back, and when it stops trying. Every rollback is counted
// and told, and nothing is lost while each stage still has a holder.
import assert from "node:assert/strict";
import { COMPILING_SILENCE_MS, LOADING_MS, ROUND_MS, SILENCE_MS } from "./run_core.ts";
import { stepsAtRisk } from "./status.ts";
import { RunHarness } from "../../test/support/run_harness.ts";

const HEARTBEAT = {
  ...{
    type: "heartbeat" as const,
    stepMs: 1,
    bytesUp: 2,
    bytesDown: 3,
    direct: 1,
    relayed: 0,
    hidden: false,
  },
};

/** Two replicas of the whole model. */
function pair(changes: Record<string, unknown> = {}): RunHarness {
  return RunHarness.training(["a", "b"], { n_stage: 1, ...changes });
}

/** One stage each, so that every departure takes a stage away. */
function chain(changes: Record<string, unknown> = {}): RunHarness {
  return RunHarness.training(["a", "b"], { n_stage: 2, ...changes });
}

function gone(run: RunHarness, peer: string): void {
  run.feed({ type: "gone", peer, reason: "connection closed" });
}

Deno.test("recovery: silence puts out, a heartbeat keeps in", () => {
  const run = pair();
  run.now += SILENCE_MS;
  run.say("a", HEARTBEAT);
  run.feed({ type: "tick" });
  assert.deepEqual(Object.keys(run.state.peers), ["a", "b"], "put out a moment too early");
  run.now += 2;
  run.feed({ type: "tick" });
  assert.deepEqual(Object.keys(run.state.peers), ["a"]);
  assert.match(run.sent("kicked")[0]!.reason, /silent for 15 s/);
  assert.deepEqual(run.members(), ["a"]);
});

Deno.test("recovery: while it measures or loads, a peer may be silent for longer", () => {
  const run = new RunHarness({ min_peers: 2 });
  run.hello("a");
  run.now += SILENCE_MS + 1;
  run.feed({ type: "tick" });
  assert.ok(run.state.peers["a"] !== undefined, "put out while it measured");
  run.say("a", { type: "measured", blockMs: 1, memoryBytes: 1e9 });
  run.join("b");
  assert.equal(run.state.phase, "loading");
  run.now += SILENCE_MS + 1;
  run.feed({ type: "tick" });
  assert.deepEqual(Object.keys(run.state.peers), ["a", "b"], "put out while it compiled");
  run.now += COMPILING_SILENCE_MS;
  run.feed({ type: "tick" });
  assert.deepEqual(Object.keys(run.state.peers), []);
});

Deno.test("recovery: nothing is lost while every stage has a holder; its state is collected first", () => {
  const run = pair();
  run.commit();
  run.commit();
  gone(run, "a");
  assert.equal(run.state.phase, "handover");
  assert.deepEqual(run.sent("snapshot").map(({ to, step, stage }) => [to, step, stage]), [["b", 2, 0]]);
  run.store();
  assert.deepEqual([run.state.committed, run.state.view!.baseStep, run.state.stepsRedone], [2, 2, 0]);
  assert.equal(run.reported("rollback").length, 0);
  assert.deepEqual(run.sent("view").at(-1)!.source!.step, 2);
});

Deno.test("recovery: without a holder of some stage the run falls back, counts and tells", () => {
  const run = chain({ snapshot_interval: 2 });
  run.commit();
  run.commit();
  run.store();
  run.commit();
  assert.equal(stepsAtRisk(run.state), 1);
  gone(run, run.members()[0]!);
  assert.deepEqual([run.state.committed, run.state.stepsRedone], [2, 1]);
  assert.deepEqual(run.reported("rollback"), [{ event: "rollback", step: 2, steps_redone: 1 }]);
  assert.ok(run.state.events.some((event) => /back to step 2: 1 steps are done again/.test(event.text)));
  assert.deepEqual(run.sent("view").at(-1)!.source!.files.map((file) => file.hash), [
    "state 2/0",
    "state 2/1",
  ]);
});

Deno.test("recovery: without any snapshot the run falls back to its seed", () => {
  const run = chain();
  run.commit();
  gone(run, run.members()[1]!);
  assert.deepEqual([run.state.committed, run.state.stepsRedone], [0, 1]);
  assert.equal(run.sent("view").at(-1)!.source, null);
});

Deno.test("recovery: a half collected snapshot is no source", () => {
  const run = chain({ snapshot_interval: 1 });
  run.commit();
  run.storeStage(1, 0);
  run.storeStage(1, 0);
  assert.equal(run.state.snapshots.length, 0, "one stage sent twice counted as two stages");
  gone(run, run.members()[1]!);
  assert.equal(run.state.committed, 0);
  assert.equal(run.sent("view").at(-1)!.source, null);
});

Deno.test("recovery: what a departing holder uploaded of an older generation is not used", () => {
  const run = pair({ snapshot_interval: 1 });
  run.commit();
  const { gen } = run;
  gone(run, "a");
  run.store();
  assert.equal(run.gen, gen + 1);
  run.ready();
  run.commit();
  run.storeStage(2, 0, gen);
  assert.equal(run.state.snapshots.at(-1)!.step, 1);
  run.storeStage(2, 0);
  assert.equal(run.state.snapshots.at(-1)!.step, 2);
});

Deno.test("recovery: the last holder goes while its state is collected: back to the last complete one", () => {
  const run = pair();
  run.commit();
  gone(run, "a");
  assert.equal(run.state.phase, "handover");
  gone(run, "b");
  assert.deepEqual([run.state.committed, run.state.stepsRedone], [0, 1]);
  assert.deepEqual([run.state.status, run.state.reason], ["waiting", "0 peers are ready, 1 needed"]);
  run.join("c");
  assert.equal(run.state.status, "warming up", "a run that has begun goes on with one peer");
});

Deno.test("recovery: a spare comes and goes without a new generation", () => {
  const run = pair();
  run.join("spare");
  const { gen } = run;
  gone(run, "spare");
  assert.deepEqual([run.gen, run.state.phase], [gen, "round"]);
});

Deno.test("recovery: a peer that leaves is let go at the boundary, with thanks and without loss", () => {
  const run = pair();
  run.commit();
  run.say("a", { type: "leave", reason: "" });
  assert.deepEqual(run.members(), ["a", "b"], "it still finishes the open step");
  run.commit();
  run.store();
  assert.deepEqual(run.sent("done").map((message) => message.to), ["a"]);
  assert.deepEqual(run.did("drop").map((effect) => effect.peer), ["a"]);
  assert.deepEqual([run.members(), run.state.stepsRedone, run.state.committed], [["b"], 0, 2]);
});

Deno.test("recovery: a spare that leaves is let go at once", () => {
  const run = pair();
  run.join("spare");
  run.say("spare", { type: "leave", reason: "" });
  assert.deepEqual(run.sent("done").map((message) => message.to), ["spare"]);
  assert.equal(run.state.peers["spare"], undefined);
});

Deno.test("recovery: a contributor's pause takes the peer out, its resume takes it in, once", () => {
  const run = pair();
  run.commit();
  for (const peer of ["a", "b"]) run.say(peer, { type: "pause", paused: true });
  run.commit();
  run.store();
  assert.deepEqual([run.state.status, run.state.reason], ["waiting", "0 peers are ready, 1 needed"]);
  assert.equal(run.did("drop").length, 0, "a paused peer stays connected");
  run.say("b", { type: "pause", paused: false });
  assert.deepEqual(run.members(), ["b"]);
  const { gen } = run;
  run.ready();
  assert.deepEqual([run.gen, run.state.phase], [gen, "round"], "the same change was planned twice");
});

Deno.test("recovery: a peer that does not load in time is put out, the others go on", () => {
  const run = new RunHarness({ min_peers: 2, n_stage: 1 });
  run.join("a");
  run.join("b");
  run.say("a", { type: "ready", gen: run.gen });
  run.now += LOADING_MS + 1;
  for (const peer of ["a", "b"]) run.say(peer, HEARTBEAT);
  run.feed({ type: "tick" });
  assert.match(run.sent("kicked")[0]!.reason, /not ready after 120 s/);
  assert.deepEqual(run.members(), ["a"]);
});

Deno.test("recovery: a round that does not end is done again", () => {
  const run = pair();
  run.now += ROUND_MS + 1;
  for (const peer of ["a", "b"]) run.say(peer, HEARTBEAT);
  const { gen } = run;
  run.feed({ type: "tick" });
  assert.equal(run.gen, gen + 1);
});

Deno.test("recovery: a state that never arrives is given up, and the run falls back", () => {
  const run = pair();
  run.commit();
  gone(run, "a");
  assert.equal(run.state.phase, "handover");
  run.now += ROUND_MS + 1;
  run.say("b", HEARTBEAT);
  run.feed({ type: "tick" });
  assert.deepEqual([run.state.phase, run.state.committed, run.state.stepsRedone], ["loading", 0, 1]);
});

/** Fails the present generation `count` times without a commit in between. */
function failTimes(run: RunHarness, count: number): void {
  for (let i = 0; i < count; i++) {
    const [first, second] = run.members();
    run.say(first!, { type: "link-lost", gen: run.gen, peer: second!, reason: "closed" });
    if (run.state.phase === "handover") run.store();
    run.ready();
  }
}

Deno.test("recovery: after 20 failures in a row the run gives up; a commit in between starts the count anew", () => {
  const run = chain();
  failTimes(run, 20);
  assert.equal(run.state.status, "training");
  run.commit();
  failTimes(run, 20);
  assert.equal(run.state.status, "training");
  failTimes(run, 1);
  assert.equal(run.state.status, "failed");
  assert.match(run.state.reason, /20 attempts in a row failed: link between \w+ and \w+ lost/);
  const { gen } = run;
  run.join("c");
  assert.equal(run.gen, gen, "a failed run started again");
});

Deno.test("recovery: both ends of a lost link count as one failure", () => {
  const run = pair();
  run.commit();
  for (const [from, peer] of [["a", "b"], ["b", "a"], ["a", "b"]] as const) {
    run.say(from, { type: "link-lost", gen: run.gen, peer, reason: "closed" });
  }
  assert.equal(run.state.barren, 1);
  run.store();
  assert.equal(run.state.view!.baseStep, 1);
});

Deno.test("recovery: any number of joins and leaves before a commit is no failure", () => {
  const run = pair();
  run.feed({ type: "admin", action: "pause" });
  run.commit();
  for (let i = 0; i < 30; i++) {
    run.join(`guest${i}`);
    run.say(`guest${i}`, { type: "leave", reason: "" });
    if (run.state.phase === "handover") run.store();
    run.ready();
  }
  for (let i = 0; i < 30; i++) {
    run.join(`visitor${i}`);
    run.say("a", { type: "pause", paused: true });
    if (run.state.phase === "handover") run.store();
    run.ready();
    gone(run, `visitor${i}`);
    if (run.state.phase === "handover") run.store();
    run.ready();
    run.say("a", { type: "pause", paused: false });
    run.ready();
  }
  assert.equal(run.state.status, "paused");
  assert.equal(run.state.committed, 1);
});
