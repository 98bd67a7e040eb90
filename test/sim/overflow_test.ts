// Runs with `dtype` f16 whose gradients overflow at first, step by step: which steps are passed over, at which scales, and that an
// optimizer on the GPU, the end of it, and a coordinator that restarts change none of that. Thousands of such runs with faults
// are the scenario "overflow".
import assert from "node:assert/strict";
import { FIRST_EXPONENT } from "../../coordinator/core/loss_scale.ts";
import { createCpuEngine } from "../../peer/engine/cpu.ts";
import type { StageBuild } from "../../peer/engine/engine.ts";
import { specOf } from "../../peer/model/layout.ts";
import { withExactOptimizer } from "../support/exact_optimizer.ts";
import { withOverflow } from "../support/overflow.ts";
import { Reference, referenceOf } from "./reference.ts";
import { tinyConfig, tinyCorpus, VOCABULARY } from "./support.ts";
import { World } from "./world.ts";

const STEPS = 8;
const config = tinyConfig({
  ...{ dtype: "f16", n_embd: 16, reduce: "raw32", max_iters: STEPS, lr_decay_iters: STEPS },
  ...{ eval_interval: 100, n_stage: 3, optimizer: "auto" },
});
const spec = specOf(config, VOCABULARY);
const corpus = tinyCorpus();

function overflowing(build: StageBuild) {
  return withOverflow(createCpuEngine(build), build);
}

interface Watched {
  world: World;
  /** Of each committed step, whether it was passed over. */
  skipped: boolean[];
  /** Scales that each step was opened with. */
  scales: (number[] | undefined)[];
  /** How stages' steps were made, in the views that were told. */
  modes: string[];
}

function watch(gpuOptimizer: boolean): Watched {
  const createEngine = (build: StageBuild) =>
    Promise.resolve(
      withExactOptimizer(overflowing(build), build, config.gradient_accumulation_steps),
    );
  const world = new World({ config, spec, corpus, seed: 3, peers: 3, createEngine, gpuOptimizer });
  const watched: Watched = { world, skipped: [], scales: [], modes: [] };
  world.observers.push({
    coordinator(effect) {
      if (effect.do === "persist" && effect.record.kind === "commit") {
        watched.skipped[effect.record.step] = effect.record.skip === true;
      }
      if (effect.do === "persist" && effect.record.kind === "view") {
        watched.modes.push(...effect.record.view.stages.map((stage) => stage.optimizer ?? "exact"));
      }
      if (effect.do === "send" && effect.message.type === "open" && effect.message.pass === "train") {
        watched.scales[effect.message.step] = effect.message.lossScale;
      }
    },
  });
  return watched;
}

async function finish(watched: Watched): Promise<void> {
  const { world } = watched;
  assert.ok(await world.run(), world.coordinator.state.reason);
  await world.drain(2_000);
  const options = {
    config,
    spec,
    corpus,
    createEngine: (build: StageBuild) => Promise.resolve(overflowing(build)),
  };
  const reference: Reference = await referenceOf(options, "overflowing");
  const last = world.reports.findLast((effect) => effect.do === "checkpoint");
  assert.ok(last?.do === "checkpoint" && last.source.step === STEPS);
  for (const file of last.source.files) {
    assert.equal(file.hash, reference.stateHash(file, STEPS), `${file.stage}`);
  }
}

/** The first stage's scale is halved by each step that is passed over, the others' stay. */
function assertScales({ skipped, scales }: Watched): void {
  assert.ok(skipped[0] && skipped.includes(false), `passed over: ${skipped}`);
  let exponent = FIRST_EXPONENT;
  for (const [step, over] of skipped.entries()) {
    assert.deepEqual(scales[step], [exponent, FIRST_EXPONENT, FIRST_EXPONENT], `step ${step}`);
    if (over) exponent--;
  }
}

for (const gpuOptimizer of [false, true]) {
  const how = gpuOptimizer ? "on the GPU" : "in the exact core";
  Deno.test(`overflow: steps made ${how} are passed over as in one process, and one stage's scale is halved`, async () => {
    const watched = watch(gpuOptimizer);
    await finish(watched);
    assertScales(watched);
    assert.ok(watched.modes.every((mode) => mode === (gpuOptimizer ? "gpu" : "exact")), watched.modes.join());
  });
}

Deno.test("overflow: who learns a stage of a GPU's, and a coordinator that restarts, pass over the same steps", async () => {
  const wanted = watch(true);
  await finish(wanted);
  const watched = watch(true);
  watched.world.at(400, () => watched.world.join());
  watched.world.at(900, () => watched.world.crashCoordinator({ downMs: 800, tear: false, lose: true }));
  await finish(watched);
  assert.deepEqual([watched.skipped, watched.scales], [wanted.skipped, wanted.scales]);
});
