// A view holds what the plan says, in the form that peers execute.
import assert from "node:assert/strict";
import { progressFromView } from "../../peer/schedule/executor.ts";
import { codecsAfter } from "../../peer/wire/view.ts";
import { equalPeers } from "../../test/support/swarm_requests.ts";
import { plan as planFor } from "./planner.ts";
import type { PlannedStage } from "./planner_types.ts";
import { viewOf } from "./planner_view.ts";

const CODECS = { forward: "i8b64", backward: "f16s" } as const;

Deno.test("stages, shares, shadows and caps are the plan's, and peers can start from them", () => {
  const request = equalPeers([3, 3, 3], { gradient_accumulation_steps: 8, shadows: true });
  const plan = planFor(request);
  assert.ok(plan.kind === "plan");
  const view = viewOf(plan, { gen: 7, baseStep: 12, codecs: CODECS });
  assert.deepEqual([view.gen, view.cut, view.baseStep, view.schedule], [7, 7, 12, plan.schedule]);
  for (const [s, stage] of view.stages.entries()) {
    const planned: PlannedStage = plan.stages[s]!;
    assert.equal(stage.recompute ?? "none", planned.recompute);
    assert.deepEqual(
      stage.replicas.map(({ peer, microBatches }) => [peer, microBatches.length]),
      [
        ...planned.replicas.map(({ peer, microBatches }) => [peer, microBatches.length]),
        ...planned.shadows.map((peer) => [peer, 0]),
      ],
    );
    for (const { peer, microBatches } of stage.replicas) {
      assert.equal(progressFromView(view, s, peer).cells.length, microBatches.length);
    }
  }
});

Deno.test("a view names the run's codecs, and each boundary's where one has others", () => {
  const plan = planFor(equalPeers([5]));
  assert.ok(plan.kind === "plan");
  const options = { gen: 1, cut: 1, baseStep: 0, codecs: CODECS };
  assert.deepEqual(codecsOf(viewOf(plan, options)), ["i8b64", "f16s", undefined]);
  const plain = { ...plan, codecs: [CODECS, CODECS] };
  assert.deepEqual(codecsOf(viewOf(plain, options)), ["i8b64", "f16s", undefined]);
  const codecs = [{ forward: "f16s", backward: "raw32" }, { forward: "i8b64", backward: "f16s" }] as const;
  const mixed = viewOf({ ...plan, codecs: [...codecs] }, options);
  assert.deepEqual(codecsOf(mixed), ["i8b64", "f16s", codecs]);
  assert.deepEqual([0, 1].map((boundary) => codecsAfter(mixed, boundary)), codecs);
});

function codecsOf({ codecForward, codecBackward, codecs }: ReturnType<typeof viewOf>) {
  return [codecForward, codecBackward, codecs];
}
