// What a slot keeps of a block in each mode of recomputation, by name: the bytes are checked where they are allocated.
import assert from "node:assert/strict";
import type { RecomputeId, StageSpec } from "../wire/run.ts";
import { blockTensor, qkvGradient, sharedBlockTensors, slotBlockTensors } from "./block_tensors.ts";
import { dimsOf, type StageDims } from "./stage_tensors.ts";

const spec = {
  ...{ vocab_size: 11, block_size: 40, n_layer: 2, n_head: 2, n_kv_head: 1, n_embd: 8, n_inner: 12 },
  ...{ tie_word_embeddings: false, rope_theta: 10_000, norm_eps: 1e-5 },
};

function dims(recompute: RecomputeId, ends: { embed: boolean; head: boolean }): StageDims {
  const stage: StageSpec = { index: 0, firstLayer: 0, endLayer: 2, ...ends };
  const codecs = { codecForward: "raw32", codecBackward: "raw32" } as const;
  return dimsOf({ spec, stage, batchSize: 1, slots: 1, ...codecs, recompute });
}

/** Names without the slot, such as "x 0". */
function kept(recompute: RecomputeId, ends: { embed: boolean; head: boolean }): string[] {
  return slotBlockTensors(dims(recompute, ends), 3).map(({ name }) => name.replace("slot 3/", "")).sort();
}

const whole = { embed: true, head: true };
const middle = { embed: false, head: false };

Deno.test("a slot keeps less the more is computed again, and nothing that only leaves the stage", () => {
  assert.deepEqual(kept("block", middle), ["x 0", "x 1"]);
  assert.deepEqual(kept("block", whole), ["x 0", "x 1", "x 2"]);
  const attention = ["gate up", "middle", "mlp rstd", "x"].flatMap((name) => [`${name} 0`, `${name} 1`]);
  assert.deepEqual(kept("attention", middle), attention);
  const plain = kept("none", middle);
  assert.ok(!plain.includes("x 2") && !plain.includes("dx 0"));
  assert.ok(plain.includes("dx 2") && plain.includes("qkv 2") && plain.includes("act 1"));
  assert.deepEqual(kept("none", whole).filter((name) => !plain.includes(name)), ["dx 0", "x 2"]);
});

Deno.test("every tensor that a plan may name is listed once, in the slot or shared", () => {
  for (const recompute of ["none", "attention", "block"] as const) {
    for (const ends of [whole, middle]) {
      const p = dims(recompute, ends);
      const names = [...slotBlockTensors(p, 0), ...sharedBlockTensors(p)].map(({ name }) => name);
      assert.equal(new Set(names).size, names.length, recompute);
      const t = blockTensor(p, 0);
      const used = [t("x", 2), t("dx", 0), t("dx", 2), t("mlp partial", 1), t("act", 0)];
      for (const name of [...used, qkvGradient(p, 0, 1), blockTensor(p, "eval")("lse", 1)]) {
        assert.ok(names.includes(name), `${recompute}: ${name}`);
      }
    }
  }
});

Deno.test("the gradient of qkv takes the next layer's place, or the shared one", () => {
  assert.equal(qkvGradient(dims("none", whole), 0, 0), blockTensor(dims("none", whole), 0)("qkv", 1));
  assert.equal(qkvGradient(dims("block", whole), 0, 0), qkvGradient(dims("block", whole), 0, 1));
});
