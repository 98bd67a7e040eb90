// Memory: what is predicted from shapes is what the plan asks for and what is allocated; parameters larger than a binding are
// cut, and compute the same bits; a stage that cannot be bound is refused with a code.
import assert from "node:assert/strict";
import { createCpuEngine } from "../../peer/engine/cpu.ts";
import { createWgslEngine } from "../../peer/engine/wgsl.ts";
import type { StageBuild } from "../../peer/engine/engine.ts";
import { forwardName, planStage } from "../../peer/engine/wgsl_plan.ts";
import { type ArenaLimits, DEFAULT_LIMITS, planArena } from "../../peer/gpu/arena.ts";
import type { GpuDevice } from "../../peer/gpu/device.ts";
import { presumedChoice } from "../../peer/gpu/kernels/matmul.ts";
import { readbackBytes } from "../../peer/gpu/program.ts";
import { Staging } from "../../peer/gpu/staging.ts";
import { BufferUsage } from "../../peer/gpu/constants.ts";
import { splitLayers, wholeModel } from "../../peer/model/layout.ts";
import { stagingPieces, UNIFORM_BYTES, wgslMemory } from "../../peer/model/stage_memory.ts";
import { paddedBytes } from "../../peer/model/stage_tensors.ts";
import { ShoalError } from "../../peer/wire/errors.ts";
import { LORA_TARGETS, type LoraSpec, type ModelSpec, type StageSpec } from "../../peer/wire/run.ts";
import { countingDevice } from "./counting.ts";
import { runMicroBatch, testIds, testParams, tinySpec } from "./engine_support.ts";
import { assertSameBits, onAdapter, relL2, testDevice } from "./support.ts";

const gpu = await testDevice();
const traits = {
  software: true,
  matmul: presumedChoice({ software: true, adapterName: "", subgroups: false }),
};

const tied: ModelSpec = { ...tinySpec, tie_word_embeddings: true };
const gpt2: ModelSpec = { ...tied, architecture: "gpt2", n_kv_head: tied.n_head };
/** Of each shape: first, middle and last stage, and the whole model. */
const stages: [ModelSpec, StageSpec][] = [tinySpec, tied, gpt2].flatMap((spec): [ModelSpec, StageSpec][] => [
  ...splitLayers(spec, [1, 1, 1]).map((stage): [ModelSpec, StageSpec] => [spec, stage]),
  [spec, wholeModel(spec)],
]);

const ADAPTERS: LoraSpec[] = [
  ["q_proj", "v_proj"] as const,
  ["o_proj"] as const,
  ["up_proj", "down_proj"] as const,
]
  .map((targets, i) => ({ rank: 1 + 2 * i, alpha: 4, targets: [...targets] }));

/** Every stage with every recomputation and codec, one and three slots, whole and beside adapters. */
function builds(): StageBuild[] {
  const ways = (["none", "attention", "block"] as const).flatMap((recompute) =>
    (["raw32", "f16s", "i8b64"] as const).map((codec) => ({ recompute, codec }))
  );
  return stages.flatMap(([spec, stage]) =>
    ways.flatMap(({ recompute, codec }, i): StageBuild[] => {
      const build: StageBuild = {
        ...{ spec, stage, batchSize: 2, slots: i % 2 === 0 ? 1 : 3, recompute },
        ...{ codecForward: codec, codecBackward: codec === "raw32" ? "i8b64" : codec },
      };
      return [build, { ...build, adapters: ADAPTERS[i % ADAPTERS.length]! }];
    })
  );
}

function sum(
  { params, activations, scratch }: { params: number; activations: number; scratch: number },
): number {
  return params + activations + scratch;
}

/** Bytes of the buffers that Program.build makes for the stage's plan. */
function asked(build: StageBuild): number {
  const { plan } = planStage(build, traits);
  const tensors = plan.tensors.reduce((total, { bytes }) => total + paddedBytes(bytes), 0);
  const staging = stagingPieces(readbackBytes(plan));
  return tensors + UNIFORM_BYTES + staging.count * staging.bytes;
}

Deno.test("memory: the prediction is what the plan asks for, for every stage, recomputation and codec", () => {
  for (const build of builds()) {
    const what = JSON.stringify({ ...build, spec: build.spec.tie_word_embeddings });
    assert.deepEqual(planStage(build, traits).memory, wgslMemory(build), what);
    assert.equal(sum(wgslMemory(build)), asked(build), what);
  }
});

Deno.test("memory: of a matrix that is frozen beside adapters nothing is kept for W", () => {
  const codecs = { codecForward: "raw32", codecBackward: "raw32" } as const;
  const build = { spec: tinySpec, stage: wholeModel(tinySpec), batchSize: 2, slots: 2, ...codecs };
  const { n_embd: C, n_inner: I, n_layer, block_size } = tinySpec, R = 2 * block_size;
  const kept = (targets: LoraSpec["targets"]) =>
    wgslMemory({ ...build, adapters: { rank: 4, alpha: 4, targets } }).activations;
  const qv = kept(["q_proj", "v_proj"]);
  assert.equal(kept(["q_proj", "down_proj"]) - qv, 4 * 2 * R * n_layer * (I + C));
  assert.equal(kept(["q_proj", "o_proj"]) - qv, 4 * 2 * R * n_layer * C);
  const whole = wgslMemory(build);
  assert.ok(
    whole.activations > kept([...LORA_TARGETS]) &&
      whole.scratch > wgslMemory({ ...build, adapters: ADAPTERS[0]! }).scratch,
  );
});

Deno.test(onAdapter(gpu, "memory: the prediction is what is allocated"), async () => {
  const { counted, counts } = countingDevice(gpu);
  for (const build of builds().filter((_, i) => i % 7 === 0)) {
    const before = counts.bufferBytes;
    const engine = await createWgslEngine(counted, build);
    assert.equal(counts.bufferBytes - before, sum(wgslMemory(build)), JSON.stringify(build));
    engine.destroy();
  }
});

/** Too many words for a small binding: parts of 128 and 72 rows. The widest other tensor, the logits, just fits. */
const wide = { ...tinySpec, vocab_size: 200, block_size: 4, n_layer: 2 };
const SMALL: ArenaLimits = { bindingBytesMax: 8192, bufferBytesMax: 16_384 };

function limited({ bindingBytesMax, bufferBytesMax }: ArenaLimits): GpuDevice {
  const limits = { maxStorageBufferBindingSize: bindingBytesMax, maxBufferSize: bufferBytesMax };
  return { ...gpu, limits: limits as GPUSupportedLimits };
}

async function microBatches(device: GpuDevice, spec: ModelSpec, count: number) {
  const tokens = testIds(spec, 3), targets = testIds(spec, 4);
  // Tokens of both parts, and next to the cut.
  [127, 128, 199, 127].forEach((id, i) => [tokens[i], targets[7 - i]] = [id, id]);
  const engines = await Promise.all(
    splitLayers(spec, new Array<number>(count).fill(1)).map(async (stage) => {
      const build: StageBuild = {
        ...{ spec, stage, batchSize: 2, slots: 2, codecForward: "raw32", codecBackward: "raw32" },
      };
      const engine = await createWgslEngine(device, build);
      await engine.load(testParams(spec, stage, 7));
      return engine;
    }),
  );
  const first = await runMicroBatch(engines, { tokens, targets }, { slot: 0 });
  // The second finds the first one's gradient where its own belongs.
  const second = await runMicroBatch(engines, { tokens: targets, targets: tokens }, { slot: 1 });
  for (const engine of engines) engine.destroy();
  return [first, second];
}

for (
  const [name, spec, count] of [
    ["one stage", wide, 1],
    ["one tied stage", { ...wide, tie_word_embeddings: true }, 1],
    ["two stages", wide, 2],
  ] as const
) {
  Deno.test(
    onAdapter(gpu, `memory: a vocabulary larger than a binding gives the same gradients, ${name}`),
    async () => {
      const plan = planStage({
        ...{
          spec,
          stage: wholeModel(spec),
          batchSize: 2,
          slots: 1,
          codecForward: "raw32",
          codecBackward: "raw32",
        },
      }, { ...traits, limits: SMALL });
      assert.ok(plan.planning.parts.length > 2, "the parameters are cut");
      const cut = await microBatches(limited(SMALL), spec, count);
      const whole = await microBatches(gpu, spec, count);
      for (const [i, batch] of whole.entries()) {
        // The head's softmax is folded tile by tile, so its sum has another order: the last bits of the loss may differ.
        assert.ok(
          Math.abs(cut[i]!.loss - batch.loss) <= 1e-6 * batch.loss,
          `${cut[i]!.loss} for loss ${batch.loss}`,
        );
        for (const [s, grad] of batch.weightGrads.entries()) {
          const off = Math.max(...grad.map((value, at) => Math.abs(value - cut[i]!.weightGrads[s]![at]!)));
          assert.ok(off <= 1e-6, `micro-batch ${i}, weight gradient of stage ${s} off by ${off}`);
        }
      }
      const again = await microBatches(limited(SMALL), spec, count);
      for (const [i, batch] of cut.entries()) {
        for (const [s, grad] of batch.weightGrads.entries()) {
          assertSameBits(again[i]!.weightGrads[s]!, grad, `stage ${s}, run again`);
        }
      }
    },
  );
}

Deno.test(
  onAdapter(gpu, "memory: 50,257 words in two bindings and 26 tiles equal the CPU engine"),
  async () => {
    const spec = {
      ...tinySpec,
      vocab_size: 50_257,
      n_embd: 24,
      n_head: 2,
      n_kv_head: 1,
      n_layer: 1,
      block_size: 4,
    };
    const build: StageBuild = {
      ...{
        spec,
        stage: wholeModel(spec),
        batchSize: 2,
        slots: 1,
        codecForward: "raw32",
        codecBackward: "raw32",
      },
    };
    const limits: ArenaLimits = { bindingBytesMax: 4 << 20, bufferBytesMax: 8 << 20 };
    const wgsl = await createWgslEngine(limited(limits), build);
    const cpu = createCpuEngine(build);
    const batch = { tokens: testIds(spec, 7), targets: testIds(spec, 8) };
    const results = [];
    for (const engine of [wgsl, cpu]) {
      await engine.load(testParams(spec, build.stage, 3));
      results.push(await runMicroBatch([engine], batch, { slot: 0 }));
      engine.destroy();
    }
    const [actual, expected] = results;
    assert.ok(Math.abs(actual!.loss - expected!.loss) <= 2e-5, `${actual!.loss} for loss ${expected!.loss}`);
    const error = relL2(actual!.weightGrads[0]!, expected!.weightGrads[0]!);
    assert.ok(error <= 2e-5, `weight gradient: relative error ${error}`);
  },
);

Deno.test("memory: of an odd vocabulary only its end runs in kernels for odd sizes", () => {
  for (const vocab_size of [83, 50_257]) {
    const spec = { ...GPT2, vocab_size, n_layer: 1 };
    const { plan } = planStage({
      ...{
        spec,
        stage: wholeModel(spec),
        batchSize: 1,
        slots: 1,
        codecForward: "raw32",
        codecBackward: "raw32",
      },
    }, traits);
    const logits = plan.operations.get(forwardName(0))!.dispatches.filter(({ tensors }) =>
      tensors["out"] === "logits"
    );
    const widths = logits.map(({ params }) => params["N"]!);
    assert.equal(widths.reduce((total, N) => total + N, 0), vocab_size);
    assert.ok(widths.slice(0, -1).every((N) => N % 4 === 0) && widths.at(-1)! < 4, widths.join());
  }
});

const GPT2: ModelSpec = {
  ...{
    vocab_size: 50_257,
    block_size: 256,
    n_layer: 12,
    n_head: 12,
    n_kv_head: 12,
    n_embd: 768,
    n_inner: 2048,
  },
  ...{ tie_word_embeddings: false, rope_theta: 10_000, norm_eps: 1e-5 },
};

Deno.test("memory: GPT-2 small's shape fits the limits that every adapter has, in whole and in parts", () => {
  for (const weights of [[1], [1, 1, 1]]) {
    for (const stage of splitLayers(GPT2, weights)) {
      const build: StageBuild = {
        ...{ spec: GPT2, stage, batchSize: 8, slots: 1, codecForward: "i8b64", codecBackward: "i8b64" },
      };
      const { plan } = planStage(build, traits);
      assert.equal(sum(wgslMemory(build)), asked(build));
      const arena = planArena(plan.tensors, [], DEFAULT_LIMITS);
      assert.ok(Math.max(...arena.buffers) <= DEFAULT_LIMITS.bufferBytesMax);
      for (const { dispatches } of plan.operations.values()) {
        for (const { tensors } of dispatches) {
          for (const ref of Object.values(tensors)) {
            if (typeof ref === "string") continue;
            const place = arena.places.get(ref.tensor)!;
            assert.ok(ref.bytes <= DEFAULT_LIMITS.bindingBytesMax && ref.offset + ref.bytes <= place.bytes);
            assert.equal((place.offset + ref.offset) % 256, 0, `${ref.tensor} at ${ref.offset}`);
          }
        }
      }
    }
  }
});

Deno.test(
  onAdapter(gpu, "memory: what no adapter could bind is refused before anything is allocated"),
  async () => {
    const { counted, counts } = countingDevice(gpu);
    const spec = { ...tinySpec, block_size: 8192, n_embd: 64 };
    const build: StageBuild = {
      ...{
        spec,
        stage: wholeModel(spec),
        batchSize: 1024,
        slots: 1,
        codecForward: "raw32",
        codecBackward: "raw32",
      },
    };
    await assert.rejects(createWgslEngine(counted, build), (error) => {
      assert.ok(error instanceof ShoalError && error.code === "out-of-memory", String(error));
      return true;
    });
    assert.equal(counts.bufferBytes, 0);
  },
);

Deno.test(
  onAdapter(gpu, "memory: a readback longer than the staging ring arrives whole and in order"),
  async () => {
    const values = Uint32Array.from({ length: 300 }, (_, i) => i * 7 + 1);
    const buffer = gpu.device.createBuffer({
      ...{ label: "long", size: 1200, usage: BufferUsage.copySrc | BufferUsage.copyDst },
    });
    gpu.device.queue.writeBuffer(buffer, 0, values);
    const range = (offset: number, size: number) => ({ buffer, offset, size });
    for (const pieces of [{ count: 3, bytes: 64 }, { count: 1, bytes: 100 }, { count: 2, bytes: 2000 }]) {
      const staging = new Staging(gpu, "test", pieces);
      for (const ranges of [[range(0, 1200)], [range(400, 404), range(0, 8)], []]) {
        const encoder = gpu.device.createCommandEncoder({ label: "test" });
        const bytes = await staging.submitAndRead(encoder, ranges, "test");
        const expected = ranges.flatMap((
          { offset, size },
        ) => [...values.subarray(offset / 4, (offset + size) / 4)]);
        assert.deepEqual([...new Uint32Array(bytes)], expected, JSON.stringify(pieces));
      }
      staging.destroy();
    }
    buffer.destroy();
  },
);

Deno.test("memory: staging holds the whole readback while that is small, and is bounded when it is not", () => {
  assert.deepEqual(stagingPieces(0), { count: 1, bytes: 256 });
  assert.deepEqual(stagingPieces(1001), { count: 1, bytes: 1004 });
  assert.deepEqual(stagingPieces((16 << 20) + 4), { count: 2, bytes: 16 << 20 });
  assert.deepEqual(stagingPieces(500e6), { count: 3, bytes: 16 << 20 });
});
