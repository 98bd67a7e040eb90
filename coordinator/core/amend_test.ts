// Departures in mid-step: the view is amended and the same step goes on. Who takes the micro-batches over, what is told to
// whom, and that a link that breaks between two that live costs neither of them the run.
import assert from "node:assert/strict";
import { RunHarness } from "../../test/support/run_harness.ts";

/** Two stages of two replicas each, four micro-batches. */
function fourPeers(changes: Record<string, unknown> = {}): RunHarness {
  return RunHarness.training(["a", "b", "c", "d"], {
    ...{ n_stage: 2, gradient_accumulation_steps: 4, ...changes },
  });
}

/** Two stages on two peers, each the other's shadow. */
function shadowed(): RunHarness {
  return RunHarness.training(["a", "b"], { n_stage: 2, shadows: true });
}

Deno.test("amend: a departure amends the view: next generation, same cut, the step that is open goes on", () => {
  const run = fourPeers();
  run.commit();
  const { cut, gen } = run;
  assert.deepEqual(run.layout(), ["a:02 c:13", "b:02 d:13"]);
  const opened = run.sent("open").length;
  const effects = run.gone("c");
  assert.deepEqual([run.cut, run.gen, run.layout()], [cut, gen + 1, ["a:0123", "b:02 d:13"]]);
  assert.deepEqual([run.state.round, run.state.phase], [{ pass: "train", step: 1 }, "round"]);
  assert.equal(run.sent("open").length, opened, "a training round that is open was opened again");
  const views = run.sent("view", effects);
  assert.deepEqual(views.map((view) => [view.to, view.source, view.view.baseStep]), [
    ...["a", "b", "d"].map((to) => [to, null, 1]),
  ]);
  const persist = effects.findIndex((effect) => effect.do === "persist");
  assert.ok(
    persist >= 0 && persist < effects.findIndex((effect) => effect.do === "send"),
    "not durable first",
  );
});

Deno.test("amend: how a stage is run stays as it was: its engines go on", () => {
  const run = fourPeers({ recompute: "block" });
  const runs = () => run.state.view!.stages.map(({ inflight, recompute }) => [inflight, recompute]);
  const before = runs();
  assert.deepEqual(before.map(([, recompute]) => recompute), ["block", "block"]);
  run.commit();
  run.gone("c");
  assert.deepEqual(runs(), before);
  run.join("e");
  run.commit();
  assert.deepEqual([run.layout()[0], runs()], ["a:0123 e?", before]);
});

Deno.test("amend: what the gone one owed goes to those that compute, in proportion to their speed", () => {
  const run = new RunHarness({ n_stage: 1, gradient_accumulation_steps: 18, min_peers: 3 });
  for (const [peer, blockMs] of [["slow", 20], ["fast", 5], ["gone", 5]] as const) {
    run.join(peer, { blockMs });
  }
  run.ready();
  const shares = () =>
    Object.fromEntries(
      run.state.view!.stages[0]!.replicas.map(({ peer, microBatches }) => [peer, microBatches]),
    );
  const before = shares();
  run.gone("gone");
  const after = shares();
  for (const peer of ["slow", "fast"]) {
    assert.ok(before[peer]!.every((m) => after[peer]!.includes(m)), `${peer} lost what it had`);
    assert.deepEqual(after[peer], after[peer]!.toSorted((a, b) => a - b));
  }
  assert.deepEqual([after["slow"]!.length, after["fast"]!.length], [3, 15]);
  assert.equal(run.state.reassigned, before["gone"]!.length);
});

Deno.test("amend: without another that computes, a shadow is promoted", () => {
  const run = shadowed();
  assert.deepEqual(run.layout(), ["a:01 b", "b:01 a"]);
  run.commit();
  run.gone("a");
  assert.deepEqual(run.layout(), ["b:01", "b:01"]);
  assert.deepEqual([run.state.committed, run.state.stepsRedone], [1, 0]);
  run.commit();
  assert.equal(run.state.committed, 2);
});

Deno.test("amend: the totals of the gone count no more; what the others logged before stays", () => {
  const run = fourPeers();
  run.logged("a");
  run.logged("c");
  run.logged("b");
  run.gone("b");
  assert.deepEqual(Object.keys(run.state.logged[0]!), ["a", "c"]);
  assert.deepEqual(run.state.logged[1], {});
  assert.equal(run.state.committed, 0, "committed with the word of somebody who is gone");
  run.logged("d");
  assert.equal(run.state.committed, 1);
});

Deno.test("amend: a departure may be what a commit waited for", () => {
  const run = fourPeers();
  run.logged("a");
  run.logged("b");
  run.logged("d");
  run.gone("c");
  assert.equal(run.state.committed, 1, "the one holder that is left has logged the stage");
});

Deno.test("amend: after a departure the others need not add up what one of them has complete", () => {
  const run = fourPeers();
  run.logged("a");
  assert.deepEqual(run.sent("adopt"), [], "nobody has gone: c will be done in a moment");
  run.gone("b");
  assert.deepEqual(run.sent("adopt").map(({ to, step, stage, hash }) => [to, step, stage, hash]), [
    ["c", 0, 0, "total 0"],
  ]);
  run.say("c", { type: "want-total", cut: run.cut, step: 0, stage: 0 });
  assert.deepEqual(run.totalsAsked(), ["a to c: stage 0, step 0"]);
});

Deno.test("amend: who is done first after a departure spares the others their sum too", () => {
  const run = fourPeers();
  run.gone("b");
  run.logged("a");
  assert.deepEqual(run.sent("adopt").map(({ to }) => to), ["c"]);
});

Deno.test("amend: an evaluation that is open is begun anew under the new generation", () => {
  const run = fourPeers({ eval_interval: 1 });
  run.commit();
  assert.equal(run.state.round?.pass, "eval");
  const { gen } = run;
  run.say("d", { type: "evaluated", gen, step: 1, stage: 1, lossSum: 1, lossCount: 1 });
  const opened = run.sent("open").length;
  run.gone("b");
  assert.deepEqual(run.state.evaluated, {});
  assert.deepEqual(run.sent("open").slice(opened).map(({ to, gen, pass }) => [to, gen, pass]), [
    ...["a", "c", "d"].map((to) => [to, gen + 1, "eval"]),
  ]);
  const told = { type: "evaluated" as const, step: 1, stage: 1, lossSum: 6, lossCount: 2 };
  run.say("d", { ...told, gen });
  assert.equal(run.state.valLoss, null, "an evaluation of the view before counted");
  run.say("d", { ...told, gen: gen + 1 });
  assert.equal(run.state.valLoss, 3);
});

Deno.test("amend: two departures in one step, both survived", () => {
  const run = fourPeers();
  run.commit();
  run.gone("a");
  run.gone("b");
  assert.deepEqual(run.layout(), ["c:0123", "d:0123"]);
  run.commit();
  assert.deepEqual([run.state.committed, run.state.stepsRedone], [2, 0]);
});

Deno.test("amend: a departure while peers load begins a new cut, for nobody has a state yet", () => {
  const run = new RunHarness({ n_stage: 1, min_peers: 2 });
  run.join("a");
  run.join("b");
  const { cut } = run;
  run.gone("b");
  assert.deepEqual([run.cut > cut, run.state.phase, run.layout()], [true, "loading", ["a:01"]]);
});

Deno.test("amend: a departure while the run is paused is amended too, and nothing is opened", () => {
  const run = fourPeers();
  run.feed({ type: "admin", action: "pause" });
  run.commit();
  const opened = run.sent("open").length;
  run.gone("c");
  assert.deepEqual([run.state.status, run.state.phase, run.layout()[0]], ["paused", "held", "a:0123"]);
  assert.equal(run.sent("open").length, opened);
  run.feed({ type: "admin", action: "resume" });
  assert.deepEqual(run.state.round, { pass: "train", step: 1 });
});

/** Both ends say that they cannot link up; the second word belongs to a generation that is over. */
function linkLost(run: RunHarness, from: string, peer: string): void {
  const { gen } = run;
  run.say(from, { type: "link-lost", gen, peer, reason: "ICE failed" });
  run.say(peer, { type: "link-lost", gen, peer: from, reason: "ICE failed" });
}

Deno.test("amend: a link that cannot be made costs nobody the run: a new view lets both ends try again", () => {
  const run = fourPeers();
  run.commit();
  const layout = run.layout();
  const { cut, gen } = run;
  linkLost(run, "a", "c");
  assert.deepEqual([run.cut, run.gen, run.layout()], [cut, gen + 1, layout]);
  assert.deepEqual([run.state.round, run.sent("kicked")], [{ pass: "train", step: 1 }, []]);
});

Deno.test("amend: sums of the view before are void, so after a link loss, too, a complete total is spread", () => {
  const run = fourPeers();
  run.logged("a");
  linkLost(run, "a", "c");
  assert.deepEqual(
    run.sent("adopt").map(({ to }) => to),
    ["c"],
    "c may wait for a sum that a will not send again",
  );
  run.logged("b");
  assert.deepEqual(run.sent("adopt").map(({ to }) => to), ["c", "d"]);
});

Deno.test("amend: two that cannot be linked four times in one cut do not stay together; the later one may come back", () => {
  const run = fourPeers();
  for (let i = 0; i < 3; i++) {
    linkLost(run, "a", "c");
    assert.deepEqual(run.sent("kicked"), [], `attempt ${i + 1}`);
  }
  linkLost(run, "b", "d");
  assert.deepEqual(run.sent("kicked"), [], "another pair's losses are its own");
  linkLost(run, "c", "a");
  assert.deepEqual(run.sent("kicked").map(({ to, mayReturn }) => [to, mayReturn]), [["c", true]]);
  assert.deepEqual(run.layout()[0], "a:0123");
});

Deno.test("amend: the word of a spare about a link, or about one, changes nothing", () => {
  const run = fourPeers();
  run.join("spare");
  const { gen } = run;
  run.say("spare", { type: "link-lost", gen, peer: "a", reason: "" });
  run.say("a", { type: "link-lost", gen, peer: "spare", reason: "" });
  assert.deepEqual([run.gen, run.state.phase], [gen, "round"]);
});

Deno.test("amend: a departure is noted with its stall and what others did instead", () => {
  const run = fourPeers();
  for (let i = 0; i < 3; i++) {
    run.now += 100;
    run.commit();
  }
  run.now += 700;
  run.gone("c");
  run.commit();
  const [line] = run.reported("departure");
  assert.deepEqual([line!.peer, line!.how, line!.step, line!.reassigned], ["c", "connection closed", 3, 2]);
  assert.equal(line!.stall_ms, 600);
  run.commit();
  assert.equal(run.reported("departure").length, 1);
});
