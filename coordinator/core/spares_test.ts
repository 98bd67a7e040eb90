// Who was believed slow and left out gets another try, and a later one each time that it was slow after all.
import assert from "node:assert/strict";
import { RunHarness } from "../../test/support/run_harness.ts";
import { FORGIVEN_MS, forgiveSpares } from "./spares.ts";

Deno.test("spares: slowness is forgotten after ten minutes without work, then after twenty, and never while a peer computes", () => {
  const { state } = RunHarness.training(["a", "b"], {
    n_stage: 1,
    shadows: false,
    gradient_accumulation_steps: 1,
  });
  const [a, b] = [state.peers["a"]!, state.peers["b"]!];
  const computing = state.view!.stages[0]!.replicas.find(({ microBatches }) => microBatches.length > 0)!.peer;
  const [busy, idle] = computing === "a" ? [a, b] : [b, a];
  Object.assign(busy, { slowdown: 3 });
  Object.assign(idle, { slowdown: 3 });
  let now = 1000;
  const after = (ms: number) => forgiveSpares(state, now += ms);
  assert.deepEqual([after(0), after(FORGIVEN_MS - 1), after(1)], [[], [], [idle.id]]);
  assert.deepEqual([idle.slowdown, busy.slowdown], [undefined, 3]);
  assert.deepEqual(after(10 * FORGIVEN_MS), [], "nothing is held against it");
  idle.slowdown = 2;
  assert.deepEqual([after(0), after(2 * FORGIVEN_MS - 1), after(1)], [[], [], [idle.id]]);
  // Time in which it had work does not count.
  idle.slowdown = 2;
  const share = state.view!.stages[0]!.replicas;
  after(0);
  state.view!.stages[0]!.replicas = [{ peer: idle.id, microBatches: [0] }];
  after(FORGIVEN_MS);
  state.view!.stages[0]!.replicas = share;
  assert.deepEqual([after(0), after(4 * FORGIVEN_MS - 1), after(1)], [[], [], [idle.id]]);
});
