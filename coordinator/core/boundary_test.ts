// Between two rounds: pause, resume, stop, snapshots, checkpoints, samples, and the end of a run. Whatever the organizer
// asks for and whenever, the run ends with a checkpoint of all its steps or says why not.
import assert from "node:assert/strict";
import { RunHarness } from "../../test/support/run_harness.ts";

function alone(changes: Record<string, unknown> = {}): RunHarness {
  return RunHarness.training(["a"], { n_stage: 1, ...changes });
}

function admin(run: RunHarness, action: "pause" | "resume" | "stop"): void {
  run.feed({ type: "admin", action });
}

/** A change that counts from the next step on begins a new cut there. */
function change(run: RunHarness): void {
  run.feed({ type: "admin", action: "change", step: 0, set: { weight_decay: 0.2 } });
}

/** Answers what the run still needs to end: evaluation, state, checkpoint. */
function settle(run: RunHarness): void {
  if (run.state.phase === "loading") run.ready();
  if (run.state.round?.pass === "eval") run.evaluate();
  if (run.state.phase === "handover") run.store();
  const final = run.did("checkpoint").find((effect) => effect.final);
  if (final !== undefined) run.checkpointed(final.source.step);
}

Deno.test("boundary: the last step is evaluated, collected, written, and then the run is finished", () => {
  const run = alone({ max_iters: 2 });
  run.commit();
  run.commit();
  assert.deepEqual(run.state.round, { pass: "eval", step: 2 });
  run.evaluate(3.5);
  assert.equal(run.state.phase, "handover");
  assert.equal(run.did("checkpoint").length, 0, "a checkpoint of an incomplete state");
  run.store();
  assert.deepEqual(run.did("checkpoint").map(({ final, source }) => [final, source.step]), [[true, 2]]);
  assert.notEqual(run.state.status, "finished", "finished before the checkpoint was on disk");
  run.checkpointed(2);
  assert.deepEqual([run.state.status, run.state.reason], ["finished", "2 steps done"]);
  assert.deepEqual(run.reported("done"), [{
    ...{ event: "done", step: 2, "train/loss": 2, "val/loss": 3.5, checkpoint: "step-2", sample: "" },
  }]);
  assert.deepEqual(run.sent("done").map((message) => message.to), ["a"]);
});

Deno.test("boundary: whatever comes while the last checkpoint is written, it is asked for once", () => {
  const run = alone({ max_iters: 1 });
  run.commit();
  run.evaluate();
  run.store();
  for (const action of ["pause", "resume", "stop"] as const) admin(run, action);
  run.say("a", { type: "leave", reason: "" });
  run.join("late");
  assert.equal(run.did("checkpoint").length, 1);
  run.checkpointed(1);
  assert.equal(run.reported("done").length, 1);
  assert.deepEqual(run.sent("done").map((message) => message.to), ["a", "late"]);
});

Deno.test("boundary: with a sample asked for, the end waits for it too", () => {
  const run = alone({ max_iters: 1, sample_chars: 5 });
  run.commit();
  run.evaluate();
  run.store();
  run.checkpointed(1);
  assert.notEqual(run.state.status, "finished");
  run.feed({ type: "sampled", step: 1, text: "Call " });
  assert.equal(run.state.status, "finished");
  assert.equal(run.reported("done")[0]!.sample, "Call ");
});

Deno.test("boundary: a last checkpoint that cannot be written fails the run and says why", () => {
  const run = alone({ max_iters: 1 });
  run.commit();
  run.evaluate();
  run.store();
  run.feed({ type: "checkpoint-failed", step: 1, reason: "disk full" });
  assert.equal(run.state.status, "failed");
  assert.match(run.state.reason, /last checkpoint could not be written: disk full/);
  run.feed({ type: "sampled", step: 1, text: "" });
  assert.equal(run.reported("done").length, 0);
});

Deno.test("boundary: an earlier checkpoint that fails late does not fail a run whose last one is written", () => {
  const run = alone({ max_iters: 2, checkpoint_interval: 1, snapshot_interval: 1 });
  run.commit();
  run.store();
  assert.deepEqual(run.did("checkpoint").map(({ final }) => final), [false]);
  run.commit();
  settle(run);
  assert.ok(run.state.ending !== null);
  const other = alone({ max_iters: 2, checkpoint_interval: 1, snapshot_interval: 1 });
  other.commit();
  other.store();
  other.commit();
  other.evaluate();
  other.store();
  other.feed({ type: "checkpoint-failed", step: 1, reason: "disk full" });
  assert.notEqual(other.state.status, "failed");
  other.checkpointed(2);
  assert.equal(other.state.status, "finished");
});

Deno.test("boundary: a failed checkpoint in between is told and the run goes on", () => {
  const run = alone();
  run.commit();
  run.feed({ type: "checkpoint-failed", step: 1, reason: "disk full" });
  assert.equal(run.state.status, "training");
  assert.ok(run.state.events.some((event) => /checkpoint of step 1 failed: disk full/.test(event.text)));
});

Deno.test("boundary: snapshots and checkpoints come at their intervals, and the run does not wait for them", () => {
  const run = alone({ snapshot_interval: 2, checkpoint_interval: 4 });
  for (let step = 1; step <= 4; step++) {
    run.commit();
    assert.equal(run.state.phase, "round");
    if (step % 2 === 0) run.store();
  }
  assert.deepEqual(run.sent("snapshot").map((message) => message.step), [2, 4]);
  assert.deepEqual(run.did("checkpoint").map((effect) => effect.source.step), [4]);
  assert.deepEqual(run.did("forget").map((effect) => effect.before), [2, 2]);
});

Deno.test("boundary: two complete snapshots are kept for peers that still load the older", () => {
  const run = alone({ snapshot_interval: 1 });
  for (let step = 1; step <= 4; step++) {
    run.commit();
    run.store();
  }
  assert.deepEqual(run.state.snapshots.map((snapshot) => snapshot.step), [3, 4]);
  assert.equal(run.did("forget").at(-1)!.before, 3);
});

Deno.test("boundary: a state that a learner may still be fetching is not forgotten under it", () => {
  const run = alone({ snapshot_interval: 1 });
  run.commit();
  run.store();
  run.join("late");
  run.commit();
  run.store();
  const offered = run.sent("state").find(({ to }) => to === "late")!;
  for (let step = 3; step <= 5; step++) {
    run.commit();
    run.store();
  }
  assert.equal(run.did("forget").at(-1)!.before, offered.step);
  run.gone("late");
  run.commit();
  run.store();
  assert.ok(run.did("forget").at(-1)!.before > offered.step);
});

Deno.test("boundary: a sample is written at each evaluation, once", () => {
  const run = alone({ eval_interval: 1, sample_chars: 5 });
  run.commit();
  run.evaluate();
  run.store();
  change(run);
  run.commit();
  settle(run);
  assert.deepEqual(run.did("sample").map((effect) => effect.source.step), [1, 2]);
  run.feed({ type: "sampled", step: 2, text: "new" });
  run.feed({ type: "sampled", step: 1, text: "late" });
  assert.deepEqual(run.state.sample, { step: 2, text: "new" });
});

Deno.test("boundary: a pause lets the open step end, holds, and resume goes on at the next step", () => {
  const run = alone();
  admin(run, "pause");
  assert.equal(run.state.status, "training");
  run.commit();
  assert.deepEqual([run.state.status, run.state.phase, run.state.round], ["paused", "held", null]);
  const opened = run.sent("open").length;
  run.feed({ type: "tick" });
  assert.equal(run.sent("open").length, opened);
  admin(run, "resume");
  assert.deepEqual([run.state.status, run.state.round], ["training", { pass: "train", step: 1 }]);
});

Deno.test("boundary: a pause while peers load holds before the first round, and lasts over a departure", () => {
  const run = new RunHarness({ min_peers: 2, n_stage: 1 });
  run.join("a");
  run.join("b");
  admin(run, "pause");
  run.ready();
  assert.equal(run.state.status, "paused");
  assert.equal(run.sent("open").length, 0);
  run.feed({ type: "gone", peer: "b", reason: "closed" });
  run.ready();
  assert.equal(run.state.status, "paused");
  assert.equal(run.sent("open").length, 0);
});

/** Brings a run into each phase in which an organizer may press the button; step 1 is committed in all but the first. */
const MOMENTS: Record<string, () => RunHarness> = {
  "in a training round": () => {
    const run = alone();
    run.commit();
    return run;
  },
  "in an evaluation": () => {
    const run = alone({ eval_interval: 1 });
    run.commit();
    assert.equal(run.state.round?.pass, "eval");
    return run;
  },
  "while paused": () => {
    const run = alone();
    admin(run, "pause");
    run.commit();
    return run;
  },
  "while a state is collected": () => {
    const run = alone();
    change(run);
    run.commit();
    assert.equal(run.state.phase, "handover");
    return run;
  },
  "while peers load": () => {
    const run = alone();
    change(run);
    run.commit();
    run.store();
    assert.equal(run.state.phase, "loading");
    return run;
  },
  "while it waits for peers": () => {
    const run = alone({ snapshot_interval: 1 });
    run.commit();
    run.store();
    run.feed({ type: "gone", peer: "a", reason: "closed" });
    assert.equal(run.state.status, "waiting");
    return run;
  },
};

for (const [moment, reach] of Object.entries(MOMENTS)) {
  Deno.test(`boundary: stop ${moment} ends with a checkpoint of every committed step`, () => {
    const run = reach();
    admin(run, "stop");
    if (run.state.round?.pass === "train") run.commit();
    for (let i = 0; i < 3; i++) settle(run);
    assert.equal(run.state.status, "finished");
    assert.equal(run.reported("done")[0]!.step, run.state.committed);
    assert.deepEqual(run.did("checkpoint").filter((it) => it.final).map((it) => it.source.step), [
      run.state.committed,
    ]);
    assert.ok(run.state.committed >= 1 && run.state.committed <= 2);
    admin(run, "resume");
    run.join("late");
    assert.equal(run.state.status, "finished", "a finished run began again");
  });
}

Deno.test("boundary: stop before the first step ends without a checkpoint and lets the peers go", () => {
  const run = new RunHarness({ min_peers: 2 });
  run.join("a");
  admin(run, "stop");
  assert.deepEqual([run.state.status, run.state.reason], ["finished", "stopped before the first step"]);
  assert.equal(run.did("checkpoint").length, 0);
  assert.deepEqual(run.sent("done").map((message) => message.to), ["a"]);
});

Deno.test("boundary: a resumed run begins at its checkpoint's step, from its files", () => {
  const files = [{
    ...{ stage: 0, firstLayer: 0, endLayer: 2, embed: true, head: true, bytes: 1, hash: "h" },
  }];
  const run = new RunHarness({ min_peers: 1, max_iters: 5 }, { step: 4, files });
  run.join("a");
  assert.deepEqual(run.sent("view")[0]!.source, { step: 4, files });
  run.ready();
  assert.deepEqual(run.state.round, { pass: "train", step: 4 });
  run.commit();
  for (let i = 0; i < 3; i++) settle(run);
  assert.deepEqual([run.state.status, run.state.committed], ["finished", 5]);
});
