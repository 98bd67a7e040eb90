// The second open step of the schedule 2bw: when it is opened, that commits stay in order, and that whatever else may happen between
// two steps waits until no step is begun.
import assert from "node:assert/strict";
import { RunHarness } from "../../test/support/run_harness.ts";
import { nextBoundary } from "./ahead.ts";
import type { RunEffect } from "./run_state.ts";

function run(changes: Record<string, unknown> = {}, peers = ["a", "b"]): RunHarness {
  const shape = { n_stage: 2, max_iters: 20, schedule: "2bw" };
  return RunHarness.training(peers, { ...shape, ...changes });
}

/** What the first peer was told to open, in order; "+" = beside the step before it. */
function opened(run: RunHarness, effects?: RunEffect[]): string[] {
  return run.sent("open", effects).filter(({ to }) => to === run.members()[0]).map(({ pass, step, ahead }) =>
    `${pass} ${step}${ahead === true ? "+" : ""}`
  );
}

Deno.test("ahead: two steps are open from the start, and each commit opens one more", () => {
  const it = run();
  assert.deepEqual(opened(it), ["train 0", "train 1+"]);
  assert.deepEqual(it.sent("open").filter(({ step }) => step === 1).map(({ to }) => to), it.members());
  it.commit();
  assert.deepEqual([it.state.round, nextBoundary(it.state)], [{ pass: "train", step: 1, ahead: true }, 3]);
  it.commit();
  assert.deepEqual(opened(it), ["train 0", "train 1+", "train 2+", "train 3+"]);
  const plain = RunHarness.training(["a", "b"], { n_stage: 2 });
  plain.commit();
  assert.deepEqual([opened(plain), nextBoundary(plain.state)], [["train 0", "train 1"], 2]);
});

Deno.test("ahead: a total of the second step counts only when it is its turn", () => {
  const it = run();
  const before = JSON.stringify(it.state.logged);
  for (const [stage, peer] of ["a", "b"].entries()) it.logged(peer, { step: 1, stage });
  assert.deepEqual([JSON.stringify(it.state.logged), it.state.committed], [before, 0]);
  it.commit();
  it.commit();
  assert.equal(it.state.committed, 2);
});

Deno.test("ahead: nothing is opened across an evaluation, the end, or a change of the configuration", () => {
  const it = run({ eval_interval: 3, max_iters: 5 });
  for (let step = 0; step < 3; step++) it.commit();
  it.evaluate();
  it.commit();
  it.commit();
  assert.deepEqual(
    opened(it),
    ["train 0", "train 1+", "train 2+", "eval 3", "train 3", "train 4+", "eval 5"],
  );
  const changed = run();
  changed.feed({ type: "admin", action: "change", step: 0, set: { weight_decay: 0.2 } });
  assert.deepEqual(
    changed.state.changes.map(({ step }) => step),
    [2],
    "a step would have two configurations",
  );
  changed.commit();
  changed.commit();
  assert.deepEqual(opened(changed), ["train 0", "train 1+"]);
  assert.equal(changed.state.phase, "handover");
});

Deno.test("ahead: who pauses or stops the run waits for both steps", () => {
  const paused = run();
  paused.feed({ type: "admin", action: "pause" });
  paused.commit();
  assert.deepEqual([paused.state.phase, paused.state.committed], ["round", 1]);
  paused.commit();
  assert.deepEqual([paused.state.phase, paused.state.committed], ["held", 2]);
  paused.feed({ type: "admin", action: "resume" });
  assert.deepEqual(opened(paused).slice(2), ["train 2", "train 3+"]);
  const stopped = run();
  stopped.feed({ type: "admin", action: "stop" });
  assert.equal(stopped.state.target, 2);
  stopped.commit();
  stopped.commit();
  assert.deepEqual(opened(stopped).slice(2), ["eval 2"]);
});

Deno.test("ahead: shares are dealt anew only when no step is begun, a snapshot is taken in between", () => {
  const it = run({ shadows: true, snapshot_interval: 1, parity: false, gradient_accumulation_steps: 4 });
  it.commit();
  assert.deepEqual(
    it.sent("snapshot").map(({ step }) => step),
    [1, 1],
    "the states pass by in every schedule",
  );
  const { gen } = it;
  it.join("c");
  it.commit();
  assert.equal(it.gen, gen, "the view was changed under an open step");
  it.commit();
  assert.ok(it.gen > gen, "the newcomer was forgotten");
});

Deno.test("ahead: a departure leaves both steps open", () => {
  const it = run({ shadows: true, gradient_accumulation_steps: 4 }, ["a", "b", "c", "d"]);
  it.commit();
  const effects = it.gone(it.state.view!.stages[0]!.replicas[0]!.peer);
  assert.deepEqual([it.state.round, opened(it, effects)], [{ pass: "train", step: 1, ahead: true }, []]);
  it.commit();
  assert.deepEqual([it.state.committed, it.state.round], [2, { pass: "train", step: 2 }], "upkeep was due");
  assert.equal(it.state.stepsRedone, 0);
});

Deno.test("ahead: after a restart a step that peers may have begun is open, even if a newcomer waits", () => {
  const before = run({}, ["a", "b"]);
  for (let step = 0; step < 3; step++) before.commit();
  const { config, spec, gen, view, committed, lastCommit } = before.state;
  const { step, cut, hashes, gradNormSq } = lastCommit!;
  const it = RunHarness.restored({
    ...{ epoch: "e", config, spec, corpusHash: "", gen, view, committed, peers: [], idsUpTo: 2, ended: null },
    commit: { step, gen, cut, hashes, gradNormSq },
  });
  it.join("c");
  for (const [stage, { replicas }] of view!.stages.entries()) {
    const [{ peer: id } = { peer: "" }] = replicas;
    const basics = { id, runtime: "deno" as const, adapter: "none", engine: "cpu", name: id };
    const stages = [{ stage, step: 3, hash: `after ${stage}`, logged: false }];
    it.feed({
      ...{ type: "return", peer: { ...basics, blockMs: 10, memoryBytes: 1e9 } },
      have: { cut, stages },
    });
  }
  assert.deepEqual(opened(it), ["train 3", "train 4+"]);
  assert.equal(it.state.tidyDue, true);
});
