// What a peer tells of itself when it joins: a time for one block, and whether its engine can make a stage's steps.
import assert from "node:assert/strict";
import { withExactOptimizer } from "../test/support/exact_optimizer.ts";
import { createCpuEngine } from "./engine/cpu.ts";
import type { StageBuild } from "./engine/engine.ts";
import { measurePeer } from "./measure.ts";
import { readConfig } from "./model/config.ts";
import { specOf } from "./model/layout.ts";

const shape = { n_layer: 1, n_head: 1, n_kv_head: 1, n_embd: 4, n_inner: 4, block_size: 2, batch_size: 1 };

async function measured(optimizer: "auto" | "exact", able: boolean) {
  const config = readConfig({ ...shape, optimizer });
  const asked: StageBuild[] = [];
  const result = await measurePeer(
    (build) => {
      asked.push(build);
      const engine = createCpuEngine(build);
      return Promise.resolve(able ? withExactOptimizer(engine, build, 1) : engine);
    },
    config,
    specOf(config, 5),
  );
  assert.equal(asked.length, 1, "one engine is built and measured");
  assert.ok(result.blockMs >= 0 && result.blockMs < Infinity);
  const { forward, backward, weightGrad } = result.opMs;
  assert.ok(Math.min(forward, backward, weightGrad) > 0);
  assert.equal(forward + backward + weightGrad, result.blockMs, "the operations are not what the block took");
  return result.gpuOptimizer;
}

Deno.test("measure: an engine with an optimizer is told of, where the run may use it", async () => {
  assert.equal(await measured("auto", true), true);
  assert.equal(await measured("auto", false), false);
  assert.equal(await measured("exact", true), false);
});
