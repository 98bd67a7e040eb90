// The local search with the simulator as judge, where nothing but the way of running a stage is left to choose.
import assert from "node:assert/strict";
import { drawSwarm } from "../../test/support/swarm_requests.ts";
import { CostModel } from "./planner_model.ts";
import { judged, refine } from "./planner_refine.ts";
import { searchLayouts } from "./planner_search.ts";

Deno.test("whether a stage recomputes is for the simulator to say: either way may be the faster one", () => {
  const seen = { more: 0, less: 0 };
  for (const [seed, n_stage] of [[7, 3], [5, 2], [18, 3], [34, 3]] as const) {
    const config = { n_layer: 8, gradient_accumulation_steps: 16, n_stage };
    const peers = { 7: 3, 5: 2, 18: 4, 34: 5 }[seed];
    const model = new CostModel(drawSwarm({ peers, seed, memory: [0.2, 0.7], config }));
    const [layout] = searchLayouts(model, { most: n_stage, exactly: true });
    const start = judged(model, layout!, "dynamic", { left: 1e6 });
    const better = refine(model, start, { budget: { left: 1e6 }, moves: () => [] });
    assert.ok(better.prediction.seconds < 0.97 * start.prediction.seconds, `seed ${seed}`);
    const [before, after] = [start, better].map(({ candidate }) => candidate.cost.options);
    better.prediction.stages.forEach(({ recompute, stage }, s) => {
      assert.equal(recompute, stage.options[after![s]!]!.recompute);
      seen.more += Number(after![s]! > before![s]!);
      seen.less += Number(after![s]! < before![s]!);
    });
    assert.deepEqual(better.candidate.spares, start.candidate.spares);
  }
  assert.ok(seen.more > 0 && seen.less > 0, JSON.stringify(seen));
});

Deno.test("no budget, no change", () => {
  const model = new CostModel(drawSwarm({ peers: 3, seed: 7, config: { n_layer: 8, n_stage: 3 } }));
  const start = judged(model, searchLayouts(model, { most: 3, exactly: true })[0]!, "dynamic", { left: 0 });
  assert.equal(refine(model, start, { budget: { left: 0 } }), start);
});
