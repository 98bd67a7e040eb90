// The dry run shows what applying it then does, and changes nothing by itself; plans for the loss of one peer are there before it
// is lost, and are the ones that are used.
import assert from "node:assert/strict";
import { RunHarness } from "../../test/support/run_harness.ts";
import { peersOf } from "../../peer/wire/view.ts";
import type { Plan } from "../plan/planner_types.ts";
import { planStatus, previewReplan } from "./replan.ts";

/** Sums of 4 million parameters take longer than a pipeline of two. */
const HEAVY = {
  ...{ n_head: 4, n_embd: 256, n_inner: 1024, n_layer: 4, gradient_accumulation_steps: 8 },
  ...{ max_iters: 1000, lr_decay_iters: 1000 },
};

/** One peer holds two stages, and another has come. */
function lopsided(): RunHarness {
  const run = RunHarness.training(["a"], { ...HEAVY, n_stage: 1, shadows: false });
  run.state.config = { ...run.state.config, n_stage: 0 };
  run.hello("b");
  run.say("b", { type: "measured", blockMs: 10, memoryBytes: 1e9 });
  return run;
}

Deno.test("replan: what a commit takes beyond the exchange of sums is in every prediction, once it was traced", () => {
  const [run, slow] = [lopsided(), lopsided()];
  slow.state.traces.outsideMs = 250;
  const [before, after] = [run, slow].map(({ state }) => previewReplan(state));
  // One holder exchanges nothing, so all of it is the commit.
  for (const key of ["before", "after"] as const) {
    assert.ok(
      Math.abs(after![key]! - before![key]! - 0.25) < 1e-9,
      `${key}: ${before![key]}, ${after![key]}`,
    );
  }
  assert.equal(planStatus(slow.state)!.seconds, after!.before);
});

/** Two seconds on. */
function tick(run: RunHarness): void {
  run.pass(2_000, Object.keys(run.state.peers));
}

Deno.test("replan: the dry run says what moves, how many bytes, and what a step takes before and after; it changes nothing", () => {
  const run = lopsided();
  const before = JSON.stringify(run.state);
  const preview = previewReplan(run.state);
  assert.equal(JSON.stringify(run.state), before);
  assert.ok(preview.possible && preview.after! < 0.7 * preview.before!, JSON.stringify(preview));
  assert.deepEqual(preview.stages.map((stage) => stage.endLayer), [2, 4]);
  const [moved] = preview.transfers;
  assert.deepEqual([moved!.peer, moved!.from, moved!.endLayer - moved!.firstLayer], ["b", "a", 2]);
  assert.equal(preview.bytes, moved!.bytes);
  assert.ok(preview.seconds! >= moved!.seconds!);
  assert.match(preview.sentences[0]!, /^b fetches layers \d to \d \(\d+ MB\) from a, about .* s\.$/);
  assert.match(preview.sentences.at(-1)!, /^A step is expected to take 0\.3\d+ s before, 0\.1\d+ s after\./);
  assert.match(preview.reasons[0]!, /^2 stages for 2 peers/);
});

Deno.test("replan: what is applied is what was shown, from the state of the next boundary", () => {
  const run = lopsided();
  run.state.planning.stepS = 0.33;
  const preview = previewReplan(run.state);
  run.feed({ type: "admin", action: "replan" });
  assert.equal(run.state.phase, "round", "the open step ends first");
  run.commit();
  run.store();
  run.ready();
  const { stages, baseStep } = run.state.view!;
  const shown = preview.stages.map((stage) => [stage.endLayer, stage.replicas.map(({ peer }) => peer)]);
  const made = stages.map((stage) => [stage.endLayer, stage.replicas.map(({ peer }) => peer)]);
  assert.deepEqual([made, baseStep, run.state.stepsRedone], [shown, 1, 0]);
  for (let i = 0; i < 8; i++) {
    run.now += 170;
    run.commit();
  }
  assert.match(
    planStatus(run.state)!.changes.at(-1)!,
    /^Planned anew by the organizer: a step now takes 0\.17\d s, 0\.1\d+ s were expected, .* s before\.$/,
  );
});

Deno.test("replan: peers that went meanwhile get a plan of their own, not the one that was shown", () => {
  const run = lopsided();
  run.feed({ type: "admin", action: "replan" });
  run.gone("b");
  run.commit();
  if (run.state.phase === "handover") run.store();
  run.ready();
  assert.deepEqual(run.layout(), ["a:01234567"]);
});

Deno.test("replan: where nothing can be planned it is said why, and the order does nothing", () => {
  const waiting = new RunHarness({ min_peers: 2 });
  assert.match(previewReplan(waiting.state).reason, /^No layers are placed yet/);
  const several = RunHarness.training(["a"], { n_stage: 2 });
  assert.match(
    previewReplan(several.state).reason,
    /^The run asks for 2 stages and has 1 peer, so peers hold several/,
  );
  several.feed({ type: "admin", action: "replan" });
  several.commit();
  assert.equal(several.state.phase, "round");
  const tight = RunHarness.training(["a", "b"], { ...HEAVY, n_stage: 2 });
  for (const peer of Object.values(tight.state.peers)) peer.memoryBytes = 1e6;
  const { possible, reason } = previewReplan(tight.state);
  assert.deepEqual([possible, /missing/.test(reason)], [false, true]);
});

Deno.test("replan: what is known about any one peer's loss is worked out while the run trains, one peer at a time", () => {
  const run = RunHarness.training(["a", "b", "c"], { ...HEAVY, n_stage: 2, shadows: true });
  const told = () => planStatus(run.state)!.standBy;
  assert.deepEqual(told(), []);
  for (let i = 1; i <= 3; i++) {
    tick(run);
    assert.equal(told().length, i);
    run.feed({ type: "tick" });
    assert.equal(told().length, i, "the coordinator has other things to do");
  }
  tick(run);
  assert.deepEqual(told().map(({ peer }) => peer).toSorted(), ["a", "b", "c"]);
  for (const { peer, sentence } of told()) {
    assert.match(
      sentence,
      new RegExp(`^If ${peer} left: the others would take over at once, 0\\.\\d+ s per step`),
    );
  }
  run.gone("a");
  assert.ok(run.state.view!.stages.every((stage) => stage.replicas.length > 0));
  tick(run);
  assert.ok(told().every(({ peer }) => peer !== "a"), "thought of for a view that is gone");
});

Deno.test("replan: where steps overlap, plans for a loss and the dry run say what a step takes from commit to commit", () => {
  const sentences = (schedule: string) => {
    const config = { ...HEAVY, n_stage: 2, shadows: true, schedule, eval_interval: 1000 };
    const run = RunHarness.training(["a", "b", "c"], config);
    for (const peer of Object.values(run.state.peers)) {
      const third = peer.blockMs / 3;
      peer.opMs = { forward: third, backward: third, weightGrad: third };
    }
    for (let i = 0; i < 4; i++) tick(run);
    const { standBy } = run.state.planning;
    assert.deepEqual(standBy.map(({ peer }) => peer).toSorted(), ["a", "b", "c"], schedule);
    for (const { sentence, amendedSeconds, answer } of standBy) {
      assert.match(sentence, /^If . left: the others would take over at once, [\d.]+ s per step/);
      assert.ok(amendedSeconds !== null && answer.kind === "plan");
    }
    const lost = standBy.find(({ peer }) => peer === "a")!;
    return {
      amended: lost.amendedSeconds!,
      answer: lost.answer as Plan,
      after: previewReplan(run.state).after!,
    };
  };
  const [alone, overlapping] = [sentences("dynamic"), sentences("2bw")];
  // Nobody waits for the pipeline to fill, and the commit is hidden behind the step that is open besides.
  assert.ok(overlapping.amended < 0.99 * alone.amended, `${overlapping.amended} s, alone ${alone.amended} s`);
  assert.ok(overlapping.answer.seconds < 0.99 * alone.answer.seconds, `${overlapping.answer.seconds} s`);
  assert.ok(overlapping.after < 0.99 * alone.after, `${overlapping.after} s, alone ${alone.after} s`);
  // Two are left, and the one with more layers sets the pace.
  const layers = overlapping.answer.stages.map(({ firstLayer, endLayer }) => endLayer - firstLayer);
  const { bubble, seconds } = overlapping.answer;
  assert.ok(bubble >= 0 && bubble < 0.5 && seconds >= 0.08 * Math.max(...layers), `${bubble}, ${layers}`);
});

Deno.test("replan: with steps that overlap, too, a departure is answered with the plan that was ready for it", () => {
  const config = { ...HEAVY, n_stage: 2, shadows: false, schedule: "2bw", eval_interval: 1000 };
  const run = RunHarness.training(["a", "b", "c"], config);
  for (let i = 0; i < 4; i++) tick(run);
  run.gone("b");
  assert.ok(!peersOf(run.state.view!).includes("b"));
  assert.equal(run.state.view!.schedule, "2bw");
  const texts = run.state.events.map((event) => event.text);
  assert.ok(texts.includes("The layers are cut as planned beforehand for the loss of b."), texts.join("\n"));
});

Deno.test("replan: a departure that takes a stage along is answered with the plan that was ready for it", () => {
  const run = RunHarness.training(["a", "b", "c"], { ...HEAVY, n_stage: 2, shadows: false });
  run.commit();
  for (let i = 0; i < 4; i++) tick(run);
  const [ready] = run.state.planning.standBy.filter(({ peer }) => peer === "b");
  assert.match(ready!.sentence, /^If b left: nobody else holds its layers/);
  run.gone("b");
  assert.equal(run.state.status, "warming up");
  assert.ok(!peersOf(run.state.view!).includes("b"));
  const texts = run.state.events.map((event) => event.text);
  assert.ok(
    texts.includes("The layers are cut as planned beforehand for the loss of b."),
    texts.slice(-4).join("\n"),
  );
});

Deno.test("replan: what is ready for a loss has those who are pinned where they are wanted", () => {
  for (const wanted of [0, 1]) {
    const run = RunHarness.training(["a", "b", "c"], { ...HEAVY, n_stage: 2, shadows: false });
    const { standBy } = run.state.planning;
    for (let i = 0; i < 4; i++) tick(run);
    run.feed({ type: "admin", action: "pin", peer: "a", stage: wanted });
    for (let i = 0; i < 4; i++) tick(run);
    assert.notEqual(run.state.planning.standBy, standBy, "made before the wish");
    const lost = run.state.planning.standBy.find(({ peer }) => peer !== "a")!;
    assert.ok(lost.answer.kind === "plan");
    assert.deepEqual(lost.answer.stages[wanted]!.replicas.map(({ peer }) => peer), ["a"]);
    assert.ok(lost.answer.reasons.includes(`a computes stage ${wanted + 1}: it is pinned there.`));
  }
});

Deno.test("replan: the status tells the plan's reasons, its prediction and who is left over", () => {
  const run = RunHarness.training(["a", "b", "c"], { n_stage: 1, gradient_accumulation_steps: 2 });
  const status = planStatus(run.state)!;
  assert.deepEqual(status.spares, ["c"]);
  assert.ok(
    status.reasons.includes("c computes nothing: with it a step would not be shorter."),
    status.reasons.join(),
  );
  assert.ok(status.seconds! > 0.02 && status.seconds! < 0.04 && status.bubble! < 0.2, JSON.stringify(status));
  assert.equal(planStatus(new RunHarness().state), null);
  const events = run.state.events.filter((event) => event.kind === "plan");
  assert.match(events[0]!.text, /^a step should take 0\.02\d* s; 1 stage, as the run asks for\./);
});
