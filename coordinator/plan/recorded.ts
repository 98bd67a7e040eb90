// Turns a simulated run of the peers' own executor into a schedule like the published ones: one list per device.
// Not a plan: peers decide at run time. What it is for: checking and drawing what they would do.
import { ShoalError } from "../../peer/wire/errors.ts";
import { makeOp, measurePeaks, type Schedule } from "../../peer/schedule/ir.ts";
import { single } from "../../peer/schedule/emitters.ts";
import type { SimulatedStage } from "./dynamic.ts";
import type { Simulation } from "./simulate.ts";

/** The order in which each device ran. Throws `bad-config` if a stage has several replicas. */
export function recordedSchedule(simulation: Simulation, stages: readonly SimulatedStage[]): Schedule {
  stages.forEach(({ replicas }, s) => {
    if (replicas.length === 1) return;
    const message = `stage ${s} has ${replicas.length} replicas; only stages of one replica are recorded`;
    throw new ShoalError("bad-config", message);
  });
  const N = stages[0]?.replicas[0]?.length ?? 0;
  const ops = stages.map((_, device) =>
    simulation.trace.filter((entry) => entry.device === device)
      .map((entry) => makeOp(entry.kind, entry))
  );
  const schedule = { ...single("dynamic", stages.length, N), ops };
  return { ...schedule, peakActivations: measurePeaks(schedule) };
}
