// What a view is predicted to take where steps overlap: by the times that were measured in the very stages, else by a peer's layers.
import assert from "node:assert/strict";
import { RunHarness } from "../../test/support/run_harness.ts";
import type { View } from "../../peer/wire/run.ts";
import { predictSteady, steadyOf } from "./predict_step.ts";

Deno.test("predict: times that were measured in a stage count for its layers, run in the same way, and for no others", () => {
  const shape = { n_layer: 4, n_stage: 2, gradient_accumulation_steps: 4, schedule: "2bw" };
  const { state } = RunHarness.training(["a", "b"], shape);
  for (const peer of Object.values(state.peers)) peer.opMs = { forward: 2, backward: 2, weightGrad: 2 };
  const view = state.view!;
  const boundary = view.stages[0]!.endLayer;
  const [first, last] = view.stages as [View["stages"][0], View["stages"][0]];
  const moved: View = {
    ...view,
    stages: [{ ...first, endLayer: boundary + 1 }, { ...last, firstLayer: boundary + 1 }],
  };
  const lean: View = { ...view, stages: view.stages.map((stage) => ({ ...stage, recompute: "block" })) };
  const seconds = () => [view, moved, lean].map((it) => steadyOf(state, it)!.seconds);
  const [before, ...others] = seconds();
  assert.equal(predictSteady(state)!.seconds, before);
  assert.ok(others[1]! > before!, "what is computed again takes time");
  for (const { index, replicas } of view.stages) {
    const peer = state.peers[replicas.find(({ microBatches }) => microBatches.length > 0)!.peer]!;
    const times = { forwardMs: 50, backwardMs: 50, weightGradMs: 50, waitMs: 0 };
    peer.ops = [{ cut: view.cut, stage: index, microBatches: 4, ...times }];
  }
  const [after, ...same] = seconds();
  assert.ok(after! > 5 * before!, `${after} s, before ${before} s`);
  assert.deepEqual(same, others);
});
