// Ten steps, ten losses: a three-stage pipeline of GPU stages under the real cores against the double-precision one-process
// run. What the kernels' own tests cannot see (a wrong slot, a stale upload, a gradient of another micro-batch) shows here.
import assert from "node:assert/strict";
import { createWgslEngine } from "../../peer/engine/wgsl.ts";
import { openDenoDevice } from "../../peer/gpu/provider_deno.ts";
import { specOf } from "../../peer/model/layout.ts";
import type { CodecId } from "../../peer/wire/run.ts";
import { runOneProcess } from "../support/one_process.ts";
import { lossesOf, tinyConfig, tinyCorpus, VOCABULARY } from "../sim/support.ts";
import { World } from "../sim/world.ts";

const STEPS = 10;

/**
 * Largest difference of a step's loss, nats. raw32: f32 against f64 kernels, amplified by AdamW's division where a moment is
 * near zero. i8b64 and f16s: rounding of the boundaries, 0.6 % and 0.05 % of their norm.
 */
const TOLERANCE: Record<CodecId, number> = { raw32: 2e-4, f16s: 2e-3, i8b64: 2e-2 };

const gpu = await openDenoDevice();

const CASES = [
  ...(["raw32", "f16s", "i8b64"] as const).map((codec) => ({ codec, schedule: "dynamic" as const })),
  ...(["1f1b", "gpipe", "zb-h2"] as const).map((schedule) => ({ codec: "raw32" as const, schedule })),
];

for (const { codec, schedule } of CASES) {
  Deno.test(`ten steps, ten losses: three GPU stages, ${schedule}, ${codec}, on ${gpu.adapterName}`, async () => {
    const config = tinyConfig({
      ...{ max_iters: STEPS, lr_decay_iters: STEPS, warmup_iters: 2, block_size: 6, n_embd: 16, n_head: 4 },
      ...{ n_kv_head: 2, n_inner: 20, batch_size: 2, learning_rate: 3e-3, eval_interval: 1000 },
      ...{ codec_forward: codec, codec_backward: codec, schedule },
    });
    const spec = specOf(config, VOCABULARY);
    const corpus = tinyCorpus();
    const reference = await runOneProcess(config, spec, corpus);
    const createEngine = (build: Parameters<typeof createWgslEngine>[1]) => createWgslEngine(gpu, build);
    const world = new World({ config, spec, corpus, seed: 7, peers: 3, createEngine });
    assert.ok(await world.run(), "the run did not finish");
    const losses = lossesOf(world);
    assert.equal(losses.length, STEPS);
    losses.forEach((loss, step) => {
      const off = Math.abs(loss - reference.losses[step]!);
      assert.ok(
        off <= TOLERANCE[codec],
        `step ${step + 1}: ${loss} against ${reference.losses[step]}, off by ${off}`,
      );
    });
    const engines = world.alive().flatMap((peer) => peer.holder.engineNames());
    assert.ok(engines.length === 3 && engines.every((name) => name.startsWith("wgsl")), engines.join(", "));
    for (const peer of world.alive()) peer.holder.unload();
  });
}
