// The memory of the tfjs engine: what its pure prediction says is what tfjs' WASM backend really holds, matrix by matrix, at
// rest, with full slots and at its worst moment; and a step, a load and the end leave nothing behind.
import assert from "node:assert/strict";
import { encodeTensor } from "../../peer/codec/codec.ts";
import type { StageBuild, StageInput } from "../../peer/engine/engine.ts";
import { type MathShape, mathShape } from "../../peer/model/tfjs_math.ts";
import { tfjsFootprint, tfjsMemory, totalBytes } from "../../peer/model/tfjs_memory.ts";
import { wholeModel } from "../../peer/model/layout.ts";
import type { LoraSpec, ModelSpec } from "../../peer/wire/run.ts";
import { BATCH_SIZE, buildsOf, testIds, testParams, tinySpec } from "./engine_support.ts";
import { testValues } from "./support.ts";
import { type Counted, countedEngine } from "./tfjs_support.ts";

/** F in every slot, B in every slot, W in every slot, with an evaluation in between: as full as a stage gets. */
async function fillAndDrain({ engine, live }: Counted, build: StageBuild): Promise<{ full: number }> {
  const { embed, head } = build.stage, { spec } = build;
  const [rows, cols] = [BATCH_SIZE * spec.block_size, spec.n_embd];
  const tensor = encodeTensor(build.codecForward, testValues(rows * cols, 3), rows, cols);
  const input: StageInput = {
    ...(embed ? { tokens: testIds(spec, 5) } : { activation: tensor }),
    ...(head ? { targets: testIds(spec, 6) } : {}),
  };
  const evaluate = async () => {
    const { bytes } = live();
    await engine.forward(null, input);
    assert.equal(live().bytes, bytes, "an evaluation leaves something");
    return bytes;
  };
  for (let slot = 0; slot < build.slots; slot++) await engine.forward(slot, input);
  const forward = await evaluate();
  for (let slot = 0; slot < build.slots; slot++) await engine.backward(slot, head ? null : tensor);
  const full = Math.max(forward, await evaluate());
  for (let slot = 0; slot < build.slots; slot++) await engine.weightGrad(slot);
  return { full };
}

const MEMORY_CASES: Record<string, [ModelSpec, number]> = {
  "three stages": [tinySpec, 3],
  "a tied stage": [{ ...tinySpec, tie_word_embeddings: true, n_layer: 1 }, 1],
  "long sequences": [{ ...tinySpec, n_layer: 2, n_head: 2, n_embd: 8, block_size: 200 }, 2],
  "a GPT-2": [{ ...tinySpec, architecture: "gpt2", n_layer: 2, n_kv_head: 4 }, 2],
  "a large vocabulary": [{ ...tinySpec, n_layer: 1, vocab_size: 600 }, 1],
};

for (const [name, [spec, stages]] of Object.entries(MEMORY_CASES)) {
  for (const recompute of ["none", "block"] as const) {
    for (const headTile of [undefined, 24]) {
      const how = `recompute ${recompute}, ${headTile ?? "all"} words at a time`;
      Deno.test(`memory is predicted, and a step leaves nothing: ${name}, ${how}`, async () => {
        for (const build of buildsOf(spec, stages, { codec: "raw32", slots: 2 })) {
          const shape = mathShape(build);
          await testFootprint({ ...build, recompute }, { ...shape, headTile: headTile ?? shape.headTile });
        }
      });
    }
  }
}

for (const [i, targets] of [["q_proj", "v_proj"], ["o_proj", "up_proj"], ["down_proj"]].entries()) {
  const adapters: LoraSpec = { rank: 3, alpha: 6, targets: targets as LoraSpec["targets"] };
  Deno.test(`memory is predicted, and a step leaves nothing: adapters of ${targets}`, async () => {
    const llama: ModelSpec = { ...tinySpec, n_layer: 2, n_kv_head: tinySpec.n_head };
    const spec: ModelSpec = i === 1 ? { ...llama, architecture: "gpt2" } : llama;
    for (const recompute of ["none", "block"] as const) {
      for (const build of buildsOf(spec, 2, { codec: "raw32", slots: 2 })) {
        await testFootprint({ ...build, recompute, adapters }, mathShape(build));
      }
    }
  });
}

Deno.test("of a matrix that is frozen beside adapters nothing is kept for W", () => {
  const [, build] = buildsOf(tinySpec, 3, { codec: "raw32", slots: 1 });
  const { R, C, I } = mathShape(build!);
  const slot = (targets: LoraSpec["targets"]) =>
    tfjsFootprint({ ...build!, adapters: { rank: 3, alpha: 6, targets } }).slot;
  assert.equal(slot(["q_proj", "down_proj"]) - slot(["q_proj"]), 4 * R * (I + C));
  assert.equal(slot(["q_proj", "o_proj"]) - slot(["q_proj"]), 4 * R * C);
});

async function loaded({ engine }: Counted, { spec, stage, adapters }: StageBuild, seed: number) {
  await engine.load(testParams(spec, stage, seed));
  if (adapters) await engine.loadAdapters!(testParams({ ...spec, lora: adapters }, stage, seed + 1));
}

async function testFootprint(build: StageBuild, shape: MathShape): Promise<void> {
  const { params, slot, most } = tfjsFootprint(build, shape);
  const stage = await countedEngine(build, shape);
  try {
    await loaded(stage, build, 1);
    assert.equal(stage.live().bytes, params, "parameters");
    const { count } = stage.live();
    const { full } = await fillAndDrain(stage, build);
    assert.equal(full, params + build.slots * slot, "slots");
    assert.equal(stage.live().most, most + (build.slots - 1) * slot, "the most at any time");
    assert.deepEqual(
      { ...stage.live(), most },
      { bytes: params, count, most },
      "matrices left over after a step",
    );
    await loaded(stage, build, 2);
    assert.deepEqual(
      { ...stage.live(), most },
      { bytes: params, count, most },
      "matrices left over after a load",
    );
    stage.engine.destroy();
    await assert.rejects(stage.engine.forward(null, {}), /destroyed/);
    assert.equal(stage.live().bytes, 0, "matrices left over after the end");
  } finally {
    stage.restore();
  }
}

/** GPT-2 small's shape, a third of it with both ends' worth of vocabulary in the head. */
const GPT2: ModelSpec = {
  ...{ vocab_size: 50_257, block_size: 256, n_layer: 4, n_head: 12, n_kv_head: 12, n_embd: 768 },
  ...{ n_inner: 2048, tie_word_embeddings: false, rope_theta: 10_000, norm_eps: 1e-5 },
};

Deno.test("the vocabulary adds its table and its gradient, but no matrix of logits", () => {
  const build = { spec: GPT2, stage: { ...wholeModel(GPT2), embed: false }, batchSize: 8, slots: 1 };
  const codecs = { codecForward: "i8b64", codecBackward: "i8b64" } as const;
  const small = { ...build, ...codecs, spec: { ...GPT2, vocab_size: 4096 } };
  const [large, less] = [tfjsMemory({ ...build, ...codecs }), tfjsMemory(small)];
  const table = (GPT2.vocab_size - 4096) * GPT2.n_embd * 4;
  assert.equal(large.params - less.params, table);
  assert.ok(totalBytes(large) - totalBytes(less) < 2.2 * table, "more than table and gradient");
});

Deno.test("the engine tells what the prediction says", async () => {
  const [build] = buildsOf(tinySpec, 3, { codec: "i8b64", slots: 3 });
  const { engine, restore } = await countedEngine(build!, mathShape(build!));
  restore();
  assert.deepEqual(engine.memory(), tfjsMemory(build!));
  engine.destroy();
});

Deno.test("recomputing blocks keeps a layer's input instead of all of it", () => {
  const [, build] = buildsOf(tinySpec, 3, { codec: "i8b64", slots: 4 });
  const { C, R } = mathShape(build!);
  const thin = tfjsMemory({ ...build!, recompute: "block" }), full = tfjsMemory(build!);
  assert.equal(thin.activations, 4 * R * C * 4);
  assert.ok(thin.activations < full.activations / 8);
  assert.equal(thin.params, full.params);
  assert.ok(thin.scratch > full.scratch, "what is not kept is needed while it is computed again");
  assert.deepEqual(tfjsMemory({ ...build!, recompute: "attention" }), full);
});
