// What is said to be at risk when peers keep a snapshot: a departure may take a stage and the snapshot's last copy of another
// stage at once. The numbers are worked out by hand.
import assert from "node:assert/strict";
import { RunHarness } from "../../test/support/run_harness.ts";
import { stepsAtRisk, stepsAtRiskWith } from "./safety.ts";
import type { KeptStage } from "./snapshot_state.ts";

/** Two stages on one peer each, three steps done, and a snapshot of the second step that peers keep. */
function withSnapshot(stages: Partial<KeptStage>[]): RunHarness {
  const run = RunHarness.training(["a", "b"], { n_stage: 2 });
  for (let step = 0; step < 3; step++) run.commit();
  const kept = run.state.view!.stages.map((stage, i): KeptStage => ({
    ...{ stage, protection: "copy", k: 1, from: "a", keepers: [], owners: [], hash: "h", file: null },
    ...stages[i],
  }));
  run.state.kept.current = { step: 2, cut: run.cut, at: 0, bytes: 0, spared: 0, stages: kept };
  return run;
}

function keptBy(peer: string): Pick<KeptStage, "keepers"> {
  return { keepers: [{ peer, index: 0, kept: true }] };
}

Deno.test("safety: a snapshot that others keep is what a lone holder's loss goes back to", () => {
  const run = withSnapshot([keptBy("b"), keptBy("c")]);
  assert.deepEqual([stepsAtRiskWith(run.state, "a"), stepsAtRisk(run.state)], [1, 3]);
});

Deno.test("safety: who keeps the only shard of another stage takes the whole snapshot with it", () => {
  const run = withSnapshot([keptBy("b"), keptBy("a")]);
  assert.deepEqual([stepsAtRiskWith(run.state, "a"), stepsAtRiskWith(run.state, "b")], [3, 3]);
});

Deno.test("safety: an own copy elsewhere is as good as a shard", () => {
  const run = withSnapshot([{ ...keptBy("b"), owners: ["c"] }, { ...keptBy("a"), owners: ["c"] }]);
  assert.equal(stepsAtRisk(run.state), 1);
  run.state.kept.current!.stages[1]!.owners = ["a"];
  assert.deepEqual([stepsAtRiskWith(run.state, "a"), stepsAtRiskWith(run.state, "b")], [3, 1]);
});
