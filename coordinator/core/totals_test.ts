// Totals that differ or are missing: the first hash of a stage wins, whoever lacks it gets it from a holder that has it, and
// no request waits for somebody who is gone, who does not answer, or who does not have it.
import assert from "node:assert/strict";
import { RunHarness } from "../../test/support/run_harness.ts";

/** One stage on three replicas. */
function three(): RunHarness {
  return RunHarness.training(["a", "b", "c"], { n_stage: 1, gradient_accumulation_steps: 3 });
}

/** c lacks the total of step 0, which a and b have logged. */
function behind(): RunHarness {
  const run = three();
  for (const peer of ["a", "b"]) run.logged(peer);
  assert.equal(run.state.committed, 1);
  return run;
}

function want(run: RunHarness, peer = "c", step = 0): string[] {
  return run.totalsAsked(run.say(peer, { type: "want-total", cut: run.cut, step, stage: 0 }));
}

Deno.test("totals: the first hash wins; a holder with another one is a suspect and takes the winner over", () => {
  const run = three();
  run.logged("a");
  const effects = run.logged("b", { hash: "another" });
  assert.deepEqual(run.state.suspects, { b: 1 });
  assert.deepEqual(run.sent("adopt", effects), [
    { type: "adopt", to: "b", cut: 1, step: 0, stage: 0, hash: "total 0" },
  ]);
  assert.deepEqual(want(run, "b"), ["a to b: stage 0, step 0"]);
  assert.deepEqual([run.state.committed, run.sent("kicked")], [0, []]);
  assert.deepEqual(Object.keys(run.state.logged[0]!), ["a"], "a total that differs counted");
  run.logged("b");
  assert.equal(run.state.committed, 1, "with the winner's it counts like any other");
  assert.deepEqual(run.sent("commit")[0]!.hashes, ["total 0"]);
});

Deno.test("totals: a suspect that insists is told the winner each time, and counted", () => {
  const run = three();
  run.logged("a");
  for (let i = 0; i < 2; i++) {
    const effects = run.logged("b", { hash: "another" });
    assert.deepEqual(run.sent("adopt", effects).map(({ to }) => to), ["b"]);
  }
  assert.equal(run.state.suspects["b"], 2);
});

Deno.test("totals: when the only one with the winner dies, the next total wins and the others are told", () => {
  const run = three();
  run.logged("a");
  run.logged("b", { hash: "another" });
  want(run, "b");
  run.gone("a");
  assert.deepEqual(run.state.logged[0], {});
  const effects = run.logged("c", { hash: "third" });
  assert.deepEqual(run.sent("adopt", effects).map(({ to, hash }) => [to, hash]), [["b", "third"]]);
  assert.deepEqual(run.totalsAsked(effects), ["c to b: stage 0, step 0"]);
  run.logged("b", { hash: "third" });
  assert.deepEqual(run.sent("commit").at(-1)!.hashes, ["third"]);
});

Deno.test("totals: who lacks a committed total gets it from one that logged it", () => {
  const run = behind();
  assert.deepEqual(want(run), ["a to c: stage 0, step 0"]);
  run.applied("c", 0, { step: 0 });
  assert.deepEqual(run.state.totalRequests, [], "a request that is fulfilled stayed");
});

Deno.test("totals: asked again, the next holder is tried, and then the first once more", () => {
  const run = behind();
  assert.deepEqual([want(run), want(run), want(run)], [
    ...[["a to c: stage 0, step 0"], ["b to c: stage 0, step 0"], ["a to c: stage 0, step 0"]],
  ]);
});

Deno.test("totals: a holder that has it no more says so, and the next is asked", () => {
  const run = behind();
  want(run);
  const no = { type: "no-total" as const, cut: 1, step: 0, stage: 0, to: "c" };
  assert.deepEqual(run.totalsAsked(run.say("b", no)), [], "it was not the one asked");
  assert.deepEqual(run.totalsAsked(run.say("a", { ...no, to: "b" })), [], "nobody asked for that");
  assert.deepEqual(run.totalsAsked(run.say("a", no)), ["b to c: stage 0, step 0"]);
});

Deno.test("totals: when the holder that was asked has gone, another one is", () => {
  const run = behind();
  want(run);
  assert.deepEqual(run.totalsAsked(run.gone("a")), ["b to c: stage 0, step 0"]);
  assert.deepEqual(run.state.totalRequests.map((it) => it.holder), ["b"]);
});

Deno.test("totals: a holder that was asked and lets go of the stage, but stays, is not waited for", () => {
  const run = RunHarness.training(["a", "b"], { n_stage: 1, gradient_accumulation_steps: 6 });
  run.join("c");
  run.commit();
  run.storeStage(1, 0);
  run.applied("c", 0);
  run.commitOnly();
  for (const peer of ["a", "b"]) run.applied(peer, 0);
  assert.deepEqual(run.layout(), ["a:024 b:135 c"], "c has no engine yet, so it computes nothing");
  for (const peer of ["a", "b"]) run.logged(peer);
  assert.deepEqual([run.state.committed, want(run, "c", 2)], [3, ["a to c: stage 0, step 2"]]);
  run.say("a", { type: "pause", paused: true });
  for (const peer of ["a", "b"]) run.applied(peer, 0);
  run.logged("a");
  const effects = run.logged("b");
  assert.deepEqual(run.layout().map((stage) => stage.includes("a")), [false]);
  assert.deepEqual(run.totalsAsked(effects), ["b to c: stage 0, step 2"]);
});

Deno.test("totals: who asked and has gone is served no more", () => {
  const run = behind();
  want(run);
  run.gone("c");
  assert.deepEqual(run.state.totalRequests, []);
});

Deno.test("totals: a holder that does not deliver within ten seconds is passed over", () => {
  const run = behind();
  want(run);
  const tick = () => run.totalsAsked(run.feed({ type: "tick" }));
  run.now += 9_999;
  assert.deepEqual(tick(), []);
  run.now += 1;
  assert.deepEqual(tick(), ["b to c: stage 0, step 0"]);
  run.now += 10_000;
  assert.deepEqual(tick(), ["a to c: stage 0, step 0"]);
});

Deno.test("totals: whoever cannot be helped after a dozen tries is put out, and may come back", () => {
  const run = behind();
  for (let i = 0; i < 13; i++) want(run);
  assert.ok(run.state.peers["c"] !== undefined);
  want(run);
  assert.equal(run.state.peers["c"], undefined);
  assert.deepEqual(run.sent("kicked").map(({ to, mayReturn }) => [to, mayReturn]), [["c", true]]);
  assert.match(run.sent("kicked")[0]!.reason, /could not follow step 0/);
});

Deno.test("totals: while nobody has it a request waits; the first that logs or applies the step serves it", () => {
  const run = three();
  assert.deepEqual(want(run), []);
  assert.deepEqual(run.state.totalRequests.map((it) => it.holder), [null]);
  assert.deepEqual(run.totalsAsked(run.logged("b")), ["b to c: stage 0, step 0"]);
  const other = behind();
  for (const peer of ["a", "b"]) delete other.state.loggers[0]![0]![["a", "b"].indexOf(peer)];
  assert.deepEqual(want(other), []);
  assert.deepEqual(other.totalsAsked(other.applied("a", 0, { step: 0 })), ["a to c: stage 0, step 0"]);
});

Deno.test("totals: of the future, of another stage or for a stranger nothing is asked", () => {
  const run = RunHarness.training(["a", "b"], { n_stage: 2 });
  run.join("spare");
  assert.deepEqual(want(run, "a", 1), []);
  assert.deepEqual(want(run, "b", 0), [], "b does not hold the first stage");
  assert.deepEqual(want(run, "spare", 0), []);
  assert.deepEqual(run.say("a", { type: "want-total", cut: 1, step: 0, stage: 7 }), []);
  assert.deepEqual(run.state.totalRequests, []);
});

Deno.test("totals: who logged a step is remembered for 64 steps, as long as the log may reach", () => {
  const run = RunHarness.training(["a", "b"], { n_stage: 1, max_iters: 100 });
  for (let step = 0; step < 66; step++) run.commit();
  const steps = Object.keys(run.state.loggers).map(Number);
  assert.deepEqual([Math.min(...steps), steps.length], [2, 64]);
  assert.equal(Object.keys(run.state.stateHashes).length, 64);
});
