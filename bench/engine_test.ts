// The engine benchmark's flags, tables and summary, and that what it measures against is the same model: ten losses of the
// plain tfjs model beside those of the double-precision engine. The measurement itself proves nothing by passing.
import assert from "node:assert/strict";
import * as tf from "@tensorflow/tfjs-core";
import { createCpuEngine } from "../peer/engine/cpu.ts";
import { initParams } from "../peer/model/init.ts";
import { wholeModel } from "../peer/model/layout.ts";
import { countCommands } from "./commands.ts";
import { parseFlags } from "./engine.ts";
import {
  benchBatch,
  type BenchModel,
  benchModel,
  flopsOfProduct,
  MODEL_NAMES,
  OPTIMISATION,
  products,
  SEED,
} from "./engine_models.ts";
import { ANY_ADAPTER } from "../peer/gpu/kernels/matmul.ts";
import { dispatchesPerLayer, type PlaceResult } from "./engine_place.ts";
import {
  kernelTable,
  productsRatio,
  productTable,
  ratio,
  report,
  stepTable,
  summarise,
} from "./engine_report.ts";
import { buildOf, EngineSide, type StepSide, TfjsSide } from "./engine_sides.ts";
import { badChecks, checkLosses, LOSS_TOLERANCE, measureSteps, type SideOpener } from "./engine_step.ts";
import { openTfjsInDeno } from "./tfjs_deno.ts";
import { TfjsGpt } from "./tfjs_gpt.ts";

/** Two query heads a key head, widths that divide by nothing but 2, a vocabulary of which some tokens never occur. */
const TINY: BenchModel = {
  name: "tiny",
  spec: {
    ...{ vocab_size: 13, block_size: 6, n_layer: 2, n_head: 4, n_kv_head: 2, n_embd: 24, n_inner: 22 },
    ...{ tie_word_embeddings: false, rope_theta: 10_000, norm_eps: 1e-5 },
  },
  batchSize: 2,
  note: "",
};
const TIED: BenchModel = { ...TINY, spec: { ...TINY.spec, tie_word_embeddings: true, n_kv_head: 4 } };

await openTfjsInDeno();

function twin(model: BenchModel): SideOpener {
  return {
    name: "f64",
    open: () => Promise.resolve(new EngineSide(createCpuEngine(buildOf(model)), model)),
  };
}

for (const [what, model] of [["grouped queries", TINY], ["tied embeddings", TIED]] as const) {
  Deno.test(`ten steps, ten losses: plain tfjs against the double-precision engine, ${what}`, async () => {
    const plain = { name: "tfjs-wasm", open: () => TfjsSide.create("tfjs-wasm", model) };
    const checks = await checkLosses(model, [twin(model), plain]);
    assert.deepEqual(badChecks(checks), []);
    // f32 against f64 on a model this small; adapters in the bench may round more coarsely.
    assert.ok(checks[1]!.difference < LOSS_TOLERANCE / 20, `${checks[1]!.difference}`);
  });
}

/** A tfjs side that computes something else. */
function wrongSide(change: Partial<typeof OPTIMISATION>): SideOpener {
  return {
    name: "wrong",
    open: () => {
      const { spec, batchSize } = TINY;
      const model = { spec, batchSize, optimisation: { ...OPTIMISATION, ...change }, oneHotEmbedding: true };
      const gpt = new TfjsGpt(model, initParams(spec, wholeModel(spec), SEED));
      const step: StepSide["step"] = async (batch) => ({ loss: await gpt.step(batch), parts: {} });
      return Promise.resolve({ step, measuredStep: step, destroy: () => gpt.dispose() });
    },
  };
}

Deno.test("the check of losses notices another decay, another beta and a clip left out", async () => {
  const wrong = [{ weight_decay: 3 }, { beta2: 0.95 }, { grad_clip: 0, learning_rate: 1e-2 }].map(wrongSide);
  const broken: SideOpener = { name: "broken", open: () => Promise.reject(new Error("no adapter")) };
  const checks = await checkLosses(TINY, [twin(TINY), ...wrong, broken]);
  assert.equal(badChecks(checks).length, 4);
  assert.equal(checks[4]!.failure, "no adapter");
});

Deno.test("a tfjs step leaves no tensor behind, and its peak is above what it keeps", async () => {
  const before = tf.memory().numTensors;
  const side = await TfjsSide.create("tfjs-wasm", TINY);
  await side.step(benchBatch(TINY, 0));
  const kept = tf.memory().numTensors;
  const { peak } = await side.measuredStep(benchBatch(TINY, 1));
  assert.equal(tf.memory().numTensors, kept);
  const parameterBytes = 4 * initParams(TINY.spec, wholeModel(TINY.spec), SEED).length;
  assert.ok(peak!.engine > 4 * parameterBytes, `${peak!.engine} bytes: parameters, two moments, gradients`);
  side.destroy();
  assert.equal(tf.memory().numTensors, before);
});

Deno.test("sides take turns, and one that fails is a line and not the end", async () => {
  const turns: string[] = [];
  const side = (name: string, fails: boolean): SideOpener => ({
    name,
    open: () => {
      const step = () => {
        turns.push(name);
        if (fails && turns.length > 2) throw new Error("device lost");
        return Promise.resolve({ loss: 2, parts: { load: 1 }, peak: { engine: 8, optimizer: 4 } });
      };
      return Promise.resolve({ step, measuredStep: step, destroy: () => {} });
    },
  });
  const result = await measureSteps(TINY, [side("a", false), side("b", true)], { rounds: 3, note: () => {} });
  assert.deepEqual(turns, ["a", "b", "a", "b", "a", "a"]);
  const [a, b] = result.sides;
  assert.deepEqual([a!.ms.length, a!.losses.length, a!.parts.load!.length], [3, 4, 3]);
  assert.deepEqual([b!.ms.length, b!.failure], [0, "device lost"]);
  assert.match(stepTable(result), /b failed: device lost/);
});

Deno.test("commands are counted until the counter is disposed of, and uncounted where there are no classes", () => {
  class Pass {
    dispatchWorkgroups(x: number): number {
      return x;
    }
    dispatchWorkgroupsIndirect(): void {}
  }
  class Queue {
    submit(): void {}
  }
  const known = globalThis as unknown as Record<string, unknown>;
  const saved = [known.GPUComputePassEncoder, known.GPUQueue];
  [known.GPUComputePassEncoder, known.GPUQueue] = [Pass, Queue];
  try {
    const { dispatchWorkgroups } = Pass.prototype;
    {
      using counter = countCommands();
      assert.equal(new Pass().dispatchWorkgroups(7), 7);
      new Pass().dispatchWorkgroupsIndirect();
      new Queue().submit();
      assert.deepEqual(counter.counts, { dispatches: 2, submits: 1 });
    }
    assert.equal(Pass.prototype.dispatchWorkgroups, dispatchWorkgroups);
    known.GPUQueue = undefined;
    using counter = countCommands();
    assert.equal(counter.counts, null);
  } finally {
    [known.GPUComputePassEncoder, known.GPUQueue] = saved;
  }
});

function product(
  name: string,
  layout: "nt" | "nn",
  ms: Record<string, number[]>,
): PlaceResult["products"][number] {
  return { name, layout, M: 100, N: 100, K: 500, ms, kernels: {}, failures: {} };
}

function place(changes: Partial<PlaceResult>): PlaceResult {
  return {
    ...{ place: "chromium", adapter: "soft", software: true, ceiling: { gflopPerS: 10, gbytePerS: 2 } },
    ...{ products: [], steps: [], checks: [], kernels: null, dispatchesPerLayer: 24 },
    ...changes,
  };
}

function stepOf(model: string, ms: Record<string, number[]>): PlaceResult["steps"][number] {
  const rest = { losses: [4, 3.5], parts: {}, peak: { engine: 2e6, optimizer: 5e5 }, dispatches: 63 };
  return {
    ...{ model, note: "1 layer of 12", layers: 2, parameters: 1000, rows: 512 },
    sides: Object.entries(ms).map(([side, ms]) => ({ side, ms, ...rest, submits: 3, failure: null })),
  };
}

Deno.test("ratios are taken round by round and averaged geometrically over products", () => {
  assert.equal(ratio([1, 2, 4], [10, 10, 10, 99]), 5);
  assert.equal(ratio([1], []), null);
  assert.equal(ratio(undefined, [1]), null);
  const all = [product("a", "nt", { wgsl: [1], tfjs: [4] }), product("b", "nn", { wgsl: [1], tfjs: [16] })];
  assert.ok(Math.abs(productsRatio(all, "wgsl", "tfjs")! - 8) < 1e-12);
  assert.equal(productsRatio(all, "wgsl", "other"), null);
});

Deno.test("the summary takes the tab's figures first, and the step of the base model, or else of the first one", () => {
  const tab = place({
    products: [product("a", "nt", { wgsl: [1], "tfjs-webgpu": [12] })],
    steps: [
      stepOf("nano", { wgsl: [1], "tfjs-webgpu": [2] }),
      stepOf("base", { wgsl: [1], "tfjs-webgpu": [15] }),
    ],
  });
  const deno = place({ place: "deno", steps: [stepOf("base", { fallback: [2], "tfjs-wasm": [5] })] });
  const summary = summarise([tab, deno]);
  assert.ok(Math.abs(summary.matmul_vs_tfjs_webgpu! - 12) < 1e-12);
  assert.deepEqual({ ...summary, matmul_vs_tfjs_webgpu: 0 }, {
    matmul_vs_tfjs_webgpu: 0,
    matmul_vs_best_of_family: null,
    step_vs_tfjs_webgpu: 15,
    fallback_step_vs_tfjs_wasm: 2.5,
    dispatches_per_layer: 24,
    adapter: "soft",
  });
  assert.equal(summarise([deno]).matmul_vs_tfjs_webgpu, null);
  const searched = product("a", "nt", { wgsl: [4], "best of family": [3] });
  assert.ok(
    Math.abs(summarise([tab, place({ products: [searched] })]).matmul_vs_best_of_family! - 0.75) < 1e-12,
  );
  const nano = place({ steps: [stepOf("nano", { wgsl: [1], "tfjs-webgpu": [2] })] });
  assert.equal(summarise([nano]).step_vs_tfjs_webgpu, 2);
});

Deno.test("the tables have a row per product, side and kernel, with fractions of the ceiling", () => {
  const ceiling = { gflopPerS: 10, gbytePerS: 2 };
  const out = product("out 8", "nt", { wgsl: [2, 4, 2], tfjs: [20, 20, 20] });
  const rows = productTable([{ ...out, kernels: { wgsl: "registers 8x4" } }], ceiling).split("\n");
  assert.match(
    rows[0]!,
    /^product +layout +M x N x K +wgsl GFLOP\/s +tfjs GFLOP\/s +of ceiling +vs tfjs +wgsl is$/,
  );
  assert.match(rows[1]!, /^out 8 +nt +100x100x500 +5\.00 ±25% +0\.50 ±0% +50 % +10\.00x +registers 8x4$/);
  const steps = stepTable(
    stepOf("base", { wgsl: [100, 110], fallback: [50, 50], "tfjs-wasm": [300, 220] }),
  ).split("\n");
  assert.equal(steps[0], "step of base: 2 layers, 1000 parameters, 512 tokens (1 layer of 12)");
  assert.match(steps[1]!, / vs wgsl +vs fallback +optimizer$/);
  assert.match(steps[4]!, /^tfjs-wasm +300\.0 ±13% +1707 +2\.5 +63 +3 +3\.5000 +3\.00x +6\.00x$/);
  const kernels = [
    { name: "copy", count: 2, ms: 1, flops: 0, bytes: 1e6 },
    { name: "matmul", count: 1, ms: 6, flops: 3e7, bytes: 1e6 },
  ];
  const lines = kernelTable(kernels, ceiling).split("\n");
  assert.match(lines[1]!, /^matmul +1 +6\.000 +75\.0 % +1\.00 +30\.0 +5\.00 +0\.17 +50 %$/);
  assert.match(lines[2]!, /^copy +2 +1\.000 +25\.0 % +1\.00 +1\.00 +50 %$/);
  assert.match(report(place({})), /^chromium, soft: at most 10\.0 GFLOP\/s .* 24 dispatches a layer$/);
});

Deno.test("a failed product and a product not measured are said, not left out", () => {
  const failed = { ...product("a", "nn", { wgsl: [1] }), failures: { "tfjs-webgpu": "device lost" } };
  const text = report(place({ products: [failed] }));
  assert.match(text, /wgsl against tfjs-webgpu: not measured/);
  assert.match(text, /tfjs-webgpu failed at a nn: device lost/);
});

Deno.test("every model and product is one that the engine can plan, in all three layouts with equal work", () => {
  for (const software of [true, false]) {
    for (const name of MODEL_NAMES) {
      const { spec, batchSize } = benchModel(name, software);
      assert.equal(spec.n_embd % spec.n_head, 0);
      assert.equal(spec.n_head % spec.n_kv_head, 0);
      const { tokens, targets } = benchBatch({ name, spec, batchSize, note: "" }, 3);
      assert.equal(tokens.length, batchSize * spec.block_size);
      assert.ok(tokens.every((token) => token < spec.vocab_size));
      assert.deepEqual(tokens.subarray(1, spec.block_size), targets.subarray(0, spec.block_size - 1));
    }
    const all = products(software, false);
    assert.equal(new Set(all.map(({ name, layout }) => `${name} ${layout}`)).size, all.length);
    for (let i = 0; i < all.length; i += 3) {
      assert.equal(new Set(all.slice(i, i + 3).map(flopsOfProduct)).size, 1);
    }
  }
  assert.ok(products(true, true).length < products(true, false).length);
});

Deno.test("what one more layer dispatches is a whole number that does not depend on the other layer", () => {
  const count = dispatchesPerLayer({ software: true });
  assert.ok(Number.isInteger(count) && count > 0 && count <= 25, `${count}`);
  const matmul = { ...ANY_ADAPTER, apart: ["rotary" as const] };
  assert.equal(dispatchesPerLayer({ software: true, matmul }), count + 1, "as the adapter has it");
});

Deno.test("flags have defaults and bounds, --quick changes the defaults only, unknown ones are refused", () => {
  const { places, sections, sides, models, ...rest } = parseFlags(["--json"]);
  assert.deepEqual({ places, sections }, {
    places: ["chromium", "deno"],
    sections: ["matmul", "step", "kernels"],
  });
  assert.deepEqual(sides, ["wgsl", "fallback", "tfjs-webgpu", "tfjs-wasm"]);
  assert.equal(models.length, 4);
  assert.deepEqual(rest, { quick: false, json: true, help: false, rounds: 3 });
  assert.deepEqual(parseFlags(["--deno"]).places, ["deno"]);
  assert.deepEqual(parseFlags(["--deno", "--chromium"]).places, ["chromium", "deno"]);
  const quick = parseFlags(["--quick", "--rounds=9"]);
  assert.deepEqual([quick.models, quick.rounds], [["base"], 9]);
  assert.throws(
    () => parseFlags(["--sections=matmuls"]),
    /--sections must name some of matmul, step, kernels/,
  );
  assert.throws(() => parseFlags(["--models=huge"]), /--models must name some of nano, base, six, gpt2/);
  assert.throws(() => parseFlags(["--rounds=0"]), /--rounds must be a whole number from 1 to 100, got "0"/);
  assert.throws(() => parseFlags(["--model=base"]), /unknown flag "--model" \(did you mean "--models"\?\)/);
});
