// Questions about a view: what would be missing without one peer, as far as the plan tells.
import assert from "node:assert/strict";
import type { ReplicaPlan, StagePlan, View } from "./run.ts";
import { heldOnlyBy } from "./view.ts";

function view(...replicas: ReplicaPlan[][]): View {
  const stages = replicas.map((own, index): StagePlan => ({
    ...{
      index,
      firstLayer: index * 2,
      endLayer: index * 2 + 2,
      embed: index === 0,
      head: false,
      inflight: 1,
    },
    replicas: own,
  }));
  const codecs = { codecForward: "raw32", codecBackward: "raw32" } as const;
  return { gen: 1, cut: 1, baseStep: 0, stages, schedule: "dynamic", ...codecs };
}

function holder(peer: string, microBatches: number[] = [], learning?: true): ReplicaPlan {
  return { peer, microBatches, ...(learning ? { learning } : {}) };
}

Deno.test("view: layers are held alone unless somebody else has their state; a learner has not", () => {
  const plan = view(
    [holder("a", [0, 1]), holder("b")],
    [holder("a"), holder("c", [0, 1])],
    [holder("a", [0]), holder("b", [1])],
    [holder("a", [0, 1]), holder("c", [], true)],
    [holder("c", [0, 1])],
  );
  assert.deepEqual(heldOnlyBy(plan, "a"), [[6, 8]]);
  assert.deepEqual(heldOnlyBy(plan, "b"), []);
  assert.deepEqual(heldOnlyBy(plan, "c"), [[8, 10]], "what it is still fetching is not held");
});
