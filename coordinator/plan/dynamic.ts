// Discrete-event simulation of the executor that peers run: each replica asks peer/schedule/executor.ts what to
// do next, so the plan is judged by the very rule that will run. No clock, no randomness: jitter is an argument.
import { ShoalError } from "../../peer/wire/errors.ts";
import type { ScheduleId } from "../../peer/wire/run.ts";
import {
  activationArrived,
  createProgress,
  type ExecutorCaps,
  finished,
  gradientArrived,
  nextOp,
  opDone,
  type Progress,
  slotsHeld,
  type StageOp,
} from "../../peer/schedule/executor.ts";
import { fixedSpans } from "../../peer/schedule/windows.ts";
import { createWires, type Network, type Wires } from "./network.ts";
import {
  type Jitter,
  type OpSeconds,
  type Seconds,
  type Simulation,
  summarise,
  TIME_EPSILON,
  type TraceEntry,
} from "./simulate.ts";

/** One stage: its caps, and the micro-batches of each of its replicas (ascending). */
export interface SimulatedStage {
  inflight: number;
  slots: number;
  replicas: number[][];
}

export interface PipelineOptions {
  /** W runs as part of B, at once. Default false: W fills gaps. */
  fusedBackward?: boolean;
  /** Default: no jitter. */
  jitter?: Jitter;
}

interface Device {
  stage: number;
  progress: Progress;
  running: boolean;
  free: number;
  busy: number;
  firstStart: number;
  peak: number;
}

/** Something that happens at a time: an operation's end on `device`, or a message that reaches it. */
interface Event {
  time: number;
  /** Order of creation, so that events of the same time have one order. */
  sequence: number;
  device: number;
  what: { end: StageOp } | { arrival: "activation" | "gradient"; microBatch: number };
}

interface Run {
  devices: Device[];
  /** holders[stage] maps a micro-batch to the device that computes it. */
  holders: Map<number, number>[];
  seconds: OpSeconds;
  wires: Wires;
  fused: boolean;
  jitter: Jitter;
  events: Event[];
  sequence: number;
  trace: TraceEntry[];
}

/** Stages of one replica each that hold all N micro-batches; slots default to the in-flight caps. */
export function singleReplicas(N: number, inflight: readonly number[], slots = inflight): SimulatedStage[] {
  const all = Array.from({ length: N }, (_, microBatch) => microBatch);
  return inflight.map((cap, s) => ({ inflight: cap, slots: slots[s]!, replicas: [all] }));
}

/**
 * Simulates one step. Devices are numbered stage by stage, replica by replica; `seconds` sees both numbers.
 * Throws `bad-config` if some stage does not hold exactly the micro-batches of the others.
 */
export function simulatePipeline(
  schedule: ScheduleId,
  stages: readonly SimulatedStage[],
  costs: { seconds: OpSeconds; network: Network } & PipelineOptions,
): Simulation {
  const run: Run = {
    devices: createDevices(schedule, stages),
    holders: holdersOf(stages),
    seconds: costs.seconds,
    wires: createWires(costs.network),
    fused: costs.fusedBackward ?? false,
    jitter: costs.jitter ?? (() => 1),
    events: [],
    sequence: 0,
    trace: [],
  };
  run.devices.forEach((_, device) => startIfIdle(run, device));
  while (run.events.length > 0) advance(run);
  const stuck = run.devices.findIndex((device) => !finished(device.progress));
  if (stuck >= 0) {
    throw new ShoalError("bad-config", `device ${stuck} never finishes; the plan does not cover the step`);
  }
  return summarise(run.devices, run.devices.map((device) => device.peak), run.trace);
}

function createDevices(schedule: ScheduleId, stages: readonly SimulatedStage[]): Device[] {
  const spans = fixedSpans(
    schedule,
    stages.map((s) => ({ cap: Math.min(s.inflight, s.slots), lists: s.replicas })),
  );
  return stages.flatMap((stage, index) =>
    stage.replicas.map((microBatches): Device => {
      const position = {
        first: index === 0,
        last: index === stages.length - 1,
        index,
        stages: stages.length,
      };
      const caps: ExecutorCaps = { inflight: stage.inflight, slots: stage.slots };
      if (spans !== null) caps.span = spans[index]!;
      const progress = createProgress(schedule, position, microBatches, caps);
      return { stage: index, progress, running: false, free: 0, busy: 0, firstStart: Infinity, peak: 0 };
    })
  );
}

function holdersOf(stages: readonly SimulatedStage[]): Map<number, number>[] {
  let device = 0;
  const holders = stages.map((stage) => {
    const holder = new Map<number, number>();
    for (const list of stage.replicas) {
      for (const microBatch of list) holder.set(microBatch, device);
      device++;
    }
    return holder;
  });
  const size = holders[0]?.size ?? 0;
  stages.forEach((stage, s) => {
    const held = stage.replicas.reduce((sum, list) => sum + list.length, 0);
    if (held !== size || holders[s]!.size !== size) {
      throw new ShoalError("bad-config", `stage ${s} holds ${held} micro-batches, stage 0 holds ${size}`);
    }
  });
  return holders;
}

/** Handles everything of the earliest time together, then lets idle devices decide with all of it known. */
function advance(run: Run): void {
  const now = run.events[0]!.time;
  const touched = new Set<number>();
  while (run.events.length > 0 && run.events[0]!.time <= now + TIME_EPSILON) {
    const event = takeFirst(run.events);
    touched.add(event.device);
    if ("end" in event.what) endOp(run, event.device, event.what.end);
    else arrive(run.devices[event.device]!.progress, event.what);
  }
  for (const device of [...touched].sort((a, b) => a - b)) startIfIdle(run, device, now);
}

function arrive(
  progress: Progress,
  message: { arrival: "activation" | "gradient"; microBatch: number },
): void {
  if (message.arrival === "activation") activationArrived(progress, message.microBatch);
  else gradientArrived(progress, message.microBatch);
}

function startIfIdle(run: Run, index: number, now = 0): void {
  const device = run.devices[index]!;
  if (device.running) return;
  const op = nextOp(device.progress);
  if (op === null) return;
  const duration = secondsOf(run, op.kind, index) * run.jitter("compute", index);
  const end = now + duration;
  device.running = true;
  device.free = end;
  device.busy += duration;
  device.firstStart = Math.min(device.firstStart, now);
  // The slot is taken from the start of F, one operation before the executor counts it as done.
  if (op.kind === "F") device.peak = Math.max(device.peak, slotsHeld(device.progress) + 1);
  const kind = op.kind === "B" && run.fused ? "BW" : op.kind;
  run.trace.push({
    device: index,
    kind,
    direction: 0,
    stage: device.stage,
    microBatch: op.microBatch,
    start: now,
    end,
  });
  post(run, { time: end, device: index, what: { end: { kind: op.kind, microBatch: op.microBatch } } });
}

function endOp(run: Run, index: number, op: StageOp): void {
  const device = run.devices[index]!;
  device.running = false;
  opDone(device.progress, op);
  if (op.kind === "B" && run.fused) opDone(device.progress, { kind: "W", microBatch: op.microBatch });
  if (op.kind === "W") return;
  const to = run.holders[device.stage + (op.kind === "F" ? 1 : -1)]?.get(op.microBatch);
  if (to === undefined) return;
  const stretch = { latency: run.jitter("latency", index), transfer: run.jitter("transfer", index) };
  const time = run.wires.send(index, to, device.free, stretch);
  const arrival = op.kind === "F" ? "activation" : "gradient";
  post(run, { time, device: to, what: { arrival, microBatch: op.microBatch } });
}

function secondsOf(run: Run, kind: StageOp["kind"], device: number): number {
  const stage = run.devices[device]!.stage;
  const of = (value: Seconds) => typeof value === "number" ? value : value(stage, device);
  if (kind !== "B" || !run.fused) return of(run.seconds[kind]);
  return run.seconds.BW === undefined ? of(run.seconds.B) + of(run.seconds.W) : of(run.seconds.BW);
}

function post(run: Run, event: Omit<Event, "sequence">): void {
  const queued = { ...event, sequence: run.sequence++ };
  const heap = run.events;
  let at = heap.push(queued) - 1;
  while (at > 0) {
    const parent = (at - 1) >> 1;
    if (!earlier(queued, heap[parent]!)) break;
    heap[at] = heap[parent]!;
    at = parent;
  }
  heap[at] = queued;
}

/** Removes the root of the binary heap. */
function takeFirst(heap: Event[]): Event {
  const first = heap[0]!;
  const moved = heap.pop()!;
  if (heap.length === 0) return first;
  let at = 0;
  for (;;) {
    let child = 2 * at + 1;
    if (child + 1 < heap.length && earlier(heap[child + 1]!, heap[child]!)) child++;
    if (child >= heap.length || !earlier(heap[child]!, moved)) break;
    heap[at] = heap[child]!;
    at = child;
  }
  heap[at] = moved;
  return first;
}

function earlier(a: Event, b: Event): boolean {
  return a.time < b.time || (a.time === b.time && a.sequence < b.sequence);
}
