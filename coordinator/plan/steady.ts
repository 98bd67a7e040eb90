// What a step takes where the next one follows without a pause (schedule 2bw), by the simulator of the order that peers run. Not a
// prediction of any one step: the first after a standstill fills the pipeline. Pure.
import { type PipelineOptions, type SimulatedStage, simulatePipeline } from "./dynamic.ts";
import type { Network } from "./network.ts";
import type { OpSeconds } from "./simulate.ts";

/** Steps open at once; each has slots of its own at every replica. */
const OPEN_STEPS = 2;
/** Steps by which the pipeline is as full as it will be. */
const FILLING_STEPS = 2;

/** Seconds by which one more step makes a long run longer. The commit is hidden behind the step that is open besides. */
export function steadySeconds(
  stages: readonly SimulatedStage[],
  costs: { seconds: OpSeconds; network: Network } & PipelineOptions,
): number {
  const span = (steps: number) => simulatePipeline("2bw", inARow(stages, steps), costs).makespan;
  return span(FILLING_STEPS + 1) - span(FILLING_STEPS);
}

/** Micro-batch m of step k is number m + kN of one long step. */
function inARow(stages: readonly SimulatedStage[], steps: number): SimulatedStage[] {
  const N = stages[0]!.replicas.reduce((sum, list) => sum + list.length, 0);
  const starts = Array.from({ length: steps }, (_, k) => k * N);
  return stages.map((stage) => ({
    ...stage,
    ...{ inflight: OPEN_STEPS * stage.inflight, slots: OPEN_STEPS * stage.slots },
    replicas: stage.replicas.map((list) => starts.flatMap((start) => list.map((m) => start + m))),
  }));
}
