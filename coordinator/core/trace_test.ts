// When a trace is asked for, whose counts, and what the newest whole one says: in the status, in metrics.jsonl and for the page.
import assert from "node:assert/strict";
import type { PeerMessage } from "../../peer/wire/control.ts";
import type { TracedOp } from "../../peer/wire/measures.ts";
import { shareOf, stagesOf } from "../../peer/wire/view.ts";
import { HEARTBEAT, RunHarness } from "../../test/support/run_harness.ts";
import { headWork } from "../plan/planner_shares.ts";
import { metricsText } from "./metrics.ts";
import { predictPipelineMs } from "./predict_step.ts";
import { statusOf } from "./status.ts";

type Trace = PeerMessage & { type: "trace" };

/** F, B and W of each micro-batch of the peer's share, one after the other from `fromMs` on, each `ms` long. */
function opsOf(run: RunHarness, peer: string, { fromMs = 0, ms = 10 } = {}): TracedOp[] {
  let at = fromMs * 1000;
  const next = (op: Pick<TracedOp, "kind" | "stage" | "microBatch">, waitUs: number): TracedOp => {
    const startUs = at;
    at += ms * 1000;
    return { ...op, startUs, endUs: at, waitUs };
  };
  return stagesOf(run.state.view!, peer).flatMap((plan) => {
    const { index: stage } = plan;
    const share = shareOf(plan, peer);
    const of = (kind: TracedOp["kind"]) =>
      share.map((microBatch, i) =>
        next({ kind, stage, microBatch }, kind === "F" && i === 0 ? fromMs * 1000 : 0)
      );
    return [...of("F"), ...of("B"), ...of("W")];
  });
}

/** The peer whose stage this is. */
function at(run: RunHarness, stage: number): string {
  return run.state.view!.stages[stage]!.replicas[0]!.peer;
}

function tell(run: RunHarness, peer: string, changes: Partial<Trace> = {}): void {
  const { gen, committed: step } = run.state;
  run.say(peer, { type: "trace", gen, step, saidUs: 0, dropped: 0, ops: opsOf(run, peer), ...changes });
}

/** Both peers have told of the open step; the second stage begins when the first one's first result may be there. */
function tellAll(run: RunHarness): void {
  tell(run, at(run, 0), { ops: opsOf(run, at(run, 0)), saidUs: 60_000 });
  tell(run, at(run, 1), { ops: opsOf(run, at(run, 1), { fromMs: 20 }), saidUs: 80_000 });
}

function wishes(run: RunHarness): (boolean | undefined)[] {
  return run.sent("open").filter(({ to, pass }) => to === at(run, 0) && pass === "train").map((it) =>
    it.trace
  );
}

Deno.test("trace: asked for with the first step, then once a second at most", () => {
  const run = RunHarness.training(["a", "b"], { n_stage: 2 });
  run.commit();
  run.now += 999;
  run.commit();
  run.now += 1;
  run.commit();
  run.commit();
  assert.deepEqual(wishes(run), [true, undefined, undefined, true, undefined]);
  assert.equal(run.sent("open").filter((it) => it.trace).length, 4, "not both peers were asked");
});

Deno.test("trace: the newest is there once every computing peer has told and the step is committed", () => {
  const run = RunHarness.training(["a", "b"], { n_stage: 2 });
  const opened = run.now;
  run.now += 100;
  tell(run, at(run, 0));
  run.now += 20;
  run.commit();
  assert.ok(run.state.traces.newest === null);
  assert.equal(statusOf(run.state, run.now).lastStep, undefined);
  tell(run, at(run, 1), { step: 0, ops: opsOf(run, at(run, 1), { fromMs: 30 }) });
  const newest = run.state.traces.newest!;
  assert.deepEqual([newest.step, newest.measuredMs, newest.stages], [1, 120, 2]);
  assert.equal(newest.measuredMs, run.state.lastCommitAt - opened);
  assert.deepEqual(newest.lanes.map((lane) => [lane.peer, lane.ops.length]), [[at(run, 0), 6], [
    at(run, 1),
    6,
  ]]);
  assert.deepEqual(Object.keys(run.state.traces.told), [], "what was told is kept beside the picture");
});

Deno.test("trace: step lines, status and metrics say what the step took, and for what", () => {
  const run = RunHarness.training(["a", "b"], { n_stage: 2 });
  run.now += 150;
  tellAll(run);
  run.commit();
  const last = statusOf(run.state, run.now).lastStep!;
  const [line] = run.reported("step");
  assert.equal(line!.step_s, 0.15);
  assert.equal(line!.bubble, last.bubble);
  assert.ok(last.bubble > 0 && last.bubble < 1, `bubble ${last.bubble}`);
  assert.equal(line!.predicted_s, undefined, "nothing had been measured");
  const mean = last.waits.reduce((sum, it) => sum + it.linkWaitMs, 0) / 2 / 1000;
  assert.equal(line!.wait_s, mean);
  assert.equal(line!.boundary_s, undefined, "nobody could tell");
  const text = metricsText(run.state);
  assert.match(text, /^shoal_step_measured_seconds 0\.15$/m);
  assert.match(text, /^shoal_step_predicted_seconds NaN$/m);
  assert.match(text, new RegExp(`^shoal_peer_step_wait_seconds\\{peer="${at(run, 1)}"\\} 0\\.02$`, "m"));
});

Deno.test("trace: step lines say what a step's boundary tensors take, the mean of the peers that can tell", () => {
  const run = RunHarness.training(["a", "b", "c"], { n_stage: 3, n_layer: 3 });
  const times = { microBatches: 9, forwardMs: 1, backwardMs: 1, weightGradMs: 1, waitMs: 0 };
  const say = (stage: number, parts: { encodeMs?: number; decodeMs?: number; sendMs?: number }) => {
    const ops = [{ cut: run.cut, stage, ...times, ...parts }];
    run.say(at(run, stage), { ...HEARTBEAT, ops });
  };
  say(0, { encodeMs: 5, sendMs: 1 });
  say(1, { decodeMs: 3 });
  say(2, {});
  run.now += 150;
  tellAll(run);
  tell(run, at(run, 2));
  run.commit();
  // Two micro-batches each.
  assert.equal(run.reported("step")[0]!.boundary_s!.toFixed(9), "0.009000000");
});

Deno.test("trace: the next step is predicted from the operations and links that peers measured", () => {
  const run = RunHarness.training(["a", "b"], { n_stage: 2, schedule: "gpipe" });
  run.now += 150;
  tellAll(run);
  run.commit();
  const outside = run.state.traces.outsideMs!;
  for (const stage of [0, 1]) {
    const figures = { forwardMs: 10, backwardMs: 10, weightGradMs: 10, waitMs: 0 };
    const ops = [{ cut: run.cut, stage, microBatches: 5, ...figures }];
    const link = { peer: at(run, 1 - stage), rttMs: 40, upBytesPerS: 0, path: "direct" as const };
    run.say(at(run, stage), { ...HEARTBEAT, ops, links: [link] } as PeerMessage);
  }
  run.now += 1_000;
  run.commit();
  run.now += 200;
  tellAll(run);
  run.commit();
  // F F, the way there, and F F B W B W of the other stage, of which the last gradient is on its way 20 ms after 80; then B W.
  const { newest } = run.state.traces;
  const pipeline = newest!.predictedMs! - outside;
  assert.ok(Math.abs(pipeline - 120) < 1e-6, `predicted ${pipeline} ms for the operations`);
  assert.equal(run.reported("step").at(-1)!.predicted_s, newest!.predictedMs! / 1000);
});

Deno.test("trace: a stage that was not computed yet is predicted from what the peer's layers take", () => {
  const run = RunHarness.training(["a", "b"], { n_stage: 2, schedule: "gpipe" });
  assert.equal(predictPipelineMs(run.state), null, "nothing was measured");
  for (const id of ["a", "b"]) run.state.peers[id]!.opMs = { forward: 10, backward: 20, weightGrad: 5 };
  const whole = predictPipelineMs(run.state)!;
  const head = headWork(run.state.spec);
  // One F, then two F, B W and B of the stage with the head, and B and W of the last micro-batch in the first.
  assert.ok(
    Math.abs(whole - (10 + (2 * 30 + 5) * (1 + head) + 25)) < 1e-6,
    `${whole} ms with a head of ${head} layers`,
  );
});

Deno.test("trace: a placed schedule is predicted in the order that its peers follow", () => {
  const changes = { n_layer: 4, schedule: "zb-v", gradient_accumulation_steps: 4 };
  const run = RunHarness.training(["a", "b"], changes);
  assert.deepEqual(run.state.view!.stages.map(({ replicas }) => replicas.length), [1, 1, 1, 1]);
  for (const id of ["a", "b"]) run.state.peers[id]!.opMs = { forward: 10, backward: 10, weightGrad: 10 };
  // The head is the only work beside equal layers: 4 micro-batches of 2 stages, F B W of 10 ms each, and a short ramp.
  const whole = predictPipelineMs(run.state)!;
  const busy = 4 * 3 * 10 * (2 + headWork(run.state.spec));
  assert.ok(whole >= busy && whole < busy + 30, `${whole} ms for ${busy} ms of work`);
});

Deno.test("trace: what was not asked for, or is of others, counts for nothing", () => {
  const run = RunHarness.training(["a", "b"], { n_stage: 2 });
  const peer = at(run, 0);
  const ops = opsOf(run, peer);
  const wrong: Partial<Trace>[] = [
    { gen: run.gen + 1 },
    { step: 1 },
    { ops: opsOf(run, at(run, 1)) },
    { ops: [...ops, ops[0]!] },
    { ops: ops.slice(1) },
    { ops: [], dropped: 0 },
    { ops: [{ ...ops[0]!, endUs: 0, startUs: 1 }, ...ops.slice(1)] },
    { ops: [{ ...ops[0]!, microBatch: 9 }, ...ops.slice(1)] },
    { ops: [{ ...ops[0]!, stage: 200 }, ...ops.slice(1)] },
  ];
  for (const changes of wrong) {
    tell(run, peer, changes);
    assert.deepEqual(run.state.traces.told, {}, JSON.stringify(changes).slice(0, 80));
  }
  tell(run, peer, { ops: ops.slice(2), dropped: 2 });
  assert.deepEqual(Object.keys(run.state.traces.told), [peer], "the newest operations of a long step");
});

Deno.test("trace: a step that was amended is no step of the view, and the next one is asked for", () => {
  const run = RunHarness.training(["a", "b", "c"], { n_stage: 1, gradient_accumulation_steps: 3 });
  const [first, second, third] = run.state.view!.stages[0]!.replicas.map((it) => it.peer);
  for (const peer of [first!, second!]) tell(run, peer);
  run.now += 100;
  run.gone(third!);
  for (const peer of [first!, second!]) tell(run, peer);
  run.now += 1_000;
  run.commit();
  assert.ok(run.state.traces.newest === null);
  for (const peer of [first!, second!]) tell(run, peer);
  run.now += 10;
  run.commit();
  assert.equal(statusOf(run.state, run.now).lastStep?.step, 2);
});
