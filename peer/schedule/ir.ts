// The operations of a pipeline schedule, as data, and the two things derived from them: what an operation waits
// for and what it sends. Not an executor. No schedule names a send: communication follows from the placement.
import { ShoalError } from "../wire/errors.ts";

/** F forward, B input gradient, W weight gradient, BW both in one; on one virtual stage and micro-batch. */
export interface SingleOp {
  kind: "F" | "B" | "W" | "BW";
  /** Pipeline the micro-batch runs through: 0, or 1 for the opposite one of bidirectional schedules. */
  direction: number;
  /** Virtual stage, 0 .. schedule.stages-1, counted along its direction. */
  stage: number;
  /** 0 .. N/directions-1, counted within its direction. */
  microBatch: number;
}

/** A forward and a backward run as one atomic operation, whose outputs appear at its end (DualPipe). */
export interface FusedOp {
  kind: "FB";
  forward: SingleOp;
  backward: SingleOp;
}

export type Op = SingleOp | FusedOp;

/** A static order per device. Plain data. */
export interface Schedule {
  name: string;
  /** Devices P. */
  devices: number;
  /** Virtual stages V of each direction. */
  stages: number;
  /** Micro-batches N of a step, all directions together. */
  microBatches: number;
  /** placement[direction][stage] is a device. */
  placement: number[][];
  /** Per device, in the order of execution. */
  ops: Op[][];
  /** Declared bound, per device, on activations held (F done, W not), in units of one virtual stage. */
  peakActivations: number[];
  /** Order of B at every stage of a direction; LIFO within a chunk that holds the whole step (GPipe). */
  backwardOrder: "fifo" | "lifo";
  /** Asynchronous schedules only; absent: the list is one step, and weights change after it. */
  asynchronous?: Asynchronous;
}

/** Several steps in one list, without a flush between them. */
export interface Asynchronous {
  /** Micro-batches k * perStep to (k+1) * perStep - 1 are step k. */
  perStep: number;
  /** Step k computes with the weights that contain steps up to k - 1 - delay; a device keeps delay + 1 versions. */
  delay: number;
}

/** What must be done before an operation may start: `done` on the device `device`. */
export interface Dependency {
  kind: "F" | "B";
  direction: number;
  stage: number;
  microBatch: number;
  device: number;
}

/** A message that an operation's end causes. `stage` is the one that reads it. */
export interface Send {
  kind: "activation" | "gradient";
  direction: number;
  stage: number;
  microBatch: number;
  from: number;
  to: number;
}

export function makeOp(kind: SingleOp["kind"], at: Omit<SingleOp, "kind">): SingleOp {
  return { kind, direction: at.direction, stage: at.stage, microBatch: at.microBatch };
}

/** The single operations inside an operation, in order. */
export function parts(op: Op): SingleOp[] {
  return op.kind === "FB" ? [op.forward, op.backward] : [op];
}

/** Name of a finished result; a fused backward counts as B (and as W). */
export function resultKey(kind: "F" | "B" | "W", at: Omit<SingleOp, "kind">): string {
  return `${kind}:${at.direction}:${at.stage}:${at.microBatch}`;
}

/** Results that a single operation yields. */
export function resultsOf(op: SingleOp): string[] {
  if (op.kind === "BW") return [resultKey("B", op), resultKey("W", op)];
  return [resultKey(op.kind, op)];
}

/**
 * F(s) waits for F(s-1); B(s) for its own F and for B(s+1); W for its own B. Nothing else orders operations,
 * except the list of their device. A fused pair waits for what either half waits for.
 */
export function dependencies(op: Op, schedule: Schedule): Dependency[] {
  if (op.kind === "FB") return parts(op).flatMap((part) => dependencies(part, schedule));
  const on = (kind: "F" | "B", stage: number): Dependency => ({
    kind,
    direction: op.direction,
    stage,
    microBatch: op.microBatch,
    device: deviceOf(schedule, op.direction, stage),
  });
  if (op.kind === "F") return op.stage === 0 ? [] : [on("F", op.stage - 1)];
  if (op.kind === "W") return [on("B", op.stage)];
  const own = on("F", op.stage);
  return op.stage === schedule.stages - 1 ? [own] : [own, on("B", op.stage + 1)];
}

/** Messages that leave the device at the end of an operation; none if the reader is the same device. */
export function sends(op: Op, schedule: Schedule): Send[] {
  if (op.kind === "FB") return parts(op).flatMap((part) => sends(part, schedule));
  if (op.kind === "W") return [];
  const stage = op.kind === "F" ? op.stage + 1 : op.stage - 1;
  if (stage < 0 || stage >= schedule.stages) return [];
  const from = deviceOf(schedule, op.direction, op.stage);
  const to = deviceOf(schedule, op.direction, stage);
  if (from === to) return [];
  const kind = op.kind === "F" ? "activation" : "gradient";
  return [{ kind, direction: op.direction, stage, microBatch: op.microBatch, from, to }];
}

/** Most activations each device holds at once (F done, W not), in units of one virtual stage. */
export function measurePeaks(schedule: Schedule): number[] {
  return schedule.ops.map((list) => {
    let held = 0;
    let peak = 0;
    for (const op of list.flatMap(parts)) {
      if (op.kind === "F") peak = Math.max(peak, ++held);
      else if (op.kind !== "B") held--;
    }
    return peak;
  });
}

/** Device that holds a virtual stage. Throws `bad-config` if the schedule has no such stage. */
export function deviceOf(schedule: Schedule, direction: number, stage: number): number {
  const device = schedule.placement[direction]?.[stage];
  if (device === undefined) {
    throw new ShoalError(
      "bad-config",
      `${schedule.name} places no stage ${stage} of direction ${direction}; it has ${schedule.stages} stages`,
    );
  }
  return device;
}
