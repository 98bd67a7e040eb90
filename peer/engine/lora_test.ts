// Adapters beside a frozen base: their gradients are those of finite differences and of the dense gradient's chain rule, bits do not
// depend on the cut, what is merged is what is computed with, and memory is what is allocated.
import assert from "node:assert/strict";
import { randomArray, randomTokens, relativeError } from "../../shaders/reference/check.ts";
import { baseSpec, findTensor, splitLayers, stageLayout, wholeModel } from "../model/layout.ts";
import { loraTargets, mergeLora } from "../model/lora.ts";
import { loraMemory } from "../model/lora_memory.ts";
import { ShoalError } from "../wire/errors.ts";
import type { Encoded, LoraSpec, ModelSpec, StageSpec } from "../wire/run.ts";
import { createCpuEngine } from "./cpu.ts";
import type { StageBuild, StageEngine } from "./engine.ts";
import { LoraEngine, stageBase, withLora } from "./lora.ts";

const lora: LoraSpec = { rank: 3, alpha: 4, targets: ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"] };
const llama: ModelSpec = {
  ...{ vocab_size: 7, block_size: 5, n_layer: 3, n_head: 2, n_kv_head: 1, n_embd: 8, n_inner: 6, lora },
  ...{ tie_word_embeddings: true, rope_theta: 10000, norm_eps: 1e-5 },
};
const gpt2: ModelSpec = { ...llama, architecture: "gpt2", n_kv_head: 2, n_inner: 10 };
const B = 2, R = B * llama.block_size;
const tokens = randomTokens(1, R, llama.vocab_size), targets = randomTokens(2, R, llama.vocab_size);

/** The same values in every cut, because they depend on a tensor's place in the whole model. */
function valuesOf(spec: ModelSpec, stage: StageSpec, scale: number): Float32Array {
  const layout = stageLayout(spec, stage), whole = stageLayout(spec, wholeModel(spec));
  const flat = new Float32Array(layout.size);
  for (const { name, offset, size } of layout.tensors) {
    flat.set(randomArray(findTensor(whole, name)!.offset + 5, size, scale), offset);
  }
  return flat;
}

function buildOf(spec: ModelSpec, stage: StageSpec): StageBuild {
  return { spec, stage, batchSize: B, slots: 1, codecForward: "raw32", codecBackward: "raw32" };
}

function engineOf(spec: ModelSpec, stage: StageSpec): Promise<StageEngine> {
  const create = withLora(
    (build) => Promise.resolve(createCpuEngine(build)),
    (build) => stageBase(build, valuesOf(baseSpec(spec), build.stage, 0.5)),
  );
  return create(buildOf(spec, stage));
}

async function train(spec: ModelSpec, stages: StageSpec[]): Promise<Map<string, Float32Array>> {
  const engines = await Promise.all(stages.map((stage) => engineOf(spec, stage)));
  for (const [s, engine] of engines.entries()) await engine.load(valuesOf(spec, stages[s]!, 0.3));
  let activation: Encoded | undefined;
  for (const engine of engines) {
    activation =
      (await engine.forward(0, { tokens, targets, ...(activation ? { activation } : {}) })).activation;
  }
  let gradient: Encoded | null = null;
  for (const engine of engines.toReversed()) gradient = await engine.backward(0, gradient);
  const grads = new Map<string, Float32Array>();
  for (const [s, engine] of engines.entries()) {
    const flat = await engine.weightGrad(0);
    for (const { name, offset, size } of stageLayout(spec, stages[s]!).tensors) {
      grads.set(name, flat.slice(offset, offset + size));
    }
  }
  return grads;
}

for (const [name, spec] of [["llama", llama], ["gpt2", gpt2]] as const) {
  const stage = wholeModel(spec);

  Deno.test(`lora, ${name}: gradients of A and B are those of finite differences`, async () => {
    const grads = await train(spec, [stage]);
    const engine = await engineOf(spec, stage);
    const adapters = valuesOf(spec, stage, 0.3);
    const lossAt = async (at: number, change: number) => {
      await engine.load(adapters.map((value, i) => i === at ? value + change : value));
      return (await engine.forward(null, { tokens, targets })).loss!;
    };
    for (const { name, offset, size } of stageLayout(spec, stage).tensors) {
      for (const i of [0, size >> 1, size - 1]) {
        const step = 2 ** -7;
        const slope = (await lossAt(offset + i, step) - await lossAt(offset + i, -step)) / (2 * step);
        // Merged weights are f32: their rounding of 6e-8 over a step of 1/128.
        const error = Math.abs(slope - grads.get(name)![i]!);
        assert.ok(
          error < 2e-4 * Math.max(1, Math.abs(slope)),
          `${name}[${i}]: ${slope} ${grads.get(name)![i]}`,
        );
      }
    }
  });

  Deno.test(`lora, ${name}: gradients are the dense one's, through the product`, async () => {
    const adapters = valuesOf(spec, stage, 0.3), base = valuesOf(baseSpec(spec), stage, 0.5);
    const plain = createCpuEngine(buildOf(baseSpec(spec), stage));
    await plain.load(mergeLora(spec, stage, { base, adapters }));
    await plain.forward(0, { tokens, targets });
    await plain.backward(0, null);
    const dense = await plain.weightGrad(0);
    const grads = await train(spec, [stage]);
    const { rank, alpha } = lora;
    const matrices = loraTargets(spec, stage);
    assert.equal(matrices.length, 3 * 5);
    for (const { name, rows, cols, aOffset, bOffset, baseOffset } of matrices) {
      const module = name.replace(/\.weight$/, "");
      const [G, A, Bm] = [
        (o: number, i: number) => dense[baseOffset + o * cols + i]!,
        (r: number, i: number) => adapters[aOffset + r * cols + i]!,
        (o: number, r: number) => adapters[bOffset + o * rank + r]!,
      ];
      const sum = (n: number, f: (k: number) => number) =>
        Array.from({ length: n }, (_, k) => f(k)).reduce((a, b) => a + b);
      const dA = Float64Array.from(
        { length: rank * cols },
        (_, at) => alpha / rank * sum(rows, (o) => Bm(o, Math.floor(at / cols)) * G(o, at % cols)),
      );
      const dB = Float64Array.from(
        { length: rows * rank },
        (_, at) => alpha / rank * sum(cols, (i) => G(Math.floor(at / rank), i) * A(at % rank, i)),
      );
      assert.ok(relativeError(grads.get(`${module}.lora_A.weight`)!, dA) < 1e-6, name);
      assert.ok(relativeError(grads.get(`${module}.lora_B.weight`)!, dB) < 1e-6, name);
    }
  });

  Deno.test(`lora, ${name}: the same bits in every cut`, async () => {
    // A tied head adds up its two ends' gradients, which changes no adapter's.
    const whole = await train(spec, [stage]);
    for (const weights of [[1, 2], [1, 1, 1]]) {
      const cut = await train(spec, splitLayers(spec, weights));
      assert.deepEqual([...cut.keys()].sort(), [...whole.keys()].sort());
      for (const [name, values] of cut) assert.deepEqual(values, whole.get(name), name);
    }
  });
}

Deno.test("lora: with B of zeros it is the base, and a second load begins from the base again", async () => {
  const stage = wholeModel(llama);
  const engine = await engineOf(llama, stage), plain = createCpuEngine(buildOf(baseSpec(llama), stage));
  await plain.load(valuesOf(baseSpec(llama), stage, 0.5));
  const { loss } = await plain.forward(null, { tokens, targets });
  await engine.load(valuesOf(llama, stage, 0.3));
  assert.notEqual((await engine.forward(null, { tokens, targets })).loss, loss);
  await engine.load(new Float32Array(stageLayout(llama, stage).size));
  assert.equal((await engine.forward(null, { tokens, targets })).loss, loss);
});

Deno.test("lora: a base or adapters of another size are refused", async () => {
  const stage = wholeModel(llama);
  const inner = createCpuEngine(buildOf(baseSpec(llama), stage));
  const isBadState = (error: unknown) => error instanceof ShoalError && error.code === "bad-state";
  assert.throws(
    () =>
      new LoraEngine(buildOf(llama, stage), inner, {
        weights: new Float32Array(64),
        frozen: new Float32Array(0),
      }),
    isBadState,
  );
  await assert.rejects((await engineOf(llama, stage)).load(new Float32Array(64)), isBadState);
});

Deno.test("lora: an engine's scale passes through, its optimizer does not, and what overflows anywhere is told", async () => {
  const stage = wholeModel(llama);
  const scales: number[] = [];
  let overflow = -1, asked: string | undefined;
  const create = withLora(
    ({ spec, optimizer }) => {
      asked = optimizer;
      const size = stageLayout(spec, stage).size;
      const inner = createCpuEngine(buildOf(spec, stage));
      const weightGrad = () =>
        Promise.resolve(Float32Array.from({ length: size }, (_, i) => i === overflow ? Infinity : 1));
      const engine = { ...inner, load: () => Promise.resolve(), memory: () => inner.memory() };
      const dead = {} as NonNullable<StageEngine["optimizer"]>;
      return Promise.resolve({
        ...engine,
        ...{ name: "halves", forward: () => assert.fail(), backward: () => assert.fail(), destroy: () => {} },
        ...{ weightGrad, scaleLoss: (exponent: number) => void scales.push(exponent), optimizer: dead },
      });
    },
    (build) => stageBase(build, valuesOf(baseSpec(llama), stage, 0.5)),
  );
  const engine = await create({ ...buildOf(llama, stage), dtype: "f16", optimizer: "gpu" });
  assert.deepEqual([engine.optimizer, asked], [undefined, "exact"]);
  engine.scaleLoss!(3);
  assert.deepEqual(scales, [3]);
  await engine.load(valuesOf(llama, stage, 0.3));
  assert.ok((await engine.weightGrad(0)).every(Number.isFinite));
  // Of the embedding, which has no adapters.
  overflow = 0;
  assert.ok(!(await engine.weightGrad(0)).every(Number.isFinite));
});

Deno.test("lora: memory is the arrays that are held, and the largest that merging makes", async () => {
  const stage = { index: 1, firstLayer: 1, endLayer: 3, embed: false, head: false };
  const build = buildOf(llama, stage);
  const base = stageBase(build, valuesOf(baseSpec(llama), stage, 0.5));
  const inner = createCpuEngine(buildOf(baseSpec(llama), stage));
  const adapters = valuesOf(llama, stage, 0.3), given: Float32Array[] = [];
  const native = {
    ...fake(adapters),
    loadAdapters: (values: Float32Array) => Promise.resolve(void given.push(values)),
  };
  const engine = new LoraEngine(build, { ...inner, ...native, memory: () => inner.memory() }, base);
  const made: Record<string, number[]> = { Float32Array: [], Float64Array: [] };
  await counting(made, () => engine.load(adapters));
  assert.deepEqual(given, [adapters]);
  assert.equal(await engine.weightGrad(0), adapters, "what such an engine gives is the adapters' gradient");
  const own = loraMemory(build), all = engine.memory(), under = inner.memory();
  assert.equal(own.params, base.weights.byteLength + base.frozen.byteLength + adapters.byteLength);
  assert.equal(own.scratch, 8 * Math.max(...made.Float64Array!));
  assert.deepEqual(made.Float32Array, []);
  assert.deepEqual(all, {
    params: under.params + own.params,
    activations: under.activations,
    scratch: under.scratch + own.scratch,
  });
  assert.deepEqual(loraMemory({ ...build, spec: baseSpec(llama) }), {
    params: 0,
    activations: 0,
    scratch: 0,
  });
});

function fake(dense: Float32Array) {
  return {
    ...{ name: "none", load: () => Promise.resolve(), weightGrad: () => Promise.resolve(dense) },
    ...{ forward: () => assert.fail(), backward: () => assert.fail(), destroy: () => {} },
  };
}

/** Lengths of the arrays that are made meanwhile. */
async function counting(made: Record<string, number[]>, work: () => Promise<unknown>): Promise<void> {
  const real = { Float32Array, Float64Array };
  for (const [name, type] of Object.entries(real)) {
    Object.assign(globalThis, {
      [name]: new Proxy(type, {
        construct(target, args: [number]) {
          made[name]!.push(args[0]);
          return new target(args[0]);
        },
      }),
    });
  }
  try {
    await work();
  } finally {
    Object.assign(globalThis, real);
  }
}
