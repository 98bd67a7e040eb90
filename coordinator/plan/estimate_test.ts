// The estimate for a form: it agrees with what the planner and the engine say of the same run, it is monotone where it must be, and
// it says in words why nothing fits.
import assert from "node:assert/strict";
import { readConfig } from "../../peer/model/config.ts";
import { paramCount, specOf, wholeModel } from "../../peer/model/layout.ts";
import { holderBytes } from "../../peer/model/stage_memory.ts";
import { estimate } from "./estimate.ts";

const AROUND = { tokens: 1_000_000, vocabulary: 80, offerBytes: 2e9, gflops: 100 };

function of(config: Record<string, unknown>, around: Partial<typeof AROUND> = {}) {
  return estimate({ config: readConfig(config), ...AROUND, ...around });
}

Deno.test("estimate: parameters, memory and checkpoints are those of the model", () => {
  const config = readConfig({ recompute: "none" });
  const spec = specOf(config, 80);
  const found = estimate({ config, ...AROUND });
  assert.equal(found.params, paramCount(spec));
  const whole = holderBytes(wholeModel(spec), { slots: 1, recompute: "none" }, {
    spec,
    config,
    kind: "wgsl",
  });
  assert.equal(found.wholeBytes, whole);
  assert.equal(found.tokensPerStep, 8 * 4 * 64);
  assert.ok(Math.abs(found.epochs - 300 * 2048 / 900_000) < 1e-9);
  assert.equal(found.checkpointBytes, 13 * found.params);
  assert.deepEqual([found.peersNeeded, found.stages.length], [1, 1]);
});

Deno.test("estimate: adapters are few and cost less memory, but the frozen model must fit and is computed with", () => {
  const wide = { n_layer: 12, n_head: 12, n_kv_head: 12, n_embd: 768, n_inner: 2048, block_size: 256 };
  const [whole, adapters] = [of(wide), of({ ...wide, lora_rank: 8 })];
  assert.equal(adapters.params, 12 * 2 * 8 * (768 + 768));
  assert.ok(adapters.checkpointBytes < whole.checkpointBytes / 200);
  assert.ok(adapters.wholeBytes < whole.wholeBytes);
  // Twice: what is merged, and what the engine holds.
  assert.ok(adapters.wholeBytes > 2 * 4 * whole.params);
  // The same products; only the sums that are exchanged are smaller.
  const one = { n_stage: 1, min_peers: 1 };
  const seconds = (more: Record<string, unknown>) => of({ ...one, ...more }, { gflops: 1 }).stepSeconds!;
  assert.ok(Math.abs(seconds({ lora_rank: 8 }) / seconds({}) - 1) < 0.01);
  assert.match(of({ ...wide, lora_rank: 8 }, { offerBytes: 1e8 }).reason, /does not fit/);
});

Deno.test("estimate: the smallest number of peers that fits, no stage larger than the offer, more peers for a smaller one", () => {
  const wide = { n_layer: 12, n_head: 12, n_kv_head: 12, n_embd: 768, n_inner: 2048, block_size: 256 };
  const found = of(wide);
  assert.ok(found.peersNeeded !== null && found.peersNeeded > 1);
  assert.equal(found.stages[0]!.firstLayer, 0);
  assert.equal(found.stages.at(-1)!.endLayer, 12);
  for (const { bytes } of found.stages) assert.ok(bytes <= 2e9, `${bytes}`);
  // One peer less than needed would hold less than everything, which the same figures must show.
  const fewer = of({ ...wide, n_stage: found.peersNeeded - 1 });
  assert.equal(fewer.peersNeeded, null);
  const smaller = of(wide, { offerBytes: 1.2e9 });
  assert.ok(smaller.peersNeeded !== null && smaller.peersNeeded > found.peersNeeded);
});

Deno.test("estimate: twice the speed is at most half the computing, and the steps add up with the evaluations", () => {
  const one = { max_iters: 100, eval_interval: 10, eval_iters: 8, gradient_accumulation_steps: 4 };
  const [slow, fast] = [of(one, { gflops: 1 }), of(one, { gflops: 2 })];
  assert.ok(fast.stepSeconds! < slow.stepSeconds! && fast.stepSeconds! > slow.stepSeconds! / 2 - 1e-9);
  // 100 steps, and 11 evaluations of 8 forwards, each a third of a micro-batch's work of which a step has 4.
  const passes = 100 + 11 * 8 / 4 / 3;
  assert.ok(Math.abs(slow.totalSeconds! / slow.stepSeconds! - passes) < 1e-9);
});

Deno.test("estimate: what fits nowhere is said in a sentence, without a time", () => {
  const found = of({
    n_layer: 48,
    n_head: 64,
    n_kv_head: 64,
    n_embd: 4096,
    n_inner: 11_008,
    block_size: 1024,
  });
  assert.equal(found.peersNeeded, null);
  assert.match(found.reason, /does not fit/);
  assert.deepEqual([found.stages, found.stepSeconds, found.totalSeconds], [[], null, null]);
  assert.equal(of({ min_peers: 5 }).peers, 5);
});
