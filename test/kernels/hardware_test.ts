// A stage with the kernels that a GPU gets, run on whatever adapter is here, against the double-precision engine: bindings
// and sizes fit together where no GPU is at hand. Speed is no subject; each kernel's own test covers its shapes.
import assert from "node:assert/strict";
import { createCpuEngine } from "../../peer/engine/cpu.ts";
import type { StageEngine } from "../../peer/engine/engine.ts";
import { createWgslEngine } from "../../peer/engine/wgsl.ts";
import { planStage } from "../../peer/engine/wgsl_plan.ts";
import { buildsOf, runMicroBatch, testIds, testParams, tinySpec } from "./engine_support.ts";
import { onAdapter, relL2, testDevice } from "./support.ts";

const gpu = await testDevice();
/** As for the kernels that software adapters get. */
const TOLERANCE = 2e-5;
/**
 * Heads of eight columns would get the kernels with tiles in workgroup memory, which drivers for the CPU compile for half a
 * minute each; attention_tiles_test.ts runs those.
 */
const spec = { ...tinySpec, n_layer: 2 };

async function withParams(engine: StageEngine, build: { stage: Parameters<typeof testParams>[1] }) {
  await engine.load(testParams(spec, build.stage, 100));
  return engine;
}

Deno.test(onAdapter(gpu, "two stages with a GPU's kernels equal the CPU engine"), async () => {
  const builds = buildsOf(spec, 2, { codec: "raw32", slots: 1 });
  const hardware = { ...gpu, software: false };
  const cpu: StageEngine[] = [], wgsl: StageEngine[] = [];
  for (const build of builds) {
    cpu.push(await withParams(createCpuEngine(build), build));
    wgsl.push(await withParams(await createWgslEngine(hardware, build), build));
  }
  const ids = { tokens: testIds(spec, 5), targets: testIds(spec, 6) };
  const expected = await runMicroBatch(cpu, ids, { slot: 0 });
  const actual = await runMicroBatch(wgsl, ids, { slot: 0 });
  assert.ok(Math.abs(actual.loss - expected.loss) <= TOLERANCE, `${actual.loss} for loss ${expected.loss}`);
  for (const [i, grad] of actual.weightGrads.entries()) {
    const error = relL2(grad, expected.weightGrads[i]!);
    assert.ok(error <= TOLERANCE, `weight gradient of stage ${i}: relative error ${error}`);
  }
  for (const engine of [...cpu, ...wgsl]) engine.destroy();
});

Deno.test("a GPU's plan uses workgroups where a software adapter's does not", () => {
  const [build] = buildsOf({ ...spec, n_head: 2, n_kv_head: 1 }, 1, { codec: "raw32" });
  const namesFor = (software: boolean) => {
    const { operations } = planStage(build!, { software }).plan;
    return [...operations.values()].flatMap(({ dispatches }) => dispatches.map(({ spec: { name } }) => name));
  };
  const shared = /^(attention_.*_flash|rmsnorm_.*_group)$/;
  assert.equal(new Set(namesFor(false).filter((name) => shared.test(name))).size, 5);
  assert.deepEqual(namesFor(true).filter((name) => shared.test(name)), []);
});
