// Upkeep between two steps: who comes is put to use, who wants to go is let go once others hold what they hold, a stage with
// one holder gets a second. A learner counts for nothing before it has the very state of the others.
import assert from "node:assert/strict";
import { RunHarness, stateName } from "../../test/support/run_harness.ts";

/** Two replicas of the whole model. */
function pair(changes: Record<string, unknown> = {}): RunHarness {
  return RunHarness.training(["a", "b"], { n_stage: 1, ...changes });
}

function alone(changes: Record<string, unknown> = {}): RunHarness {
  return RunHarness.training(["a"], { n_stage: 1, ...changes });
}

function leave(run: RunHarness, peer: string): void {
  run.say(peer, { type: "leave", reason: "" });
}

function pause(run: RunHarness, peer: string, paused = true): void {
  run.say(peer, { type: "pause", paused });
}

Deno.test("maintain: a joined peer waits as a spare, learns from the next boundary on, and computes once it can", () => {
  const run = alone();
  const { cut } = run;
  run.join("late");
  assert.deepEqual(run.layout(), ["a:01"], "the open step was disturbed");
  run.commit();
  assert.deepEqual([run.layout(), run.state.phase], [["a:01 late?"], "round"], "the others go on meanwhile");
  assert.deepEqual(run.sent("snapshot").map(({ to, step, stage }) => [to, step, stage]), [["a", 1, 0]]);
  run.learn("late", 0);
  assert.deepEqual(run.layout(), ["a:01 late"]);
  run.commit();
  assert.deepEqual([run.layout(), run.cut], [["a:0 late:1"], cut]);
  assert.deepEqual([run.state.committed, run.state.stepsRedone, run.reported("rollback")], [2, 0, []]);
});

Deno.test("maintain: a learner that is quicker than the holders counts once they have told the same hash, and goes if another", () => {
  for (const hash of [stateName(2, 0), "another"]) {
    const run = alone();
    run.join("late");
    run.commit();
    run.storeStage(1, 0);
    run.commitOnly();
    run.applied("late", 0, { hash });
    assert.deepEqual(run.layout(), ["a:01 late?"], "it counted before anybody could agree");
    run.applied("a", 0);
    const agreed = hash === stateName(2, 0);
    assert.deepEqual(run.layout(), [agreed ? "a:01 late" : "a:01"]);
    assert.equal(run.state.peers["late"] !== undefined, agreed);
  }
});

Deno.test("maintain: a holder that is steps behind gets no work, for it would refuse what is sent to it, until it follows", () => {
  const run = pair({ gradient_accumulation_steps: 3 });
  run.join("late");
  run.commit();
  run.storeStage(1, 0);
  run.applied("late", 0);
  // The others commit without it, and its engine is ready before it has followed.
  const commitWithout = () => {
    const step = run.state.committed;
    for (const peer of ["a", "b"]) run.logged(peer);
    for (const peer of ["a", "b"]) run.applied(peer, 0, { step });
  };
  for (let i = 0; i < 2; i++) commitWithout();
  run.warm("late", 0);
  commitWithout();
  assert.deepEqual(run.layout(), ["a:02 b:1 late"]);
  run.applied("late", 0);
  commitWithout();
  assert.deepEqual(run.layout(), ["a:0 b:1 late:2"]);
});

Deno.test("maintain: a learner is told where its state is, once it has been uploaded", () => {
  const run = alone();
  run.join("late");
  run.commit();
  assert.deepEqual(run.sent("state", run.storeStage(0, 0)), [], "a state of another step");
  const effects = run.storeStage(1, 0);
  assert.deepEqual(run.sent("state", effects), [
    { type: "state", to: "late", cut: 1, step: 1, stage: 0, file: run.fileOf(1, 0) },
  ]);
  assert.deepEqual(run.sent("state", run.storeStage(1, 0)), [], "told twice");
  assert.equal(run.state.recoveryBytes, 2, "up and down again");
});

Deno.test("maintain: a learner counts for nothing before its hash agrees at the newest commit", () => {
  const run = alone();
  run.join("late");
  run.commit();
  run.storeStage(1, 0);
  assert.deepEqual(run.logged("late"), [], "a learner's total was counted");
  run.commitOnly();
  run.applied("late", 0, { step: 0 });
  assert.deepEqual(run.layout(), ["a:01 late?"], "it lacks a step that is committed");
  run.applied("late", 0, { step: 1 });
  assert.deepEqual(run.layout(), ["a:01 late?"], "there is nothing to compare its hash with yet");
  run.applied("a", 0, { step: 1 });
  assert.deepEqual(run.layout(), ["a:01 late"]);
  assert.ok(run.state.events.some((event) => event.kind === "holder"));
});

Deno.test("maintain: a learner's hash is no measure for the holders", () => {
  const run = alone();
  run.join("late");
  run.commit();
  run.storeStage(1, 0);
  run.commitOnly();
  run.applied("late", 0, { hash: "forged" });
  run.applied("a", 0);
  assert.deepEqual(
    Object.keys(run.state.peers),
    ["a"],
    "the learner goes, whose state is another, not the holder",
  );
  run.applied("late", 0, { hash: "forged" });
  assert.deepEqual(Object.keys(run.state.peers), ["a"]);
});

Deno.test("maintain: that a learner is a holder now is told with the next view, also if it gets no work", () => {
  const run = alone();
  run.join("late");
  run.commit();
  run.storeStage(1, 0);
  run.applied("late", 0);
  const { gen } = run;
  run.commit();
  const told = run.sent("view").at(-1)!.view;
  assert.equal(told.gen, gen + 1);
  assert.ok(told.stages[0]!.replicas.every((replica) => replica.learning === undefined));
});

Deno.test("maintain: an engine of another cut, or for a stage that is not held, is not counted", () => {
  const run = RunHarness.training(["a", "b"], { n_stage: 2 });
  const before = JSON.stringify(run.state.warm);
  run.say("a", { type: "warm", cut: run.cut, gen: run.gen, stage: 1 });
  run.say("a", { type: "warm", cut: run.cut, gen: run.gen, stage: 7 });
  run.join("spare");
  run.say("spare", { type: "warm", cut: run.cut, gen: run.gen, stage: 0 });
  run.say("a", { type: "warm", cut: run.cut + 1, gen: run.gen, stage: 0 });
  assert.equal(JSON.stringify(run.state.warm), before);
});

Deno.test("maintain: a learner with another state than the holders is put out, not taken in", () => {
  const run = alone();
  run.join("late");
  run.commit();
  run.storeStage(1, 0);
  run.applied("late", 0, { step: 0, hash: "forged" });
  assert.equal(run.state.peers["late"], undefined);
  assert.match(run.sent("kicked")[0]!.reason, /state of stage 0 differs/);
});

Deno.test("maintain: a holder that is new in mid-step has missed sums, so it gets the total of the step", () => {
  const run = alone();
  run.join("late");
  run.commit();
  run.logged("a");
  assert.equal(run.state.committed, 2, "a learner was waited for");
  run.applied("a", 0);
  run.storeStage(1, 0);
  run.applied("late", 0, { step: 0 });
  run.applied("late", 0, { step: 1 });
  assert.deepEqual(run.layout(), ["a:01 late"]);
  run.logged("a");
  assert.equal(run.state.committed, 2, "it counts as a holder now");
  assert.deepEqual(run.sent("adopt").map(({ to, step }) => [to, step]), [["late", 2]]);
  run.say("late", { type: "want-total", cut: run.cut, step: 2, stage: 0 });
  assert.deepEqual(run.totalsAsked(), ["a to late: stage 0, step 2"]);
});

Deno.test("maintain: a learner that is gone, or whose holder is gone, keeps nobody busy", () => {
  const run = pair({ gradient_accumulation_steps: 3 });
  run.join("late");
  run.commit();
  const [transfer] = run.state.transfers;
  assert.equal(transfer!.peer, "late");
  const asked = transfer!.from;
  run.gone(asked);
  const other = asked === "a" ? "b" : "a";
  assert.deepEqual(run.sent("snapshot").slice(-1).map(({ to }) => to), [other], "nobody else was asked");
  run.gone("late");
  assert.deepEqual([run.state.transfers, run.layout()], [[], [`${other}:012`]]);
});

Deno.test("maintain: a transfer that does not end begins anew with another holder, five times at most", () => {
  const run = pair({ gradient_accumulation_steps: 3 });
  run.join("late");
  run.commit();
  const froms = () => run.sent("snapshot").map(({ to }) => to);
  for (let i = 0; i < 4; i++) {
    run.now += 60_001;
    run.feed({ type: "tick" });
  }
  assert.deepEqual(froms(), ["b", "a", "b", "a", "b"]);
  assert.ok(run.state.peers["late"] !== undefined);
  run.now += 60_001;
  run.feed({ type: "tick" });
  assert.equal(run.state.peers["late"], undefined);
  assert.equal(run.sent("kicked")[0]!.mayReturn, true);
});

Deno.test("maintain: a learner of adapters has more time, since it also fetches the frozen model", () => {
  const wide = { n_layer: 8, n_embd: 512, n_head: 8, n_inner: 1408, lora_rank: 4 };
  const run = pair({ gradient_accumulation_steps: 3, ...wide });
  run.join("late");
  run.commit();
  run.now += 60_001;
  run.feed({ type: "tick" });
  assert.equal(run.sent("snapshot").length, 1);
  // 28 million parameters at a megabyte a second, and some for table and head.
  run.now += 130_000;
  run.feed({ type: "tick" });
  assert.equal(run.sent("snapshot").length, 2);
});

Deno.test("maintain: a learner that got a wrong state says so and gets another; nobody else may ask for one", () => {
  const run = pair({ gradient_accumulation_steps: 3 });
  run.join("late");
  run.commit();
  const want = (peer: string) => run.say(peer, { type: "want-state", cut: 1, stage: 0, reason: "hash" });
  assert.deepEqual(run.sent("snapshot", want("a")), [], "a holder has its state");
  assert.deepEqual(run.sent("snapshot", want("late")).map(({ to, step }) => [to, step]), [["a", 1]]);
});

Deno.test("maintain: a peer that leaves is let go at the boundary, with thanks and without loss", () => {
  const run = pair();
  run.commit();
  leave(run, "a");
  assert.deepEqual(run.members(), ["a", "b"], "it still finishes the open step");
  run.commit();
  assert.deepEqual(run.sent("done").map((message) => message.to), ["a"]);
  assert.deepEqual(run.did("drop").map((effect) => effect.peer), ["a"]);
  assert.deepEqual([run.layout(), run.state.stepsRedone, run.state.committed], [["b:01"], 0, 2]);
  assert.deepEqual(
    [run.state.phase, run.reported("departure")],
    ["round", []],
    "a clean leave is no departure",
  );
});

Deno.test("maintain: whoever leaves waits for another holder that has everything committed", () => {
  const run = RunHarness.training(["a", "b", "c"], { n_stage: 1, gradient_accumulation_steps: 3 });
  for (const peer of ["a", "b"]) leave(run, peer);
  // c is slow: it has neither logged nor applied the step.
  for (const peer of ["a", "b"]) run.logged(peer);
  assert.equal(run.state.committed, 1);
  assert.equal(run.members().length, 2, "one of them may go, for the other has everything");
  const [still] = run.members().filter((peer) => peer !== "c");
  assert.ok(still !== undefined, "both went, and with them the only copies");
  run.applied("c", 0, { step: 0 });
  run.logged(still);
  run.logged("c");
  assert.deepEqual([run.members(), run.state.committed], [["c"], 2]);
});

Deno.test("maintain: a lone holder that leaves waits for its successor to learn, then goes", () => {
  const run = alone();
  run.join("next");
  leave(run, "a");
  run.commit();
  assert.deepEqual([run.layout(), run.state.phase], [["a:01 next?"], "round"]);
  run.commit();
  assert.deepEqual(run.layout(), ["a:01 next?"], "it went before anybody had its state");
  run.storeStage(1, 0);
  run.applied("next", 0);
  run.commit();
  assert.deepEqual([run.layout(), run.sent("done").map(({ to }) => to)], [["next:01"], ["a"]]);
  assert.deepEqual([run.state.committed, run.state.stepsRedone], [3, 0]);
});

Deno.test("maintain: the stage of a lone holder that leaves is learned by the holder of another one", () => {
  const run = RunHarness.training(["a", "b"], { n_stage: 2 });
  run.commit();
  leave(run, "a");
  run.commit();
  assert.deepEqual([run.layout(), run.state.phase], [["a:01 b?", "b:01"], "round"]);
  run.learn("b", 0);
  run.commit();
  assert.deepEqual([run.layout(), run.state.stepsRedone], [["b:01", "b:01"], 0]);
});

Deno.test("maintain: a lone holder that leaves with nobody to follow hands its state over and goes", () => {
  const run = alone();
  run.commit();
  leave(run, "a");
  run.commit();
  assert.equal(run.state.phase, "handover");
  run.store();
  assert.deepEqual([run.members(), run.sent("done").map(({ to }) => to)], [[], ["a"]]);
  run.join("b");
  assert.deepEqual([run.state.view!.baseStep, run.state.stepsRedone], [2, 0]);
});

Deno.test("maintain: who pauses gives its work away and stays; who resumes is put to use again", () => {
  const run = pair();
  run.commit();
  pause(run, "a");
  run.commit();
  assert.deepEqual([run.layout(), run.did("drop")], [["b:01"], []]);
  pause(run, "a", false);
  run.commit();
  assert.deepEqual(run.layout(), ["b:01 a?"], "its state is old by now");
  run.learn("a", 0);
  run.commit();
  assert.deepEqual(run.layout(), ["b:0 a:1"]);
  assert.equal(run.state.stepsRedone, 0);
});

Deno.test("maintain: what a peer said of a stage before it let go of it proves nothing once it learns it anew", () => {
  const run = RunHarness.training(["a", "b", "c"], { n_stage: 1, gradient_accumulation_steps: 3 });
  const former = run.gen;
  pause(run, "c");
  run.commitOnly();
  assert.deepEqual(run.layout(), ["a:02 b:1"], "c was not let go");
  pause(run, "c", false);
  run.commit();
  assert.deepEqual(run.layout(), ["a:02 b:1 c?"]);
  // What was under way when the view came is true of a state that is no longer there.
  run.applied("c", 0, { gen: former, step: 0 });
  run.applied("c", 0, { gen: former });
  run.say("c", { type: "warm", cut: run.cut, gen: former, stage: 0 });
  assert.deepEqual(run.layout(), ["a:02 b:1 c?"], "a peer without the state counts as a holder");
  assert.ok(!run.state.warm["c"]?.includes(0));
  run.logged("c", { gen: former });
  assert.equal(run.state.logged[0]?.["c"], undefined);
  run.applied("c", 0);
  assert.deepEqual(run.layout(), ["a:02 b:1 c"]);
});

Deno.test("maintain: a stage that has lost its shadow gets another one", () => {
  const run = RunHarness.training(["a", "b", "c"], { n_stage: 2, shadows: true });
  for (let i = 0; i < 3; i++) run.commit();
  const before = run.layout();
  run.gone("b");
  run.commit();
  for (const transfer of [...run.state.transfers]) run.learn(transfer.peer, transfer.stage);
  run.commit();
  const { stages } = run.state.view!;
  assert.ok(stages.every((stage) => stage.replicas.length >= 2), `${before} became ${run.layout()}`);
  assert.equal(run.cut, 1);
});

Deno.test("maintain: without shadows a stage with one holder is left as it is", () => {
  const run = RunHarness.training(["a", "b"], { n_stage: 2 });
  run.commit();
  leave(run, "nobody");
  run.join("c");
  run.say("c", { type: "pause", paused: true });
  run.commit();
  assert.deepEqual(run.layout(), ["a:01", "b:01"]);
});

Deno.test("maintain: micro-batches are dealt out by speed, and only to engines that are built", () => {
  const run = RunHarness.training(["a"], { n_stage: 1, gradient_accumulation_steps: 6 });
  run.join("fast", { blockMs: 5 });
  run.commit();
  const { step } = run.state.transfers[0]!;
  run.storeStage(step, 0);
  run.applied("fast", 0);
  run.commitOnly();
  run.applied("a", 0);
  assert.deepEqual(run.layout(), ["a:012345 fast"], "work for an engine that is not built");
  run.warm("fast", 0);
  run.warm("fast", 1);
  run.commitOnly();
  const shares = run.state.view!.stages[0]!.replicas.map(({ peer, microBatches }) => [
    ...[peer, microBatches.length],
  ]);
  assert.deepEqual(shares, [["a", 2], ["fast", 4]]);
});

Deno.test("maintain: nobody is made a holder of more replicas than there are micro-batches", () => {
  const run = RunHarness.training(["a", "b"], { n_stage: 1, gradient_accumulation_steps: 2 });
  for (const guest of ["c", "d", "e"]) run.join(guest);
  run.commit();
  assert.ok(run.members().length < 5, run.layout().join());
});

Deno.test("maintain: without a change nothing is amended", () => {
  const run = pair();
  const { gen } = run;
  for (let i = 0; i < 5; i++) run.commit();
  assert.equal(run.gen, gen);
});

Deno.test("maintain: a spare that leaves is let go at once", () => {
  const run = pair({ gradient_accumulation_steps: 1 });
  run.join("spare");
  leave(run, "spare");
  assert.deepEqual(run.sent("done").map((message) => message.to), ["spare"]);
  assert.equal(run.state.peers["spare"], undefined);
});

Deno.test("maintain: state names tell committed steps and stage", () => {
  assert.notEqual(stateName(1, 0), stateName(0, 1));
});
