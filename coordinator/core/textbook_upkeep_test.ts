// A placed schedule while peers come and go: shares stay as they are, a loss is told and made good from the mirror, and the layers
// are cut anew when, and only when, as many peers as compute can follow the schedule again.
import assert from "node:assert/strict";
import { RunHarness } from "../../test/support/run_harness.ts";
import { placedOf } from "../../peer/schedule/placed.ts";

const CHIMERA = { n_layer: 4, gradient_accumulation_steps: 4, schedule: "chimera" };
const ZB = { n_layer: 4, gradient_accumulation_steps: 3, schedule: "zb-h1", shadows: true };

function events(run: RunHarness): string[] {
  return run.state.events.filter((event) => event.kind === "schedule").map((event) => event.text);
}

function follows(run: RunHarness): boolean {
  return placedOf(run.state.view!) !== null;
}

Deno.test("upkeep: chimera is placed with a mirror for each peer, and no shadows", () => {
  const run = RunHarness.training(["a", "b", "c", "d"], { ...CHIMERA, shadows: true });
  assert.deepEqual(run.layout(), ["a:02 b:13", "c:02 d:13", "d:02 c:13", "b:02 a:13"]);
  assert.ok(follows(run));
});

Deno.test("upkeep: when a peer of chimera goes, its mirror takes over in the open step, without any snapshot", () => {
  const run = RunHarness.training(["a", "b", "c", "d"], CHIMERA);
  run.commit();
  run.gone("a");
  assert.deepEqual(run.layout(), ["b:0123", "c:02 d:13", "d:02 c:13", "b:0123"]);
  assert.equal(run.state.phase, "round");
  assert.equal(run.state.snapshots.length, 0);
  assert.deepEqual(events(run), ["chimera has lost its order: the dynamic one is followed for now"]);
  run.commit();
  assert.equal(run.state.committed, 2);
  assert.equal(run.state.stepsRedone, 0);
  assert.equal(run.state.phase, "round", "two peers of three would follow it: no reason for a new cut");
});

Deno.test("upkeep: the next peer to come brings the order back, from everything that is committed", () => {
  const run = RunHarness.training(["a", "b", "c", "d"], CHIMERA);
  run.gone("a");
  run.commit();
  const { cut } = run;
  run.join("e");
  run.commit();
  assert.equal(run.state.phase, "handover");
  run.store();
  run.ready();
  assert.ok(run.cut > cut && follows(run));
  assert.equal(run.state.committed, 2);
  assert.equal(run.state.stepsRedone, 0);
  assert.equal(run.members().length, 4);
  run.commit();
  assert.equal(run.state.phase, "round", "and that is all");
});

Deno.test("upkeep: layers are cut anew at the next boundary if all who are left can follow the schedule", () => {
  const run = RunHarness.training(["a", "b", "c", "d"], ZB);
  run.commit();
  run.gone("c");
  assert.ok(!follows(run));
  assert.equal(run.state.phase, "round", "the open step goes on");
  run.commit();
  assert.equal(run.state.phase, "handover");
  run.store();
  run.ready();
  assert.ok(follows(run));
  assert.equal(run.state.view!.stages.length, 3);
  const { cut } = run;
  run.commit();
  run.commit();
  assert.equal(run.cut, cut, "and that is all");
  assert.ok(follows(run));
});

Deno.test("upkeep: who pauses is let go of, and those who stay follow the schedule without them", () => {
  const run = RunHarness.training(["a", "b", "c", "d"], ZB);
  run.commit();
  run.say("b", { type: "pause", paused: true });
  run.commit();
  assert.ok(!follows(run) && !run.members().includes("b"));
  run.commit();
  run.store();
  run.ready();
  assert.deepEqual(run.members().toSorted(), ["a", "c", "d"]);
  assert.ok(follows(run));
});

Deno.test("upkeep: a spare learns a stage and gets no micro-batch, which would end the order", () => {
  const run = RunHarness.training(["a", "b", "c", "d", "e"], CHIMERA);
  assert.equal(run.members().length, 4);
  run.commit();
  run.feed({ type: "message", peer: "e", message: { type: "pause", paused: false } });
  run.commit();
  const stage = run.state.transfers[0]!.stage;
  run.learn("e", stage);
  run.commit();
  run.commit();
  assert.match(run.layout()[stage]!, / e$/);
  assert.ok(follows(run));
});

Deno.test("upkeep: where the schedule has no form, the dynamic order is followed, and said to be", () => {
  const run = RunHarness.training(["a", "b", "c"], { ...CHIMERA, gradient_accumulation_steps: 3 });
  assert.equal(run.state.view!.schedule, "dynamic");
  assert.deepEqual(events(run), [
    "the dynamic order is followed: chimera needs P even and N divisible by P, got P=2, N=3",
  ]);
});

Deno.test("upkeep: another schedule from a step on is a new cut of the same state", () => {
  const run = RunHarness.training(["a", "b", "c", "d"], { ...ZB, shadows: false });
  run.feed({ type: "admin", action: "change", step: 2, set: { schedule: "dynamic" } });
  run.commit();
  assert.equal(run.state.view!.schedule, "zb-h1");
  run.commit();
  assert.equal(run.state.phase, "handover");
  run.store();
  run.ready();
  assert.equal(run.state.view!.schedule, "dynamic");
  run.feed({ type: "admin", action: "change", step: 3, set: { schedule: "zb-v", n_stage: 0 } });
  run.commit();
  run.store();
  run.ready();
  assert.deepEqual(run.state.view!.stages.map((stage) => stage.replicas[0]!.peer), ["a", "b", "b", "a"]);
  assert.equal(run.state.committed, 3);
  assert.equal(run.state.stepsRedone, 0);
});
