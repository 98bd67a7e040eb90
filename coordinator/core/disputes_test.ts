// Holders of a stage that tell different states: the greater number is right whoever spoke first, nothing is committed while it is
// open, and where nobody can say who is right the run goes back to what all had told alike.
import assert from "node:assert/strict";
import { RunHarness } from "../../test/support/run_harness.ts";

const OTHER = { hash: "other bits" };

/** One stage that three peers compute. */
function threeReplicas(): RunHarness {
  const run = RunHarness.training(["a", "b", "c"], { n_stage: 1, gradient_accumulation_steps: 3 });
  assert.deepEqual(run.layout(), ["a:0 b:1 c:2"]);
  return run;
}

/** One stage that one peer computes and another holds; snapshots as the coordinator collects them. */
function two(changes: Record<string, unknown> = {}): RunHarness {
  const config = { n_stage: 1, gradient_accumulation_steps: 1, shadows: true, ...changes };
  const run = RunHarness.training(["a", "b"], config);
  assert.deepEqual(run.layout(), ["a:0 b"]);
  return run;
}

Deno.test("disputes: two who agree are right, though the third spoke first; its step is begun anew", () => {
  const run = threeReplicas();
  run.commitOnly();
  run.applied("a", 0, OTHER);
  run.applied("b", 0);
  assert.deepEqual(Object.keys(run.state.peers), ["a", "b", "c"], "one against one is no majority");
  for (const peer of ["a", "b", "c"]) run.logged(peer);
  assert.equal(run.state.committed, 1, "it was committed while it was open who is right");
  const { cut } = run;
  run.applied("c", 0);
  assert.deepEqual(Object.keys(run.state.peers), ["b", "c"]);
  assert.match(run.sent("kicked")[0]!.reason, /state of stage 0 differs after step 0/);
  assert.deepEqual([run.state.committed, run.state.phase, run.state.dispute], [1, "handover", null]);
  run.store();
  run.ready();
  assert.notEqual(run.cut, cut, "what the others hold of that step still counts");
  run.commitOnly();
  assert.equal(run.state.stepsRedone, 0);
});

Deno.test("disputes: of two nobody can say who is right, so both go back to the seed if there is nothing newer", () => {
  const run = two();
  run.commit();
  run.commitOnly();
  run.applied("a", 0);
  run.applied("b", 0, OTHER);
  assert.deepEqual([run.state.committed, run.state.source, run.state.phase], [0, null, "loading"]);
  assert.deepEqual([run.state.stepsRedone, run.state.disputes], [2, { a: 1, b: 1 }]);
  assert.ok(run.state.events.some(({ text }) => /a and b differ in stage 1 after step 1/.test(text)));
  run.ready();
  run.commit();
  assert.equal(run.state.committed, 1);
});

Deno.test("disputes: what was collected before goes on counting, what came after does not", () => {
  for (const late of [false, true]) {
    const run = two({ snapshot_interval: 2, parity: false });
    run.commit();
    run.commit();
    run.store();
    assert.deepEqual(run.state.snapshots.map(({ step }) => step), [2]);
    run.commitOnly();
    run.applied("a", 0);
    if (late) {
      run.commitOnly();
      run.store();
      run.applied("a", 0);
      assert.deepEqual(run.state.snapshots.map(({ step }) => step), [2, 4]);
    }
    run.applied("b", 0, { step: 2, ...OTHER });
    assert.deepEqual([run.state.committed, run.state.source?.step], [2, 2], `${late}`);
  }
});

Deno.test("disputes: a third holder that dies before it has spoken leaves the question open for nobody", () => {
  const run = threeReplicas();
  run.commitOnly();
  run.applied("a", 0, OTHER);
  run.applied("b", 0);
  assert.deepEqual(run.state.dispute, { step: 0, stage: 0 });
  run.gone("c");
  run.pass(250, ["a", "b"]);
  assert.deepEqual([run.state.dispute, run.state.committed, run.state.phase], [null, 0, "loading"]);
});

Deno.test("disputes: a vote counts after its author is gone", () => {
  const run = threeReplicas();
  run.commitOnly();
  run.applied("a", 0);
  run.gone("a");
  run.applied("b", 0, OTHER);
  run.applied("c", 0);
  assert.deepEqual(Object.keys(run.state.peers), ["c"]);
});

Deno.test("disputes: who is among those that differ again and again is put out, the later comer first", () => {
  const run = two();
  for (const _ of [1, 2]) {
    run.commitOnly();
    run.applied("a", 0);
    run.applied("b", 0, OTHER);
    run.ready();
  }
  assert.deepEqual(Object.keys(run.state.peers), ["a"]);
  assert.match(run.sent("kicked")[0]!.reason, /differed from others' 2 times/);
});
