// The schedules that a view can place: for each the stages, pipelines and sizes that it needs, and the emitter of its order.
// Not a planner: it knows no peers and no times. Both sides ask it, so the coordinator never places what peers cannot follow.
import { ShoalError } from "../wire/errors.ts";
import type { ScheduleId } from "../wire/run.ts";
import { breadthFirst, interleaved } from "./emitters.ts";
import { chimera, chimeraBackwardHalving, chimeraForwardDoubling } from "./emitters_chimera.ts";
import { dualPipe, zbH1, zbH2 } from "./emitters_split.ts";
import { zbV } from "./emitters_zbv.ts";
import type { Schedule } from "./ir.ts";

/** Schedules whose order belongs to a placement of the stages. The others take whatever replicas there are. */
export type PlacedScheduleId = Exclude<ScheduleId, "dynamic" | "gpipe" | "1f1b" | "2bw">;

export interface ScheduleSize {
  /** Peers that compute, P. */
  devices: number;
  /** Stages of the model, V. */
  stages: number;
  /** Micro-batches of a step, N, of all pipelines together. */
  microBatches: number;
  /** Pipelines that the micro-batches are dealt out to in turn; each stage has so many replicas. */
  directions: number;
}

/** Chunks of a peer in the looped schedules unless `n_stage` asks for another number. */
const CHUNKS = 2;

/** Stages for P devices; null: as many as the configuration says, a multiple of P. */
const STAGES_PER_DEVICE: Readonly<Record<PlacedScheduleId, 1 | 2 | null>> = {
  ...{ "interleaved": null, "breadth-first": null, "zb-v": 2, "zb-h1": 1, "zb-h2": 1, "dualpipe": 1 },
  ...{ "chimera": 1, "chimera-doubling": 1, "chimera-halving": 1 },
};

export function isPlaced(schedule: ScheduleId | "auto"): schedule is PlacedScheduleId {
  return Object.hasOwn(STAGES_PER_DEVICE, schedule);
}

/** Pipelines of a schedule; `pairs` counts only for `chimera`. */
export function directionsOf(schedule: PlacedScheduleId, pairs: number): number {
  if (schedule === "chimera") return 2 * pairs;
  return schedule === "dualpipe" || schedule.startsWith("chimera") ? 2 : 1;
}

/**
 * Stages that a schedule has on so many devices, or what is wrong in words. `wanted` is the number that the configuration asks
 * for, 0 for any.
 */
export function stagesFor(schedule: PlacedScheduleId, devices: number, wanted: number): number | string {
  const each = STAGES_PER_DEVICE[schedule];
  if (each === null) {
    const stages = wanted === 0 ? CHUNKS * devices : wanted;
    const loops = stages % devices === 0 && stages > devices;
    return loops ? stages : `${schedule} on ${devices} peers needs n_stage a multiple of ${devices} and more`;
  }
  const stages = each * devices;
  return wanted === 0 || wanted === stages
    ? stages
    : `${schedule} on ${devices} peers has ${stages} stages, n_stage is ${wanted}`;
}

/** The order of a step, or in words what the size does not allow. */
export function emitSchedule(schedule: PlacedScheduleId, size: ScheduleSize): Schedule | string {
  try {
    const emitted = emit(schedule, size);
    const fits = emitted.stages === size.stages && emitted.placement.length === size.directions &&
      emitted.devices === size.devices && emitted.microBatches === size.microBatches;
    return fits ? emitted : `${schedule} has no form with ${size.stages} stages on ${size.devices} peers`;
  } catch (error) {
    if (error instanceof ShoalError && error.code === "bad-config") return error.message;
    throw error;
  }
}

function emit(
  schedule: PlacedScheduleId,
  { devices: P, stages: V, microBatches: N, directions }: ScheduleSize,
) {
  switch (schedule) {
    case "interleaved":
      return interleaved(P, N, V / P);
    case "breadth-first":
      return breadthFirst(P, N, V / P);
    case "chimera":
      return chimera(P, N, { pairs: directions / 2 });
    case "chimera-doubling":
      return chimeraForwardDoubling(P, N);
    // A run's micro-batches are the halves.
    case "chimera-halving":
      return chimeraBackwardHalving(P, N / 2);
    case "zb-h1":
      return zbH1(P, N);
    case "zb-h2":
      return zbH2(P, N);
    case "zb-v":
      return zbV(P, N);
    // A peer runs one operation at a time, so a pair is one after the other.
    case "dualpipe":
      return dualPipe(P, N, { paired: false });
  }
}
