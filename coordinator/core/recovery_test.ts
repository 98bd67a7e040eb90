// Departures that cost more than an amendment: who notices, what is collected, how far a run falls back, and when it stops
// trying. Every rollback is counted and told, and nothing is lost while each stage still has a holder.
import assert from "node:assert/strict";
import { LOADING_MS } from "./loading.ts";
import { ROUND_MS } from "./run_core.ts";
import { stepsAtRisk } from "./safety.ts";
import { COMPILING_SILENCE_MS, SILENCE_MS } from "./silence.ts";
import { RunHarness } from "../../test/support/run_harness.ts";

/** Two replicas of the whole model. */
function pair(changes: Record<string, unknown> = {}): RunHarness {
  return RunHarness.training(["a", "b"], { n_stage: 1, ...changes });
}

/** One stage each, so that every departure takes a stage away. */
function chain(changes: Record<string, unknown> = {}): RunHarness {
  return RunHarness.training(["a", "b"], { n_stage: 2, ...changes });
}

Deno.test("recovery: silence puts out after longer than the peer's own beats were apart, a heartbeat keeps in", () => {
  const run = pair();
  run.pass(5_000, ["a", "b"]);
  run.pass(1_000, ["a"]);
  assert.deepEqual([Object.keys(run.state.peers), run.state.suspected], [["a", "b"], ["b"]]);
  run.pass(250, ["a", "b"]);
  assert.deepEqual(run.state.suspected, [], "a heartbeat did not clear it");
  run.pass(5_000, ["a"]);
  assert.deepEqual(Object.keys(run.state.peers), ["a"]);
  const [kicked] = run.sent("kicked");
  assert.match(kicked!.reason, /^silent for \d\.?\d? s$/);
  assert.equal(kicked!.mayReturn, true);
  assert.deepEqual(run.layout(), ["a:01"]);
});

Deno.test("recovery: a peer whose beats are not known yet has the longest limit", () => {
  const run = pair();
  run.pass(SILENCE_MS, ["a"]);
  assert.deepEqual(Object.keys(run.state.peers), ["a", "b"], "put out a moment too early");
  run.pass(500, ["a"]);
  assert.deepEqual(Object.keys(run.state.peers), ["a"]);
});

Deno.test("recovery: peers that fell silent together go together, none waits for the next view's patience", () => {
  const run = RunHarness.training(["a", "b", "c"], { n_stage: 2 });
  run.pass(SILENCE_MS + 500);
  assert.deepEqual(Object.keys(run.state.peers), []);
});

Deno.test("recovery: while it measures or loads, a peer may be silent for longer", () => {
  const run = new RunHarness({ min_peers: 2 });
  run.hello("a");
  run.pass(SILENCE_MS + 1_000);
  assert.ok(run.state.peers["a"] !== undefined, "put out while it measured");
  run.say("a", { type: "measured", blockMs: 1, memoryBytes: 1e9 });
  run.join("b");
  assert.equal(run.state.phase, "loading");
  run.pass(SILENCE_MS + 1_000);
  assert.deepEqual(Object.keys(run.state.peers), ["a", "b"], "put out while it compiled");
  run.pass(COMPILING_SILENCE_MS);
  assert.deepEqual(Object.keys(run.state.peers), []);
});

Deno.test("recovery: who was silent before a view had anything to load has no longer patience because of it", () => {
  const run = RunHarness.training(["a", "b", "c"], { n_layer: 3, n_stage: 3 });
  run.pass(SILENCE_MS - 4_000, ["a", "b"]);
  run.gone("b");
  assert.deepEqual([run.state.phase, run.members()], ["loading", ["a", "c"]]);
  run.pass(4_500, ["a"]);
  assert.deepEqual(Object.keys(run.state.peers), ["a"]);
});

Deno.test("recovery: nothing is collected and nothing lost while every stage has another holder", () => {
  const run = pair();
  run.commit();
  run.commit();
  run.gone("a");
  assert.deepEqual([run.state.phase, run.state.round], ["round", { pass: "train", step: 2 }]);
  assert.deepEqual([run.sent("snapshot"), run.reported("rollback")], [[], []]);
  assert.deepEqual([run.state.committed, run.state.stepsRedone], [2, 0]);
  run.commit();
  assert.equal(run.state.committed, 3);
});

Deno.test("recovery: without a holder of some stage the run falls back, counts and tells", () => {
  const run = chain({ checkpoint_interval: 2 });
  run.commit();
  run.commit();
  run.store();
  run.commit();
  assert.equal(stepsAtRisk(run.state), 1);
  run.gone(run.members()[0]!);
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
  run.gone(run.members()[1]!);
  assert.deepEqual([run.state.committed, run.state.stepsRedone], [0, 1]);
  assert.equal(run.sent("view").at(-1)!.source, null);
});

Deno.test("recovery: a half collected snapshot is no source", () => {
  const run = chain({ checkpoint_interval: 1 });
  run.commit();
  run.storeStage(1, 0);
  run.storeStage(1, 0);
  assert.equal(run.state.snapshots.length, 0, "one stage sent twice counted as two stages");
  run.gone(run.members()[1]!);
  assert.equal(run.state.committed, 0);
  assert.equal(run.sent("view").at(-1)!.source, null);
});

Deno.test("recovery: what was uploaded of an earlier cut is not used", () => {
  const run = chain({ checkpoint_interval: 1 });
  run.commit();
  run.store();
  const { cut } = run;
  run.join("c");
  run.gone(run.members()[0]!);
  run.ready();
  assert.notEqual(run.cut, cut);
  run.commit();
  run.storeStage(2, 0, cut);
  run.storeStage(2, 1, cut);
  assert.equal(run.state.snapshots.at(-1)!.step, 1);
  run.store();
  assert.equal(run.state.snapshots.at(-1)!.step, 2);
});

Deno.test("recovery: the last holder goes before a further one has learned: back to the last complete snapshot", () => {
  const run = pair();
  run.commit();
  run.gone("a");
  assert.equal(run.state.phase, "round");
  run.gone("b");
  assert.deepEqual([run.state.committed, run.state.stepsRedone], [0, 1]);
  assert.deepEqual([run.state.status, run.state.reason], ["waiting", "0 peers are ready, 1 needed"]);
  run.join("c");
  assert.equal(run.state.status, "warming up", "a run that has begun goes on with one peer");
});

Deno.test("recovery: a holder that lacks what is committed is no holder of it", () => {
  const run = RunHarness.training(["a", "b", "c"], { n_stage: 1, gradient_accumulation_steps: 3 });
  for (const peer of ["a", "b"]) run.logged(peer);
  assert.equal(run.state.committed, 1);
  for (const peer of ["a", "b"]) run.gone(peer);
  assert.deepEqual([run.state.committed, run.state.stepsRedone], [0, 1], "c never had the total of step 0");
});

Deno.test("recovery: a spare comes and goes without a new generation", () => {
  const run = pair();
  run.join("spare");
  const { gen } = run;
  run.gone("spare");
  assert.deepEqual([run.gen, run.state.phase], [gen, "round"]);
});

Deno.test("recovery: a spare that leaves is let go at once", () => {
  const run = pair();
  run.join("spare");
  run.say("spare", { type: "leave", reason: "" });
  assert.deepEqual(run.sent("done").map((message) => message.to), ["spare"]);
  assert.equal(run.state.peers["spare"], undefined);
});

Deno.test("recovery: when all contributors pause, the state is collected; a resume takes one in, once", () => {
  const run = pair();
  run.commit();
  for (const peer of ["a", "b"]) run.say(peer, { type: "pause", paused: true });
  run.commit();
  run.store();
  assert.deepEqual([run.state.status, run.state.reason], ["waiting", "0 peers are ready, 1 needed"]);
  assert.equal(run.did("drop").length, 0, "a paused peer stays connected");
  run.say("b", { type: "pause", paused: false });
  assert.deepEqual(run.members(), ["b"]);
  assert.deepEqual([run.state.committed, run.state.stepsRedone], [2, 0]);
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
  run.feed({ type: "tick" });
  assert.match(run.sent("kicked")[0]!.reason, /not ready after 120 s/);
  assert.deepEqual(run.members(), ["a"]);
});

Deno.test("recovery: what has to be fetched of a frozen model gives a slow line more time", () => {
  const config = {
    min_peers: 2,
    n_stage: 1,
    n_layer: 8,
    n_embd: 512,
    n_head: 8,
    n_inner: 1408,
    lora_rank: 4,
  };
  const run = new RunHarness(config);
  run.join("a");
  run.join("b");
  run.say("a", { type: "ready", gen: run.gen });
  // At a megabyte a second; layers and their gains, without table and head, would take this long.
  const { n_layer, n_embd, n_inner } = run.state.config;
  const least = 4 * n_layer * 3 * n_embd * n_inner / 1000;
  run.now += LOADING_MS + least;
  run.feed({ type: "tick" });
  assert.deepEqual(run.members(), ["a", "b"]);
  run.now += least;
  run.feed({ type: "tick" });
  assert.deepEqual(run.members(), ["a"]);
});

Deno.test("recovery: a round that does not end is done again under a new cut", () => {
  const run = pair();
  run.now += ROUND_MS + 1;
  const { cut } = run;
  run.feed({ type: "tick" });
  assert.deepEqual([run.cut > cut, run.state.phase], [true, "loading"]);
});

Deno.test("recovery: after a round that did not end the state is collected first, so that nothing is lost", () => {
  const run = pair();
  run.commit();
  run.now += ROUND_MS + 1;
  run.feed({ type: "tick" });
  assert.equal(run.state.phase, "handover");
  run.store();
  assert.deepEqual([run.state.view!.baseStep, run.state.committed, run.state.stepsRedone], [1, 1, 0]);
});

Deno.test("recovery: a departure while a state is collected: another holder is asked for it", () => {
  const run = pair({ n_stage: 1 });
  run.commit();
  run.now += ROUND_MS + 1;
  run.feed({ type: "tick" });
  const [asked] = run.sent("snapshot").slice(-1);
  run.gone(asked!.to);
  assert.deepEqual([run.state.phase, run.sent("snapshot").at(-1)!.to], [
    "handover",
    asked!.to === "a" ? "b" : "a",
  ]);
  run.store();
  assert.deepEqual([run.state.committed, run.state.stepsRedone], [1, 0]);
});

Deno.test("recovery: a state that never arrives is given up, and the run falls back", () => {
  const run = pair();
  run.commit();
  for (let i = 0; i < 2; i++) {
    run.now += ROUND_MS + 1;
    run.feed({ type: "tick" });
  }
  assert.deepEqual([run.state.phase, run.state.committed, run.state.stepsRedone], ["loading", 0, 1]);
});

/** Fails the present generation `count` times without a commit in between. */
function failTimes(run: RunHarness, count: number): void {
  for (let i = 0; i < count; i++) {
    // The next attempt may wait a little, and its peers are there meanwhile.
    for (let beats = 0; run.state.phase === "idle" && beats < 40; beats++) run.pass(250, ["a", "b"]);
    const [first, second] = run.members();
    assert.equal(run.state.phase, "loading");
    run.say(first!, { type: "link-lost", gen: run.gen, peer: second!, reason: "closed" });
  }
}

Deno.test("recovery: failures that follow each other give a silent peer the time to be found out", () => {
  const run = new RunHarness({ min_peers: 3, n_stage: 3, n_layer: 3 });
  for (const peer of ["a", "b", "c"]) run.join(peer);
  const lose = () => {
    for (const peer of ["a", "b"]) {
      if (run.members().includes("c")) {
        run.say(peer, { type: "link-lost", gen: run.gen, peer: "c", reason: "closed" });
      }
    }
  };
  for (const end = run.now + 30_000; run.now < end && run.state.peers["c"] !== undefined;) {
    lose();
    run.pass(250, ["a", "b"]);
  }
  assert.deepEqual(Object.keys(run.state.peers), ["a", "b"]);
  assert.notEqual(run.state.status, "failed");
});

Deno.test("recovery: a clock that is set back does not make the pause before an attempt longer", () => {
  const run = new RunHarness({ min_peers: 2, n_stage: 2 });
  for (const peer of ["a", "b"]) run.join(peer);
  run.now += 60_000;
  failTimes(run, 8);
  assert.equal(run.state.phase, "idle", "it was tried again at once");
  run.now -= 30_000;
  run.pass(6_000, ["a", "b"]);
  assert.equal(run.state.phase, "loading");
});

Deno.test("recovery: after 20 failures in a row the run gives up; a commit in between starts the count anew", () => {
  const run = new RunHarness({ min_peers: 2, n_stage: 2 });
  for (const peer of ["a", "b"]) run.join(peer);
  failTimes(run, 20);
  run.pass(6_000, ["a", "b"]);
  run.ready();
  assert.equal(run.state.status, "training");
  run.commit();
  assert.equal(run.state.barren, 0);
  run.now += ROUND_MS + 1;
  run.feed({ type: "tick" });
  run.store();
  assert.equal(run.state.barren, 1);
  failTimes(run, 19);
  run.pass(6_000, ["a", "b"]);
  assert.equal(run.state.status, "warming up");
  failTimes(run, 1);
  assert.equal(run.state.status, "failed");
  assert.match(run.state.reason, /20 attempts in a row failed: link between \w+ and \w+ lost/);
  const { gen } = run;
  run.join("c");
  assert.equal(run.gen, gen, "a failed run started again");
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
    run.gone(`visitor${i}`);
    if (run.state.phase === "handover") run.store();
    run.ready();
    run.say("a", { type: "pause", paused: false });
    run.ready();
  }
  assert.equal(run.state.status, "paused");
  assert.equal(run.state.committed, 1);
});
