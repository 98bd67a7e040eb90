// The loss scale with f16: what rounds are opened with, what an overflow changes, and that restarts and going back agree.
import assert from "node:assert/strict";
import { fold } from "../store/run_log_format.ts";
import type { RunRecord } from "./run_record.ts";
import { type LossScale, lossScaleOf, withLossScale } from "./loss_scale.ts";
import { judgeOverflow } from "./loss_scale.ts";
import { createRunState } from "./create.ts";
import { metricsText } from "./metrics.ts";
import { statusOf } from "./status.ts";
import type { RunCoreState } from "./run_state.ts";
import { readConfig } from "../../peer/model/config.ts";
import { specOf } from "../../peer/model/layout.ts";
import { engineSaid } from "../../peer/model/stage_memory.ts";
import type { StagePlan, View } from "../../peer/wire/run.ts";
import type { Turn } from "./turn.ts";

const HALVES = { dtype: "f16", n_embd: 16, n_head: 2, n_kv_head: 1, n_inner: 8, n_layer: 3 };

function view(cut: number, stages: number): View {
  const plans = Array.from({ length: stages }, (_, index): StagePlan => ({
    ...{ index, firstLayer: index, endLayer: index + 1, embed: index === 0, head: index === stages - 1 },
    ...{ replicas: [], inflight: 1 },
  }));
  const codecs = { codecForward: "raw32", codecBackward: "raw32" } as const;
  return { gen: cut, cut, baseStep: 0, stages: plans, schedule: "dynamic", ...codecs };
}

function turnOf(changes: Record<string, unknown> = HALVES): Turn {
  const config = readConfig(changes);
  const s = createRunState(config, specOf(config, 11));
  s.view = view(1, 3);
  return { s, now: 0, out: [] };
}

/** Commits the open step, with so many values of each stage that were not finite. */
function commit(turn: Turn, nonFinite: number[] = [0, 0, 0]) {
  const { s } = turn;
  s.logged = Object.fromEntries(nonFinite.map((count, stage) => [stage, {
    a: { hash: "h", gradNormSq: 1, nonFinite: 0 },
    b: { hash: "h", gradNormSq: 1, nonFinite: count },
  }]));
  const judged = judgeOverflow(turn);
  s.lossScales = withLossScale(s.lossScales, { step: s.committed, ...judged });
  s.committed++;
  return judged;
}

const scales = ({ s }: { s: RunCoreState }) => lossScaleOf(s).lossScale;

Deno.test("loss scale: f32 has none, whatever overflows", () => {
  const turn = turnOf({});
  assert.deepEqual(commit(turn, [3, 0, 0]), { skip: false });
  assert.deepEqual([lossScaleOf(turn.s), turn.s.events], [{}, []]);
});

Deno.test("loss scale: an overflow, known to any holder, passes over the step and halves that stage's scale", () => {
  const turn = turnOf();
  assert.deepEqual(scales(turn), [12, 12, 12]);
  assert.equal(commit(turn).skip, false);
  assert.equal(commit(turn, [0, 1, 0]).skip, true);
  assert.deepEqual(scales(turn), [12, 11, 12]);
  assert.equal(commit(turn, [7, 2, 0]).skip, true);
  assert.deepEqual(scales(turn), [11, 10, 12]);
  assert.match(turn.s.events.at(-1)!.text, /stage 2 overflowed f16 at a loss scale of 2\^11 in step 2/);
});

Deno.test("loss scale: skipped steps are counted, in the status of an f16 run alone", () => {
  const turn = turnOf();
  for (const nonFinite of [[0, 0, 0], [1, 1, 0], [0, 2, 0]]) commit(turn, nonFinite);
  assert.equal(statusOf(turn.s, 0).stepsSkipped, 2);
  assert.match(metricsText(turn.s), /^shoal_steps_skipped_total 2$/m);
  const plain = turnOf({});
  commit(plain, [1, 0, 0]);
  assert.equal(statusOf(plain.s, 0).stepsSkipped, undefined);
  assert.match(metricsText(plain.s), /^shoal_steps_skipped_total 0$/m);
});

Deno.test("an engine without halves says so in an f16 run, and only there", () => {
  const said = engineSaid("tfjs-wasm (no WebGPU adapter)", { dtype: "f16" });
  assert.equal(
    said,
    "tfjs-wasm (no WebGPU adapter); computes and keeps f32, since only the WebGPU kernels have f16",
  );
  assert.match(engineSaid("cpu", { dtype: "f16" }), /keeps f32/);
  assert.equal(engineSaid("tfjs-wasm", { dtype: "f32" }), "tfjs-wasm");
  assert.equal(engineSaid("wgsl (dawn)", { dtype: "f16" }), "wgsl (dawn)");
});

Deno.test("loss scale: at the least scale an overflowing step counts, or a run could stand still for ever", () => {
  const turn = turnOf();
  for (let step = 0; step < 12; step++) assert.equal(commit(turn, [1, 0, 0]).skip, true, `step ${step}`);
  assert.equal(commit(turn, [1, 0, 0]).skip, false);
  assert.deepEqual(scales(turn), [0, 12, 12]);
  assert.equal(commit(turn, [1, 1, 0]).skip, true, "another stage can still be scaled down");
});

Deno.test("loss scale: a thousand clean steps of a stage double its scale, up to 2^24", () => {
  const turn = turnOf();
  commit(turn, [0, 0, 1]);
  for (let step = 1; step < 1_000; step++) commit(turn);
  assert.deepEqual(scales(turn), [13, 13, 11]);
  commit(turn);
  assert.deepEqual(scales(turn), [13, 13, 12]);
  for (let step = 0; step < 20_000; step++) commit(turn);
  assert.deepEqual(scales(turn), [24, 24, 24]);
  assert.ok(turn.s.lossScales.length <= 64);
});

Deno.test("loss scale: a new cut begins with the least that was needed, and keeps it", () => {
  const turn = turnOf();
  commit(turn, [0, 1, 0]);
  turn.s.view = view(2, 2);
  assert.deepEqual(scales(turn), [11, 11]);
  commit(turn, [0, 0]);
  assert.deepEqual(scales(turn), [11, 11]);
  commit(turn, [0, 1]);
  assert.deepEqual(scales(turn), [11, 10]);
});

Deno.test("loss scale: a run that goes back has the scales of then, and forgets those after", () => {
  const turn = turnOf();
  const seen: (number[] | undefined)[] = [];
  for (const nonFinite of [[0, 0, 0], [1, 0, 0], [0, 0, 0], [1, 0, 0]]) {
    seen.push(scales(turn));
    commit(turn, nonFinite);
  }
  assert.deepEqual(scales(turn), [10, 12, 12]);
  turn.s.committed = 2;
  assert.deepEqual(scales(turn), seen[2]);
  commit(turn);
  commit(turn);
  assert.deepEqual(scales(turn), [11, 12, 12], "the second overflow did not come again");
});

Deno.test("loss scale: what the log folds is what the core remembers", () => {
  const turn = turnOf();
  const config = turn.s.config;
  const begin = {
    epoch: "e",
    config,
    spec: turn.s.spec,
    corpusHash: "c",
    gen: 1,
    view: turn.s.view,
    committed: 0,
  };
  let run: RunRecord = { ...begin, commit: null, peers: [], idsUpTo: 0, ended: null };
  for (const nonFinite of [[0, 0, 0], [1, 0, 0], [0, 0, 1], [0, 0, 0]]) {
    const step = turn.s.committed;
    const { skip, lossScale } = commit(turn, nonFinite);
    const base = { step, gen: 1, cut: 1, hashes: [], gradNormSq: 1, ...(skip ? { skip } : {}) };
    run = fold(run, { kind: "commit", ...base, ...(lossScale === undefined ? {} : { lossScale }) });
    assert.deepEqual(run.lossScales, turn.s.lossScales);
  }
  const last: LossScale = turn.s.lossScales.at(-1)!;
  assert.deepEqual(last, { step: 3, cut: 1, exponents: [11, 12, 11], since: [2, 0, 3] });
});
