// Codecs that differ from boundary to boundary and by direction, on live peers: the weights are those of one process in which the
// same tensors are encoded at the same places, whoever computed them and whoever left meanwhile.
import assert from "node:assert/strict";
import { createCpuEngine } from "../../peer/engine/cpu.ts";
import { specOf } from "../../peer/model/layout.ts";
import type { CoordinatorMessage } from "../../peer/wire/control.ts";
import type { BoundaryCodecs, RunConfig } from "../../peer/wire/run.ts";
import { createChain } from "../support/chained_engine.ts";
import { runOneProcess } from "../support/one_process.ts";
import { compareWithWhole } from "./compare.ts";
import { createWorld, tinyConfig, tinyCorpus, VOCABULARY } from "./support.ts";
import type { World } from "./world.ts";

/** All three codecs, and no two of four tensors alike at a stage in the middle. */
const MIXED: BoundaryCodecs[] = [
  { forward: "i8b64", backward: "f16s" },
  { forward: "raw32", backward: "i8b64" },
];

function mixedConfig(changes: Record<string, unknown> = {}): RunConfig {
  return tinyConfig({ codec_forward: "i8b64", codec_backward: "i8b64", max_iters: 4, ...changes });
}

async function referenceOf(config: RunConfig, codecs: BoundaryCodecs[]): Promise<Float32Array> {
  const spec = specOf(config, VOCABULARY);
  const options = { spec, batchSize: config.batch_size, cuts: [1, 2], codecs, createEngine: createCpuEngine };
  return (await runOneProcess(config, spec, tinyCorpus(), createChain(options))).state.params;
}

/** Measured links would have to be slow for tensors of a hundred bytes: the plan is put in their place. */
function withCodecs(world: World, codecs: BoundaryCodecs[]): void {
  world.tamper = (message): CoordinatorMessage =>
    message.type === "view" ? { ...message, view: { ...message.view, codecs } } : message;
}

async function finish(world: World, config: RunConfig, expected: Float32Array): Promise<void> {
  const finished = await world.run();
  await world.drain(2000);
  const { state } = world.coordinator;
  assert.ok(finished, `stuck at step ${state.committed} in ${state.phase}: ${state.reason}`);
  assert.deepEqual(state.view!.stages.map(({ endLayer }) => endLayer), [1, 2, 3]);
  const spec = specOf(config, VOCABULARY);
  let compared = 0;
  for (const peer of world.alive()) compared += compareWithWhole(spec, peer.holder, expected, "mixed codecs");
  assert.ok(compared >= spec.n_layer, `only ${compared} tensors compared`);
}

Deno.test("codecs: each boundary's and direction's own, the bits of one process that encodes alike", async () => {
  const config = mixedConfig();
  const expected = await referenceOf(config, MIXED);
  const world = createWorld(config, 3, 3);
  withCodecs(world, MIXED);
  await finish(world, config, expected);
  const plain = await referenceOf(config, MIXED.map(() => ({ forward: "i8b64", backward: "i8b64" })));
  assert.notDeepEqual(plain, expected, "the codecs make no difference to this model");
});

Deno.test("codecs: replicas, departures and newcomers change no bit", async () => {
  const config = mixedConfig({ shadows: true, gradient_accumulation_steps: 5, max_iters: 6 });
  const expected = await referenceOf(config, MIXED);
  for (let seed = 1; seed <= 6; seed++) {
    const world = createWorld(config, seed, 5);
    withCodecs(world, MIXED);
    world.at(250 + 90 * seed, () => world.crash(`p${seed % 5}`));
    world.at(400 + 90 * seed, () => world.join());
    await finish(world, config, expected);
  }
});

Deno.test("codecs: where a run leaves it to the planner, quick links get the finer codec both ways", async () => {
  const config = mixedConfig({ codec_per_link: true });
  const finer: BoundaryCodecs[] = MIXED.map(() => ({ forward: "f16s", backward: "f16s" }));
  const world = createWorld(config, 1, 3);
  await finish(world, config, await referenceOf(config, finer));
  assert.deepEqual(world.coordinator.state.view!.codecs, finer);
});
