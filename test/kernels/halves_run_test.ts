// Training in halves (`dtype` f16) under the real cores: twenty losses beside f32's, and a run whose first loss scale is too large
// for its gradients, which passes over steps until it is not. Engines alone are tested in halves_engine_test.ts.
import assert from "node:assert/strict";
import type { StageBuild, StageEngine } from "../../peer/engine/engine.ts";
import { createWgslEngine } from "../../peer/engine/wgsl.ts";
import { openDenoDevice } from "../../peer/gpu/provider_deno.ts";
import { specOf } from "../../peer/model/layout.ts";
import { runOneProcess } from "../support/one_process.ts";
import { lossesOf, tinyConfig, tinyCorpus, VOCABULARY } from "../sim/support.ts";
import { World } from "../sim/world.ts";

const STEPS = 20;
/** Nats; half of it is what one step's rounding does, the rest what AdamW makes of it in twenty. */
const TOLERANCE = 4e-3;
/** Added to what the coordinator says, so that the scale it begins with is too large for any gradient. */
const TOO_MUCH = 20;

const gpu = await openDenoDevice();
const config = tinyConfig({
  ...{ max_iters: STEPS, lr_decay_iters: STEPS, warmup_iters: 2, block_size: 8, n_embd: 16, n_head: 2 },
  ...{ n_kv_head: 1, n_inner: 24, batch_size: 2, learning_rate: 3e-3, eval_interval: 1000, dtype: "f16" },
  ...{ codec_forward: "raw32", codec_backward: "raw32" },
});
const spec = specOf(config, VOCABULARY);
const corpus = tinyCorpus();

/** An engine that is told a larger exponent than the run means. */
function exaggerated(engine: StageEngine): StageEngine {
  const scaleLoss = engine.scaleLoss!.bind(engine);
  engine.scaleLoss = (exponent) => scaleLoss(exponent + TOO_MUCH);
  return engine;
}

interface Run {
  losses: number[];
  /** For each committed step, whether it was passed over. */
  skipped: boolean[];
  world: World;
}

async function train(create: (build: StageBuild) => Promise<StageEngine>, peers = 3): Promise<Run> {
  const world = new World({ config, spec, corpus, seed: 7, peers, createEngine: create });
  const skipped: boolean[] = [];
  world.observers.push({
    coordinator(effect) {
      if (effect.do !== "persist" || effect.record.kind !== "commit") return;
      skipped.push(effect.record.skip === true);
    },
  });
  assert.ok(await world.run(), world.coordinator.state.reason);
  const losses = lossesOf(world);
  for (const peer of world.alive()) peer.holder.unload();
  return { losses, skipped, world };
}

Deno.test(`twenty losses in halves are f32's, three stages on ${gpu.adapterName}`, async () => {
  const reference = await runOneProcess({ ...config, dtype: "f32" }, spec, corpus);
  const halves = await train((build) => {
    assert.equal(build.dtype, "f16", "the run's dtype reaches the engines");
    return createWgslEngine(gpu, build);
  });
  assert.equal(halves.losses.length, STEPS);
  assert.ok(halves.skipped.every((skipped) => !skipped), "the first scale suits these gradients");
  const off = halves.losses.map((loss, step) => Math.abs(loss - reference.losses[step]!));
  assert.ok(Math.max(...off) <= TOLERANCE, `off by ${off}`);
  assert.ok(off.some((it) => it > 1e-7), "nothing was rounded to a half");
});

Deno.test(`a loss scale that is too large is halved until steps count again, on ${gpu.adapterName}`, async () => {
  const { losses, skipped, world } = await train(async (build) =>
    exaggerated(await createWgslEngine(gpu, build))
  );
  const over = skipped.indexOf(false);
  assert.ok(over > 0 && over < STEPS - 4, `passed over: ${skipped}`);
  assert.ok(skipped.slice(over + 1).filter(Boolean).length <= 1, `once it suits, it suits: ${skipped}`);
  assert.equal(losses.length, STEPS);
  assert.ok(losses.at(-1)! < losses[0]!, `it learns: ${losses[0]} to ${losses.at(-1)}`);
  const { events, suspects, committed } = world.coordinator.state;
  assert.deepEqual([committed, suspects], [STEPS, {}]);
  assert.ok(events.some(({ text }) => text.includes("the step is passed over and the scale halved")));
});
