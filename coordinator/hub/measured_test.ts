// What is supposed of a computer: the median of those that have measured themselves, the same for one computer whatever the run.
import assert from "node:assert/strict";
import { zeroCounters } from "../core/run_state.ts";
import { operationFlops } from "../plan/estimate.ts";
import { readConfig } from "../../peer/model/config.ts";
import { specOf } from "../../peer/model/layout.ts";
import { OFFER_BYTES_MIN } from "../../peer/wire/hub.ts";
import { measuredOffer, type MeasuredRun } from "./measured.ts";

/** A run whose peers have so many billions of operations a second; 0: it has not measured yet. */
function run(config: Record<string, unknown>, speeds: number[], memoryBytes = 2e9): MeasuredRun {
  const read = readConfig(config), spec = specOf(read, 80);
  const peers = speeds.map((gflops, i) => ({
    ...{
      id: `p${i}`,
      runtime: "tab" as const,
      adapter: "",
      engine: "wgsl",
      name: "",
      joinedAt: 0,
      heardAt: 0,
    },
    ...{ ...zeroCounters(), paused: false, leaving: false, hidden: false, memoryBytes },
    blockMs: gflops === 0 ? 0 : 3 * operationFlops(read, spec) / (gflops * 1e6),
  }));
  return { config: read, spec, peers: Object.fromEntries(peers.map((it) => [it.id, it])) };
}

Deno.test("measured: nothing is supposed while nobody has measured anything", () => {
  assert.equal(measuredOffer([]), null);
  assert.equal(measuredOffer([run({}, [0])]), null);
});

Deno.test("measured: the median over all runs, in figures that no run's shape changes", () => {
  const runs = [run({}, [100, 0]), run({ n_embd: 256, n_inner: 512, block_size: 32 }, [20, 5000, 40], 8e9)];
  assert.deepEqual(measuredOffer(runs), { peers: 4, gflops: 40, offerBytes: 8e9 });
  const leaving = run({}, [100, 10]);
  leaving.peers["p0"]!.leaving = true;
  assert.deepEqual(measuredOffer([leaving]), { peers: 1, gflops: 10, offerBytes: 2e9 });
  const slowed = run({}, [100]);
  slowed.peers["p0"]!.slowdown = 4;
  assert.equal(measuredOffer([slowed])?.gflops, 25);
});

Deno.test("measured: what a form would not take is brought to its bounds", () => {
  assert.deepEqual(measuredOffer([run({}, [0.001], 1e6)]), {
    peers: 1,
    gflops: 0.1,
    offerBytes: OFFER_BYTES_MIN,
  });
});
