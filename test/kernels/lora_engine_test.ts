// Adapters beside a frozen base on the engines of WebGPU and tfjs: the double-precision engine's losses and gradients, and the memory that
// the planner counts on. The chain rule itself is peer/engine/lora_test.ts.
import assert from "node:assert/strict";
import { createCpuEngine } from "../../peer/engine/cpu.ts";
import type { StageBuild, StageEngine, StageOutput } from "../../peer/engine/engine.ts";
import { type CreateEngine, stageBase, withLora } from "../../peer/engine/lora.ts";
import { createTfjsEngine } from "../../peer/engine/tfjs.ts";
import { createWgslEngine } from "../../peer/engine/wgsl.ts";
import { baseSpec, LORA_B, stageLayout } from "../../peer/model/layout.ts";
import { engineBytes, type EngineKind } from "../../peer/model/stage_memory.ts";
import {
  type Encoded,
  LORA_TARGETS,
  type LoraTarget,
  type ModelSpec,
  type RecomputeId,
} from "../../peer/wire/run.ts";
import { buildsOf, type MicroBatch, runMicroBatch, testIds, testParams, tinySpec } from "./engine_support.ts";
import { onAdapter, relL2, testDevice } from "./support.ts";

const gpu = await testDevice();

/** As for the engines alone (engine_test.ts, halves_engine_test.ts): two more products of rank r. */
const TOLERANCE = { f32: 2e-5, f16: 6e-3 };

const lora: ModelSpec["lora"] = { rank: 3, alpha: 6, targets: ["q_proj", "v_proj", "up_proj", "down_proj"] };
const llama: ModelSpec = { ...tinySpec, n_layer: 3, n_head: 2, n_kv_head: 1, lora };
const gpt2: ModelSpec = {
  ...llama,
  architecture: "gpt2",
  n_kv_head: 2,
  n_inner: 36,
  tie_word_embeddings: true,
};

const ENGINES: Record<EngineKind, CreateEngine> = {
  wgsl: (build) => createWgslEngine(gpu, build),
  tfjs: (build) => createTfjsEngine(build, { backend: "wasm" }),
  cpu: (build) => Promise.resolve(createCpuEngine(build)),
};

async function opened(kind: EngineKind, builds: readonly StageBuild[]): Promise<StageEngine[]> {
  const create = withLora(
    ENGINES[kind],
    (build) => stageBase(build, testParams(baseSpec(build.spec), build.stage, 100)),
  );
  return await Promise.all(builds.map(async (build) => {
    const engine = await create(build);
    await engine.load(testParams(build.spec, build.stage, 300));
    engine.scaleLoss?.(12);
    return engine;
  }));
}

interface Way {
  kind: EngineKind;
  spec: ModelSpec;
  dtype?: "f16";
  recompute?: RecomputeId;
}

function targeted(spec: ModelSpec, rank: number, targets: readonly LoraTarget[]): ModelSpec {
  return { ...spec, lora: { rank, alpha: 2 * rank, targets: [...targets] } };
}

/** Groups with one, some and all of their matrices; ranks that are no whole fours. */
const WAYS: Record<string, Way> = {
  "wgsl, Llama": { kind: "wgsl", spec: llama },
  "wgsl, Llama, all matrices, rank 5": { kind: "wgsl", spec: targeted(llama, 5, LORA_TARGETS) },
  "wgsl, Llama, k alone, rank 1": { kind: "wgsl", spec: targeted(llama, 1, ["k_proj"]) },
  "wgsl, Llama, attention again": { kind: "wgsl", spec: llama, recompute: "attention" },
  "wgsl, Llama, block again": {
    kind: "wgsl",
    spec: targeted(llama, 4, ["v_proj", "o_proj"]),
    recompute: "block",
  },
  "wgsl, Llama in f16": { kind: "wgsl", spec: llama, dtype: "f16" },
  "wgsl, Llama in f16, block again": { kind: "wgsl", spec: llama, dtype: "f16", recompute: "block" },
  "wgsl, Llama in f16, output and gate": {
    kind: "wgsl",
    spec: targeted(llama, 2, ["o_proj", "gate_proj"]),
    dtype: "f16",
  },
  "wgsl, GPT-2": { kind: "wgsl", spec: gpt2 },
  "wgsl, GPT-2, block again": { kind: "wgsl", spec: gpt2, recompute: "block" },
  "tfjs, Llama": { kind: "tfjs", spec: llama },
  "tfjs, Llama, output alone": { kind: "tfjs", spec: targeted(llama, 1, ["o_proj"]) },
  "tfjs, GPT-2, block again": { kind: "tfjs", spec: gpt2, recompute: "block" },
};

for (const [name, { kind, spec, dtype = "f32", recompute }] of Object.entries(WAYS)) {
  Deno.test(onAdapter(gpu, `lora: ${name}: the CPU engine's gradients of adapters`), async () => {
    const builds = buildsOf(spec, 2, { codec: "raw32", slots: 2 })
      .map((build): StageBuild => ({ ...build, dtype, ...(recompute && { recompute }) }));
    const ids = { tokens: testIds(spec, 5), targets: testIds(spec, 6) };
    const expected = await twoUnderWay(await opened("cpu", builds), ids);
    const engines = await opened(kind, builds);
    try {
      for (const [s, engine] of engines.entries()) {
        const { params, activations, scratch } = engine.memory();
        assert.equal(params + activations + scratch, engineBytes(kind, builds[s]!));
      }
      await testGradients(engines, { ids, expected, dtype });
    } finally {
      for (const engine of engines) engine.destroy();
    }
  });
}

type Ids = Parameters<typeof runMicroBatch>[1];
type Batch = Pick<MicroBatch, "loss" | "weightGrads">;

/** Two micro-batches in two slots, each operation of both before the next of either: what one leaves for W the other must not touch. */
async function twoUnderWay(engines: readonly StageEngine[], { tokens, targets }: Ids): Promise<Batch[]> {
  const batches = [{ tokens, targets }, { tokens: targets, targets: tokens }];
  const losses: number[] = [];
  for (const [slot, ids] of batches.entries()) {
    let output: StageOutput = {};
    for (const engine of engines) output = await engine.forward(slot, { ...ids, ...output });
    losses.push(output.loss!);
  }
  for (const slot of batches.keys()) {
    let gradient: Encoded | null = null;
    for (const engine of engines.toReversed()) gradient = await engine.backward(slot, gradient);
  }
  const results: Batch[] = [];
  for (const [slot, loss] of losses.entries()) {
    const weightGrads = await Promise.all(engines.map((engine) => engine.weightGrad(slot)));
    results.push({ loss, weightGrads });
  }
  return results;
}

async function testGradients(
  engines: readonly StageEngine[],
  { ids, expected, dtype }: { ids: Ids; expected: Batch[]; dtype: "f32" | "f16" },
): Promise<void> {
  for (const [slot, found] of (await twoUnderWay(engines, ids)).entries()) {
    const { loss, weightGrads } = expected[slot]!;
    const error = Math.abs(found.loss - loss) / loss;
    assert.ok(error <= TOLERANCE[dtype], `loss ${error}`);
    for (const [s, grads] of found.weightGrads.entries()) {
      const error = relL2(grads, weightGrads[s]!);
      assert.ok(error <= TOLERANCE[dtype], `stage ${s}: ${error}`);
    }
  }
}

Deno.test(
  onAdapter(gpu, "lora: with B as small as after a first step, halves lose nothing of A's gradient"),
  async () => {
    const spec = targeted(llama, 4, ["q_proj", "down_proj"]);
    const builds = buildsOf(spec, 1, { codec: "raw32", slots: 1 }).map((build) => ({
      ...build,
      dtype: "f16" as const,
    }));
    const ids = { tokens: testIds(spec, 5), targets: testIds(spec, 6) };
    const [stage] = builds;
    const adapters = testParams(spec, stage!.stage, 300);
    const { tensors } = stageLayout(spec, stage!.stage);
    for (const { name, offset, size } of tensors) {
      if (name.endsWith(LORA_B)) { for (let i = offset; i < offset + size; i++) adapters[i]! *= 1e-8; }
    }
    const [cpu, engine] = [await opened("cpu", builds), await opened("wgsl", builds)];
    await cpu[0]!.load(adapters);
    await engine[0]!.load(adapters);
    const expected = await runMicroBatch(cpu, ids, { slot: 0 });
    const found = await runMicroBatch(engine, ids, { slot: 0 });
    engine[0]!.destroy();
    for (const { name, offset, size } of tensors) {
      const of = ({ weightGrads }: Batch) => weightGrads[0]!.subarray(offset, offset + size);
      const error = relL2(of(found), of(expected));
      assert.ok(error <= TOLERANCE.f16, `${name}: ${error}`);
    }
  },
);

Deno.test(onAdapter(gpu, "lora: a gradient beyond a half's range is told"), async () => {
  const builds = buildsOf(llama, 1, { codec: "raw32", slots: 1 }).map((build) => ({
    ...build,
    dtype: "f16" as const,
  }));
  const engines = await opened("wgsl", builds);
  engines[0]!.scaleLoss!(40);
  const ids = { tokens: testIds(llama, 5), targets: testIds(llama, 6) };
  const { weightGrads } = await runMicroBatch(engines, ids, { slot: 0 });
  engines[0]!.destroy();
  assert.ok(!weightGrads[0]!.every(Number.isFinite));
});
