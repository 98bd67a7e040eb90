// Adapters in the layout: their names, shapes and places, how they begin, and what a configuration may ask of them. A model without
// adapters is laid out as ever.
import assert from "node:assert/strict";
import { ShoalError } from "../wire/errors.ts";
import { readConfig } from "./config.ts";
import { initParams } from "./init.ts";
import {
  baseParamCount,
  baseSpec,
  findTensor,
  paramCount,
  specOf,
  splitLayers,
  stageLayout,
  wholeModel,
} from "./layout.ts";
import { besideBase, loraTargets, mergeLora } from "./lora.ts";
import { adapterStack } from "./lora_groups.ts";
import { stateBytes } from "./stage_memory.ts";

const SMALL = { n_layer: 3, n_head: 4, n_kv_head: 2, n_embd: 16, n_inner: 24, block_size: 8 };
const config = readConfig({ ...SMALL, lora_rank: 4, lora_alpha: 6, lora_targets: "down_proj,q_proj,v_proj" });
const spec = specOf(config, 11);

Deno.test("lora: a stage trains two matrices for each target of its layers, and nothing else", () => {
  const [first, last] = splitLayers(spec, [1, 2]);
  assert.deepEqual(
    stageLayout(spec, first!).tensors.map(({ name, shape, offset }) => [name, shape, offset]),
    [
      ["model.layers.0.self_attn.q_proj.lora_A.weight", [4, 16], 0],
      ["model.layers.0.self_attn.q_proj.lora_B.weight", [16, 4], 64],
      ["model.layers.0.self_attn.v_proj.lora_A.weight", [4, 16], 128],
      ["model.layers.0.self_attn.v_proj.lora_B.weight", [8, 4], 192],
      ["model.layers.0.mlp.down_proj.lora_A.weight", [4, 24], 256],
      ["model.layers.0.mlp.down_proj.lora_B.weight", [16, 4], 352],
    ],
  );
  assert.equal(stageLayout(spec, first!).size, 448);
  assert.equal(stageLayout(spec, last!).tensors.length, 12);
  assert.equal(paramCount(spec), 3 * (4 * (16 + 16) + 4 * (16 + 8) + 4 * (24 + 16)));
  assert.equal(baseParamCount(spec), paramCount(specOf(readConfig(SMALL), 11)));
  assert.deepEqual(baseSpec(spec), specOf(readConfig(SMALL), 11));
  assert.deepEqual(spec.lora, { rank: 4, alpha: 6, targets: ["q_proj", "v_proj", "down_proj"] });
});

Deno.test("lora: every target points at its matrix of the base and at its own adapters", () => {
  const [, stage] = splitLayers(spec, [1, 2]);
  const base = stageLayout(baseSpec(spec), stage!), adapters = stageLayout(spec, stage!);
  const matrices = loraTargets(spec, stage!);
  assert.equal(matrices.length, 6);
  for (const { name, rows, cols, aOffset, bOffset, baseOffset } of matrices) {
    assert.deepEqual(findTensor(base, name), {
      name,
      shape: [rows, cols],
      offset: baseOffset,
      size: rows * cols,
    });
    const module = name.replace(".weight", "");
    assert.equal(findTensor(adapters, `${module}.lora_A.weight`)!.offset, aOffset);
    assert.equal(findTensor(adapters, `${module}.lora_B.weight`)!.offset, bOffset);
  }
});

Deno.test("lora: merging adds alpha over rank times the product, and leaves all else alone", () => {
  const stage = wholeModel(spec);
  const base = Float32Array.from({ length: stageLayout(baseSpec(spec), stage).size }, (_, i) => i % 7 - 3);
  const adapters = Float32Array.from({ length: stageLayout(spec, stage).size }, (_, i) => (i % 5 - 2) / 4);
  const merged = mergeLora(spec, stage, { base, adapters });
  const expected = Float64Array.from(base);
  for (const { rows, cols, aOffset, bOffset, baseOffset } of loraTargets(spec, stage)) {
    for (let at = 0; at < rows * cols; at++) {
      for (let r = 0; r < 4; r++) {
        const [row, col] = [Math.floor(at / cols), at % cols];
        expected[baseOffset + at]! += 6 / 4 * adapters[bOffset + row * 4 + r]! *
          adapters[aOffset + r * cols + col]!;
      }
    }
  }
  // Sums of multiples of 3/32 are exact.
  assert.deepEqual(merged, Float32Array.from(expected));
  assert.notDeepEqual(merged, base);
  assert.equal(mergeLora(spec, stage, { base, adapters, out: base }), base);
  assert.deepEqual(base, merged);
});

Deno.test("lora: A begins uniform within one over the root of its width, B at zero, whatever the cut", () => {
  const whole = initParams(spec, wholeModel(spec), 7);
  const layout = stageLayout(spec, wholeModel(spec));
  for (const { name, shape, offset, size } of layout.tensors) {
    const values = whole.subarray(offset, offset + size);
    if (name.endsWith("lora_B.weight")) assert.ok(values.every((value) => value === 0), name);
    else {
      const bound = 1 / Math.sqrt(shape[1]!);
      assert.ok(values.every((value) => Math.abs(value) <= bound), name);
      assert.ok(Math.max(...values) > 0.9 * bound && Math.min(...values) < -0.9 * bound, name);
      assert.ok(Math.abs(values.reduce((a, b) => a + b) / size) < 0.2 * bound, name);
    }
  }
  const [, second] = splitLayers(spec, [1, 2]);
  const own = initParams(spec, second!, 7);
  for (const { name, offset, size } of stageLayout(spec, second!).tensors) {
    const from = findTensor(layout, name)!.offset;
    assert.deepEqual(own.subarray(offset, offset + size), whole.subarray(from, from + size), name);
  }
});

Deno.test("lora: a configuration names matrices that there are, and a rank that they can have", () => {
  const refused = (more: Record<string, unknown>, wanted: RegExp) =>
    assert.throws(
      () => readConfig({ ...SMALL, lora_rank: 2, ...more }),
      (error) => error instanceof ShoalError && error.code === "bad-config" && wanted.test(error.message),
      JSON.stringify(more),
    );
  refused({ lora_targets: "q_proj,qq" }, /lora_targets is "q_proj,qq"; use names of q_proj, /);
  refused({ lora_targets: "q_proj,q_proj" }, /each once/);
  refused({ lora_targets: "" }, /lora_targets/);
  refused({ lora_rank: -1 }, /lora_rank is -1/);
  refused({ lora_rank: 9 }, /lora_rank 9 exceeds 8/);
  refused({ lora_base: "abc" }, /lora_base is "abc"; use a SHA-256/);
  refused({ architecture: "gpt2", n_kv_head: 4, lora_targets: "gate_proj" }, /gate_proj, which a GPT-2/);
  assert.equal(readConfig({ ...SMALL, lora_rank: 16, lora_targets: "q_proj,down_proj" }).lora_rank, 16);
  // Without adapters the other keys mean nothing.
  assert.equal(specOf(readConfig({ ...SMALL, lora_targets: "gate_proj" }), 5).lora, undefined);
  // Configurations of older files lack the keys.
  const { lora_rank: _, ...older } = readConfig(SMALL);
  assert.equal(specOf(older as typeof config, 5).lora, undefined);
});

Deno.test("lora: beside the engine the exact state is the adapters', and so is the gradient that is read back, once more as the engine stacks it", () => {
  const [, stage] = splitLayers(spec, [1, 1, 1]);
  const raw = { ...config, reduce: "raw32" as const };
  const bytes = (of: typeof spec) => {
    const codecs = { codecForward: "raw32" as const, codecBackward: "raw32" as const };
    return stateBytes({ spec: of, stage: stage!, batchSize: 1, slots: 1, ...codecs }, raw);
  };
  const [trained, dense] = [stageLayout(spec, stage!).size, stageLayout(baseSpec(spec), stage!).size];
  const codecs = { codecForward: "raw32", codecBackward: "raw32" } as const;
  const stack = adapterStack(besideBase({ spec, stage: stage!, batchSize: 1, slots: 1, ...codecs }))!;
  // 24 bytes of state and sums, 8 logged totals of 4, and the gradient; the boundary tensors are the same.
  assert.equal(bytes(spec) - bytes(baseSpec(spec)), 60 * (trained - dense) + 4 * stack.floats);
});
