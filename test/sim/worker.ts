// One worker of a simulation: plays the seeds it is given and sends their sums back. The tasks come from runner.ts.
/// <reference lib="deno.worker" />
import { play } from "./play.ts";
import { planOf } from "./scenarios.ts";
import { count, emptyTally } from "./tally.ts";

export interface Task {
  scenario: string;
  firstSeed: number;
  seeds: number;
}

self.addEventListener("message", async ({ data }: MessageEvent<Task>) => {
  const tally = emptyTally(data.scenario);
  const begun = performance.now();
  for (let i = 0; i < data.seeds; i++) count(tally, await play(planOf(data.scenario, data.firstSeed + i)));
  tally.spentMs = performance.now() - begun;
  self.postMessage(tally);
});
