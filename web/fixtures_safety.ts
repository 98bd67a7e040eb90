// What a plan means for departures, for the fixtures: holders and redundancy as the coordinator would report them.
// Pure; nothing here ships with the pages.
import type { StagePlan } from "../peer/wire/run.ts";
import type { RecoveryStatus, StageSafety } from "../peer/wire/status.ts";

export const noDepartures: RecoveryStatus = {
  departures: [],
  departuresTotal: 0,
  stall: null,
  recomputed: 0,
  bytes: 0,
  fenced: 0,
  suspects: [],
  snapshotStep: 340,
};

export function safetyOf(stages: StagePlan[]): StageSafety[] {
  return stages.map(function safety({ replicas }) {
    const holders = replicas.filter((replica) => replica.learning !== true);
    const computing = holders.filter((replica) => replica.microBatches.length > 0);
    return {
      redundancy: computing.length > 1 ? "replica" : holders.length > 1 ? "shadow" : "none",
      snapshot: "none",
      holders: holders.map((replica) => replica.peer),
      learning: replicas.filter((replica) => replica.learning === true).map((replica) => replica.peer),
      stepsAtRisk: 0,
    };
  });
}
