// What engines tell of the time that boundary tensors take: sums that grow with every tensor, and on the GPU with every
// so many of them, whose operations give the same bits as those that are not told apart.
import assert from "node:assert/strict";
import { createCpuEngine } from "../../peer/engine/cpu.ts";
import type { BoundarySums } from "../../peer/engine/boundary_times.ts";
import type { StageEngine } from "../../peer/engine/engine.ts";
import { createWgslEngine } from "../../peer/engine/wgsl.ts";
import { buildsOf, type MicroBatch, runMicroBatch, testIds, testParams, tinySpec } from "./engine_support.ts";
import { assertSameBits, onAdapter, testDevice } from "./support.ts";

const gpu = await testDevice();
const ids = { tokens: testIds(tinySpec, 5), targets: testIds(tinySpec, 6) };

async function run(engines: StageEngine[], times: number): Promise<MicroBatch[]> {
  for (const [i, engine] of engines.entries()) {
    await engine.load(testParams(tinySpec, buildsOf(tinySpec, 3, { codec: "f16s" })[i]!.stage, 100));
  }
  const results: MicroBatch[] = [];
  for (let i = 0; i < times; i++) results.push(await runMicroBatch(engines, ids, { slot: 0 }));
  return results;
}

function counts({ boundary }: StageEngine): number[] {
  const { decodes, encodes } = boundary!;
  return [decodes, encodes];
}

function assertTimed(sums: BoundarySums | undefined): void {
  assert.ok(sums !== undefined && sums.decodeMs > 0 && sums.encodeMs > 0, JSON.stringify(sums));
}

Deno.test("the CPU engine times every boundary tensor", async () => {
  const engines = buildsOf(tinySpec, 3, { codec: "f16s" }).map((build) => createCpuEngine(build));
  await run(engines, 2);
  assert.deepEqual(engines.map(counts), [[2, 2], [4, 4], [2, 2]]);
  assertTimed(engines[1]!.boundary);
});

Deno.test(
  onAdapter(gpu, "an operation that is told apart gives the same bits as one that is not"),
  async () => {
    const builds = buildsOf(tinySpec, 3, { codec: "f16s" });
    const engines = await Promise.all(builds.map((build) => createWgslEngine(gpu, build)));
    const [first, ...later] = await run(engines, 17);
    // Of the middle stage F is the 1st and B the 32nd operation; the ends have one tensor each way.
    assert.deepEqual(engines.map(counts), [[17, 1], [34, 2], [17, 1]]);
    assertTimed(engines[1]!.boundary);
    for (const { activations, gradients, weightGrads } of later) {
      assert.deepEqual([activations, gradients], [first!.activations, first!.gradients]);
      for (const [i, grad] of weightGrads.entries()) {
        assertSameBits(
          grad,
          first!.weightGrads[i]!,
          `stage ${i}`,
        );
      }
    }
    for (const engine of engines) engine.destroy();
  },
);
