// Stacked adapters: every value has its place, what no part fills is zero, and a gradient comes back from the same places.
import assert from "node:assert/strict";
import type { StageBuild } from "../engine/engine.ts";
import { LORA_TARGETS, type ModelSpec } from "../wire/run.ts";
import { stageLayout } from "./layout.ts";
import { besideBase } from "./lora.ts";
import { adapterStack, halvesFactors, stackAdapters, unstackGradient } from "./lora_groups.ts";

const spec: ModelSpec = {
  ...{ vocab_size: 7, block_size: 5, n_layer: 3, n_head: 4, n_kv_head: 2, n_embd: 8, n_inner: 6 },
  ...{ tie_word_embeddings: true, rope_theta: 10000, norm_eps: 1e-5 },
  lora: { rank: 3, alpha: 6, targets: ["k_proj", "v_proj", "up_proj"] },
};
const stage = { index: 1, firstLayer: 1, endLayer: 3, embed: false, head: false };

function buildOf(of: ModelSpec): StageBuild {
  return { spec: of, stage, batchSize: 1, slots: 1, codecForward: "raw32", codecBackward: "raw32" };
}

function numbered(size: number): Float32Array {
  return Float32Array.from({ length: size }, (_, i) => i + 1);
}

Deno.test("lora groups: a group is as wide as the matrix it belongs to, and holds the ranks of its parts in whole fours", () => {
  const stack = adapterStack(besideBase(buildOf(spec)))!;
  assert.deepEqual(
    stack.groups.map(({ kind, layer, rows, cols, ranks }) => [kind, layer, rows, cols, ranks]),
    [["qkv", 0, 16, 8, 8], ["gateUp", 0, 12, 8, 4], ["qkv", 1, 16, 8, 8], ["gateUp", 1, 12, 8, 4]],
  );
  const [qkv, gateUp] = stack.groups;
  assert.deepEqual(qkv!.parts.map(({ firstRow, firstRank }) => [firstRow, firstRank]), [[8, 0], [12, 3]]);
  assert.deepEqual(gateUp!.parts.map(({ firstRow, firstRank }) => [firstRow, firstRank]), [[6, 0]]);
  assert.equal(stack.floats, 2 * stack.layerFloats);
  assert.equal(adapterStack(buildOf(spec)), undefined);
});

Deno.test("lora groups: a GPT-2 has no gate before its inner matrix", () => {
  const targets = LORA_TARGETS.filter((target) => target !== "gate_proj");
  const gpt2: ModelSpec = {
    ...spec,
    architecture: "gpt2",
    n_kv_head: 4,
    lora: { rank: 4, alpha: 4, targets },
  };
  const { groups } = adapterStack(besideBase(buildOf(gpt2)))!;
  assert.deepEqual(groups.slice(0, 4).map(({ rows, cols, ranks }) => [rows, cols, ranks]), [
    ...[[24, 8, 12], [8, 8, 4], [6, 8, 4], [8, 6, 4]],
  ]);
});

Deno.test("lora groups: values are stacked where the products read them, and a gradient comes back times the scale", () => {
  const stack = adapterStack(besideBase(buildOf(spec)))!;
  const adapters = numbered(stageLayout(spec, stage).size);
  const factors = [2, 4, 8, 16];
  const stacked = stackAdapters(stack, adapters, factors);
  const filled = new Set<number>();
  for (const [g, { parts, rows, cols, aAt, bAt }] of stack.groups.entries()) {
    for (const { aOffset, bOffset, firstRank, firstRow, rows: own } of parts) {
      for (let r = 0; r < 3; r++) {
        for (let i = 0; i < cols; i++) {
          const at = aAt + (firstRank + r) * cols + i;
          assert.equal(stacked[at], adapters[aOffset + r * cols + i]);
          filled.add(at);
        }
        for (let row = 0; row < own; row++) {
          const at = bAt + (firstRank + r) * rows + firstRow + row;
          assert.equal(stacked[at], factors[g]! * adapters[bOffset + row * 3 + r]!);
          filled.add(at);
        }
      }
    }
  }
  assert.ok(stacked.every((value, i) => filled.has(i) === (value !== 0)));
  // Between their places, and in an array's padding, nothing is read.
  const noisy = stacked.map((value) => value === 0 ? NaN : value);
  const back = unstackGradient(stack, noisy, factors);
  const scale = 6 / 3;
  for (const [g, { parts, cols }] of stack.groups.entries()) {
    for (const { aOffset, bOffset, rows } of parts) {
      for (let i = 0; i < 3 * cols; i++) {
        assert.equal(back[aOffset + i], scale / factors[g]! * adapters[aOffset + i]!);
      }
      for (let i = 0; i < 3 * rows; i++) {
        assert.equal(back[bOffset + i], scale * factors[g]! * adapters[bOffset + i]!);
      }
    }
  }
});

Deno.test("lora groups: in halves B becomes as large as a weight, by a power of two", () => {
  const stack = adapterStack(besideBase(buildOf(spec)))!;
  const adapters = numbered(stageLayout(spec, stage).size);
  const [first, second] = stack.groups;
  for (const { bOffset, rows } of first!.parts) adapters.fill(0, bOffset, bOffset + 3 * rows);
  for (const { bOffset, rows } of second!.parts) adapters.fill(-(2 ** -20), bOffset, bOffset + 3 * rows);
  const factors = halvesFactors(stack, adapters);
  assert.deepEqual(factors.slice(0, 2), [1, 2 ** 16]);
  assert.ok(factors.every((factor) => Number.isInteger(Math.log2(factor))));
});
