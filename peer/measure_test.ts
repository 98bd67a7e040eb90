// What a peer tells of itself when it joins: a time for one block, and whether its engine can make a stage's steps.
import assert from "node:assert/strict";
import { withExactOptimizer } from "../test/support/exact_optimizer.ts";
import { createCpuEngine } from "./engine/cpu.ts";
import type { StageBuild } from "./engine/engine.ts";
import { fixedPart, measurePeer } from "./measure.ts";
import { readConfig } from "./model/config.ts";
import { specOf } from "./model/layout.ts";

const shape = { n_layer: 1, n_head: 1, n_kv_head: 1, n_embd: 8, n_inner: 8, block_size: 2, batch_size: 2 };

async function measured(optimizer: "auto" | "exact", able: boolean, dtype: "f32" | "f16" = "f32") {
  const config = readConfig({ ...shape, optimizer, dtype });
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
  assert.deepEqual(
    asked.map((build) => build.dtype),
    [dtype],
    "one engine is built and measured, as the run keeps activations",
  );
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

Deno.test("measure: a run in halves is measured in halves", async () => {
  await measured("exact", false, "f16");
});

Deno.test("measure: where the planner decides the size of a micro-batch, a second size tells what does not grow with it", async () => {
  for (
    const [batch_size, second, dtype] of [[8, 2, "f32"], [4, 1, "f32"], [4, 16, "f16"], [
      3,
      12,
      "f32",
    ]] as const
  ) {
    const config = readConfig({ ...shape, batch_size, dtype, micro_batch: "auto" });
    const sizes: number[] = [];
    const result = await measurePeer(
      (build) => {
        sizes.push(build.batchSize);
        return Promise.resolve(createCpuEngine(build));
      },
      config,
      specOf(config, 5),
    );
    assert.deepEqual(sizes, [batch_size, second]);
    assert.equal(result.sequences, batch_size);
    assert.ok(result.fixedMs! >= 0 && result.fixedMs! <= result.blockMs);
  }
});

Deno.test("measure: the fixed part is where the line through two sizes begins, and never more than all or less than nothing", () => {
  const of = (a: number, b: number) => fixedPart({ sequences: 8, ms: a }, { sequences: 2, ms: b });
  assert.equal(of(10, 4), 2);
  assert.equal(of(8, 2), 0);
  assert.equal(of(8, 1), 0, "a smaller one that is out of proportion quick");
  assert.equal(of(8, 9), 8, "a smaller one that is slower");
  assert.equal(fixedPart({ sequences: 1, ms: 3 }, { sequences: 4, ms: 6 }), 2);
});
