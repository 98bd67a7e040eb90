// Where a peer without a stage is put: where two holders are wanted and there is one, then where a step gets shorter, else nowhere.
import assert from "node:assert/strict";
import { RunHarness } from "../../test/support/run_harness.ts";
import { helpedMost } from "./newcomer.ts";

/** Stage 0 on a, stage 1 on b, 8 micro-batches; c is there too. */
function withSpare(
  blockMs: { a: number; b: number; c: number },
  changes: Record<string, unknown> = {},
): RunHarness {
  const run = new RunHarness({
    ...{ n_layer: 4, n_stage: 2, gradient_accumulation_steps: 8, min_peers: 2, ...changes },
  });
  for (const peer of ["a", "b"] as const) run.join(peer, { blockMs: blockMs[peer] });
  run.ready();
  run.join("c", { blockMs: blockMs.c });
  return run;
}

function chosen({ state }: RunHarness, roomy?: number[]): number | null {
  const { stages } = state.view!;
  const peer = state.peers["c"]!;
  return helpedMost(state, stages, {
    peer,
    roomy: stages.filter(({ index }) => roomy?.includes(index) ?? true),
  });
}

/** The stage of the peer that takes longest for what it has. */
function slowest({ state }: RunHarness): number {
  const cost = ({ firstLayer, endLayer, replicas }: NonNullable<typeof state.view>["stages"][number]) =>
    (endLayer - firstLayer) * state.peers[replicas[0]!.peer]!.blockMs;
  return state.view!.stages.toSorted((x, y) => cost(y) - cost(x))[0]!.index;
}

Deno.test("newcomer: it goes to the stage that holds the others up, if there is room", () => {
  for (const [a, b] of [[10, 70], [70, 10], [40, 45]] as const) {
    const run = withSpare({ a, b, c: 30 });
    assert.equal(chosen(run), slowest(run));
  }
  const run = withSpare({ a: 10, b: 70, c: 30 });
  assert.equal(chosen(run, [1 - slowest(run)]), null, "the other stage is no faster with it");
});

Deno.test("newcomer: who is too slow to shorten a step stays a spare", () => {
  assert.equal(chosen(withSpare({ a: 10, b: 10, c: 900 })), null);
});

Deno.test("newcomer: a stage with one holder comes first where two are wanted, whatever that costs", () => {
  const run = withSpare({ a: 10, b: 10, c: 900 });
  run.state.config = { ...run.state.config, shadows: true };
  assert.notEqual(chosen(run), null);
});

Deno.test("newcomer: with an order of its own the view decides nothing by speed", () => {
  const run = withSpare({ a: 10, b: 10, c: 900 });
  run.state.view = { ...run.state.view!, schedule: "1f1b" };
  assert.notEqual(chosen(run), null);
});
