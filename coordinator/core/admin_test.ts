// The organizer's orders, one by one, at the core of a run.
import assert from "node:assert/strict";
import { RunHarness } from "../../test/support/run_harness.ts";
import type { StateSource } from "../../peer/wire/control.ts";
import type { ConfigValues } from "../../peer/wire/changes.ts";

function change(run: RunHarness, step: number, set: ConfigValues): void {
  run.feed({ type: "admin", action: "change", step, set });
}

/** The states that a new cut begins from are collected, and its peers load it. */
function recut(run: RunHarness): void {
  run.store();
  run.ready();
}

Deno.test("admin: a change counts from its step on, begins a cut that carries it, and is durable before that", () => {
  const run = RunHarness.training(["a", "b"]);
  const cut = run.cut;
  change(run, 2, { learning_rate: 1e-4, min_lr: 1e-5 });
  run.commit();
  assert.equal(run.cut, cut);
  assert.equal(run.state.config.learning_rate, 3e-3);
  run.commit();
  assert.equal(run.state.phase, "handover");
  assert.equal(run.state.config.learning_rate, 3e-3, "it counts only once its step begins");
  const before = run.effects.length;
  recut(run);
  assert.equal(run.state.committed, 2);
  assert.equal(run.state.view?.config?.learning_rate, 1e-4);
  const since = run.effects.slice(before);
  const durable = since.findIndex((it) => it.do === "persist" && it.record.kind === "config");
  const told = since.findIndex((it) => it.do === "send" && it.message.type === "view");
  assert.ok(durable >= 0 && durable < told);
  run.commit();
  const [line] = run.reported("step").filter((it) => it.step === 3);
  assert.ok(line !== undefined && Math.abs(line.lr - 1e-4) < 1e-5, `lr ${line?.lr}`);
});

Deno.test("admin: a change of a step that has begun counts from the next one on", () => {
  const run = RunHarness.training(["a", "b"]);
  change(run, 0, { grad_clip: 0.5 });
  assert.deepEqual(run.state.changes.map((it) => it.step), [1]);
  run.commit();
  recut(run);
  assert.equal(run.state.config.grad_clip, 0.5);
});

Deno.test("admin: max_iters moves the end of the run", () => {
  const run = RunHarness.training(["a", "b"]);
  change(run, 1, { max_iters: 2 });
  run.commit();
  recut(run);
  assert.equal(run.state.target, 2);
  run.commit();
  run.evaluate();
  run.store();
  run.checkpointed(2);
  assert.equal(run.state.status, "finished");
});

Deno.test("admin: steps that are done again after a loss have the configuration of the first time", () => {
  const run = RunHarness.training(["a", "b"]);
  change(run, 2, { weight_decay: 0.5 });
  run.commit();
  run.commit();
  recut(run);
  run.commit();
  assert.equal(run.state.config.weight_decay, 0.5);
  // The cut's source is step 2 itself, where the change is in force; only a rollback behind it undoes it.
  run.gone("a");
  assert.equal(run.state.committed, 2);
  assert.equal(run.state.config.weight_decay, 0.5);
  Object.assign(run.state, { snapshots: [], source: null });
  run.join("c");
  run.ready();
  run.gone("b");
  assert.equal(run.state.committed, 0);
  assert.equal(run.state.config.weight_decay, 0.1);
  assert.deepEqual(run.state.changes, [{ step: 2, set: { weight_decay: 0.5 } }]);
});

Deno.test("admin: changes outlive the coordinator", () => {
  const run = RunHarness.training(["a", "b"]);
  change(run, 5, { schedule: "1f1b" });
  const { config, changes } = run.effects.flatMap((it) =>
    it.do === "persist" && it.record.kind === "config" ? [it.record] : []
  ).at(-1)!;
  const { spec, gen, view, committed } = run.state;
  const rest = { epoch: "e", corpusHash: "", commit: null, peers: [], idsUpTo: 0, ended: null };
  const again = RunHarness.restored({ ...rest, config, changes, spec, gen, view, committed });
  assert.deepEqual(again.state.changes, [{ step: 5, set: { schedule: "1f1b" } }]);
  assert.equal(again.state.changed, true);
});

Deno.test("admin: going back to a checkpoint is another history: newer points, changes and states are gone", () => {
  const run = RunHarness.training(["a", "b"], { eval_interval: 1 });
  const files = [run.fileOf(1, 0), run.fileOf(1, 1)];
  run.commit();
  run.evaluate();
  change(run, 2, { learning_rate: 1e-4, min_lr: 1e-5 });
  run.commit();
  run.evaluate();
  recut(run);
  run.commit();
  const source: StateSource = { step: 1, files };
  run.feed({ type: "admin", action: "rollback", source, name: "step-1" });
  assert.equal(run.state.committed, 1);
  assert.equal(run.state.stepsRedone, 0);
  assert.deepEqual(run.reported("rollback"), [{ event: "rollback", step: 1, steps_redone: 0 }]);
  assert.deepEqual(run.state.source, source);
  assert.equal(run.state.config.learning_rate, 3e-3);
  assert.deepEqual(run.state.changes, []);
  assert.equal(run.state.view?.config?.learning_rate, 3e-3, "peers have the changed one and must hear of it");
  assert.ok(run.state.losses.every((point) => point.step <= 1));
  run.ready();
  run.commit();
  assert.equal(run.state.committed, 2);
});

Deno.test("admin: stop at a step ends the run there, and not before", () => {
  const run = RunHarness.training(["a", "b"]);
  run.feed({ type: "admin", action: "stop", step: 3 });
  run.commit();
  run.commit();
  assert.equal(run.state.status, "training");
  run.commit();
  run.evaluate();
  run.store();
  run.checkpointed(3);
  assert.equal(run.state.status, "finished");
});

Deno.test("admin: a drained peer goes once another holds its stage, a spare at once", () => {
  const run = RunHarness.training(["a", "b"], { n_stage: 1 });
  run.commit();
  run.feed({ type: "admin", action: "drain", peer: "b" });
  assert.deepEqual(run.members(), ["a", "b"]);
  run.commit();
  assert.deepEqual(run.members(), ["a"]);
  assert.equal(run.state.peers["b"], undefined);
  assert.deepEqual(run.sent("done").map((it) => it.to), ["b"]);
  run.hello("c");
  run.feed({ type: "admin", action: "drain", peer: "c" });
  assert.equal(run.state.peers["c"], undefined);
});

Deno.test("admin: orders to a run that is over change nothing", () => {
  const run = RunHarness.training(["a", "b"], { max_iters: 1 });
  run.commit();
  run.evaluate();
  run.store();
  run.checkpointed(1);
  const before = structuredClone(run.state);
  change(run, 3, { grad_clip: 2 });
  run.feed({ type: "admin", action: "rollback", source: { step: 0, files: [] }, name: "x" });
  assert.deepEqual(run.state, before);
});

Deno.test("admin: a pinned peer computes its stage from the next plan on, and any stage once the pin is taken away", () => {
  const run = RunHarness.training(["a", "b"]);
  const computing = (stage: number) =>
    run.state.view!.stages[stage]!.replicas
      .filter((replica) => replica.microBatches.length > 0).map((replica) => replica.peer);
  assert.equal(run.state.view!.stages.length, 2);
  const [first] = computing(0);
  const pin = (stage: number | null) =>
    run.feed({ type: "admin", action: "pin", peer: first!, stage, by: "Ada" });
  pin(1);
  assert.deepEqual(computing(0), [first], "nothing moves by itself");
  run.feed({ type: "admin", action: "replan" });
  run.commit();
  recut(run);
  assert.deepEqual(computing(1), [first]);
  assert.ok(run.state.planning.plan!.reasons.some((it) => /computes stage 2: it is pinned there/.test(it)));
  pin(null);
  assert.equal(run.state.peers[first!]!.pin, undefined);
  const texts = run.state.events.map((it) => it.text).join("\n");
  assert.match(
    texts,
    new RegExp(`^${first} is pinned to stage 2, from the next plan on \\(ordered by Ada\\)$`, "m"),
  );
  assert.match(texts, new RegExp(`^${first} may compute any stage again \\(ordered by Ada\\)$`, "m"));
});
