// The newest micro-batches out of moving averages: exactly what went into them since, and nothing that was used before.
import assert from "node:assert/strict";
import fc from "fast-check";
import { AVERAGE_WEIGHT as OF_PEERS, OpMeter } from "../../peer/op_meter.ts";
import { HEARTBEAT, RunHarness } from "../../test/support/run_harness.ts";
import { AVERAGE_WEIGHT, freshSeconds } from "./step_times.ts";

function tell(run: RunHarness, peer: string, of: { microBatches: number; ms: number; cut?: number }): void {
  const { microBatches, ms, cut = run.cut } = of;
  const third = ms / 3;
  const times = { forwardMs: third, backwardMs: third, weightGradMs: third, waitMs: 0 };
  run.say(peer, { ...HEARTBEAT, ops: [{ cut, stage: peer === "a" ? 0 : 1, microBatches, ...times }] });
}

function near(actual: Record<string, number> | null, expected: Record<string, number>): void {
  assert.ok(actual !== null, "somebody is waited for");
  for (const [peer, seconds] of Object.entries(expected)) {
    assert.ok(Math.abs(actual[peer]! - seconds) < 1e-9, `${peer}: ${actual[peer]}, not ${seconds}`);
  }
}

Deno.test("step times: everybody has to have told of new micro-batches, and nothing counts twice", () => {
  const run = RunHarness.training(["a", "b"], { n_stage: 2 });
  assert.equal(freshSeconds(run.state), null);
  tell(run, "a", { microBatches: 4, ms: 30 });
  assert.equal(freshSeconds(run.state), null, "b has said nothing");
  tell(run, "b", { microBatches: 4, ms: 60 });
  near(freshSeconds(run.state), { a: 0.03, b: 0.06 });
  assert.equal(freshSeconds(run.state), null, "the same figures again");
  tell(run, "a", { microBatches: 6, ms: 30 });
  assert.equal(freshSeconds(run.state), null, "half of the figures are old");
  tell(run, "b", { microBatches: 5, ms: 60 });
  near(freshSeconds(run.state), { a: 0.03, b: 0.06 });
});

Deno.test("step times: figures of another cut are none", () => {
  const run = RunHarness.training(["a", "b"], { n_stage: 2 });
  tell(run, "a", { microBatches: 4, ms: 30, cut: run.cut + 1 });
  tell(run, "b", { microBatches: 4, ms: 60 });
  assert.equal(freshSeconds(run.state), null);
});

Deno.test("step times: the mean of the newest comes out of the average that a peer's meter made of them", () => {
  assert.equal(AVERAGE_WEIGHT, OF_PEERS);
  const counts = fc.array(fc.integer({ min: 1, max: 12 }), { minLength: 2, maxLength: 6 });
  const property = fc.property(counts, fc.double({ min: 0.5, max: 80, noNaN: true }), (steps, first) => {
    const run = RunHarness.training(["a"], { n_stage: 1 });
    const meter = new OpMeter();
    // The first micro-batch builds kernels and is no figure.
    steps[0]!++;
    let ms = first;
    for (const count of steps) {
      meter.opened({ gen: 1, step: 0, traced: false }, 0);
      for (let m = 0; m < count; m++) {
        for (const kind of ["F", "B", "W"] as const) {
          const job = { job: "op", pass: "train", kind, cut: run.cut, gen: 1, stage: 0, step: 0 } as const;
          const at = { due: 0, begun: 0, ended: ms, stretch: 1 };
          meter.ran({ ...job, microBatch: m, slot: 0 }, at);
        }
      }
      run.say("a", { ...HEARTBEAT, ops: meter.times(run.cut) });
      const found = freshSeconds(run.state)!;
      assert.ok(Math.abs(found["a"]! - 3 * ms / 1000) < 1e-6 * ms, `${found["a"]} s for ${3 * ms} ms`);
      ms *= 1.5;
    }
  });
  fc.assert(property, { seed: 12, numRuns: 60 });
});
