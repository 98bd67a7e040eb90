// The small sums of the cost model: shares, memory by slots, the engine that counts, the head's weight.
import assert from "node:assert/strict";
import { readConfig } from "../../peer/model/config.ts";
import { specOf } from "../../peer/model/layout.ts";
import { holderBytes } from "../../peer/model/stage_memory.ts";
import { bestShares, bytesBySlots, fastest, headWork } from "./planner_shares.ts";

Deno.test("shares follow speed, and nobody waits for a share that is one too many", () => {
  assert.deepEqual(bestShares([1, 1, 2], 10), [4, 4, 2]);
  assert.deepEqual(bestShares([1, 3, 1], 18), [8, 2, 8]);
  assert.deepEqual(bestShares([1, 100], 4), [4, 0]);
  assert.deepEqual(bestShares([0.1, 0.1, 0.1], 3), [1, 1, 1]);
});

Deno.test("three answers stand for all slots of a holder's memory, as the engine predicts it", () => {
  const config = readConfig({ n_layer: 3, gradient_accumulation_steps: 9 });
  const spec = specOf(config, 83);
  const stage = { index: 0, firstLayer: 1, endLayer: 3, embed: false, head: true };
  for (const recompute of ["none", "attention", "block"] as const) {
    for (const kind of ["wgsl", "cpu"] as const) {
      let asked = 0;
      const exact = (slots: number) => holderBytes(stage, { slots, recompute }, { spec, config, kind });
      const bytes = bytesBySlots((slots) => (asked++, exact(slots)), 9);
      for (let slots = 1; slots <= 9; slots++) assert.equal(bytes(slots), exact(slots));
      assert.equal(asked, 3);
    }
  }
});

Deno.test("memory that is no line is asked for, once for each number of slots", () => {
  let asked = 0;
  const bytes = bytesBySlots((slots) => (asked++, slots ** 2), 8);
  assert.deepEqual([bytes(5), bytes(5), bytes(8)], [25, 25, 64]);
  assert.equal(asked, 5);
  assert.equal(bytesBySlots(() => 7, 1)(1), 7);
});

Deno.test("the fastest engine counts, its fixed cost included; one without a measurement does not", () => {
  const speeds = [
    { engine: "a", forward: 1, backward: 1, weightGrad: 1, overhead: 1 },
    { engine: "b", forward: 1.5, backward: 1.5, weightGrad: 1.5 },
    { engine: "c", forward: 0, backward: 0, weightGrad: 0 },
  ];
  assert.equal(fastest("p", speeds).engine, "b");
  assert.throws(() => fastest("p", speeds.slice(2)), /peer p has no engine with a measured speed/);
});

Deno.test("the head of a large vocabulary weighs several layers", () => {
  const config = readConfig({ n_embd: 64, n_head: 4 });
  const [small, large] = [83, 8300].map((vocab) => headWork(specOf(config, vocab)));
  assert.ok(small! < 0.2);
  assert.ok(Math.abs(large! / small! - 100) < 1e-9);
});
