// Steps that follow one another without a pause: the bottleneck's work, and nothing else where enough is in flight.
import assert from "node:assert/strict";
import fc from "fast-check";
import { simulatePipeline, singleReplicas } from "./dynamic.ts";
import { steadySeconds } from "./steady.ts";

const NO_NETWORK = { latency: 0, transfer: 0, mode: "duplex" as const };

Deno.test("steady: a step is N micro-batches of the slowest stage, without latency", () => {
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 5 }), fc.integer({ min: 0, max: 6 }), (P, more) => {
      const N = P + more;
      const slow = (stage: number) => stage === P - 1 ? 2 : 1;
      const costs = { seconds: { F: slow, B: slow, W: slow }, network: NO_NETWORK };
      const stages = singleReplicas(N, Array(P).fill(P + 2));
      assert.ok(Math.abs(steadySeconds(stages, costs) - 6 * N) < 1e-9, `P ${P}, N ${N}`);
    }),
    { seed: 7, numRuns: 40 },
  );
});

Deno.test("steady: latency that the micro-batches in flight cover costs nothing, and more costs less than in one step", () => {
  const network = { ...NO_NETWORK, latency: 2 };
  const costs = { seconds: { F: 1, B: 1, W: 1 }, network };
  const covered = singleReplicas(16, Array(4).fill(12));
  assert.ok(Math.abs(steadySeconds(covered, costs) - 48) < 1e-9);
  const short = singleReplicas(4, Array(4).fill(4));
  const steady = steadySeconds(short, costs);
  const alone = simulatePipeline("dynamic", short, costs).makespan;
  assert.ok(steady > 12 && steady < 0.8 * alone, `${steady} of ${alone}`);
});
