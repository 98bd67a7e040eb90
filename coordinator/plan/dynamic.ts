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
  KIND_RANK,
  type NextOp,
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
  /** Device of each replica, where devices hold several stages: all from 0 on. Default: a device for each replica. */
  devices?: readonly number[];
}

export interface PipelineOptions {
  /** W runs as part of B, at once. Default false: W fills gaps. */
  fusedBackward?: boolean;
  /** Default: no jitter. */
  jitter?: Jitter;
}

/** One replica of one stage. */
interface Instance {
  stage: number;
  device: number;
  progress: Progress;
}

interface Device {
  instances: number[];
  running: boolean;
  free: number;
  busy: number;
  firstStart: number;
  peak: number;
}

/** Something that happens at a time: an operation's end at an instance, or a message that reaches it. */
interface Event {
  time: number;
  /** Order of creation, so that events of the same time have one order. */
  sequence: number;
  instance: number;
  what: { end: StageOp } | { arrival: "activation" | "gradient"; microBatch: number };
}

interface Run {
  instances: Instance[];
  devices: Device[];
  /** holders[stage] maps a micro-batch to the instance that computes it. */
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
 * Simulates one step. Devices are numbered stage by stage, replica by replica, unless the stages say which they are; `seconds`
 * sees the numbers of stage and device. Throws `bad-config` if some stage does not hold exactly the micro-batches of the others.
 */
export function simulatePipeline(
  schedule: ScheduleId,
  stages: readonly SimulatedStage[],
  costs: { seconds: OpSeconds; network: Network } & PipelineOptions,
): Simulation {
  const instances = createInstances(schedule, stages);
  const run: Run = {
    instances,
    devices: createDevices(instances),
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
  const stuck = instances.find(({ progress }) => !finished(progress));
  if (stuck !== undefined) {
    const message = `device ${stuck.device} never finishes; the plan does not cover the step`;
    throw new ShoalError("bad-config", message);
  }
  return summarise(run.devices, run.devices.map((device) => device.peak), run.trace);
}

function createInstances(schedule: ScheduleId, stages: readonly SimulatedStage[]): Instance[] {
  const spans = fixedSpans(
    schedule,
    stages.map((s) => ({ cap: Math.min(s.inflight, s.slots), lists: s.replicas })),
  );
  let count = 0;
  return stages.flatMap((stage, index) =>
    stage.replicas.map((microBatches, replica): Instance => {
      const position = {
        first: index === 0,
        last: index === stages.length - 1,
        index,
        stages: stages.length,
      };
      const caps: ExecutorCaps = { inflight: stage.inflight, slots: stage.slots };
      if (spans !== null) caps.span = spans[index]!;
      const progress = createProgress(schedule, position, microBatches, caps);
      const device = stage.devices?.[replica] ?? count;
      count++;
      return { stage: index, device, progress };
    })
  );
}

function createDevices(instances: readonly Instance[]): Device[] {
  const count = Math.max(...instances.map(({ device }) => device + 1), 0);
  const devices = Array.from({ length: count }, (): Device => ({
    ...{ instances: [], running: false, free: 0, busy: 0, firstStart: Infinity, peak: 0 },
  }));
  instances.forEach(({ device }, index) => devices[device]!.instances.push(index));
  return devices;
}

function holdersOf(stages: readonly SimulatedStage[]): Map<number, number>[] {
  let instance = 0;
  const holders = stages.map((stage) => {
    const holder = new Map<number, number>();
    for (const list of stage.replicas) {
      for (const microBatch of list) holder.set(microBatch, instance);
      instance++;
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
  const touched: number[] = [];
  while (run.events.length > 0 && run.events[0]!.time <= now + TIME_EPSILON) {
    const event = takeFirst(run.events);
    const instance = run.instances[event.instance]!;
    if (!touched.includes(instance.device)) touched.push(instance.device);
    if ("end" in event.what) endOp(run, instance, event.what.end);
    else arrive(instance.progress, event.what);
  }
  if (touched.length > 1) touched.sort((a, b) => a - b);
  for (const device of touched) startIfIdle(run, device, now);
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
  const next = nextOf(run, device);
  if (next === null) return;
  const { op, instance } = next;
  const { stage } = run.instances[instance]!;
  const duration = secondsOf(run, op.kind, { stage, device: index }) * run.jitter("compute", index);
  const end = now + duration;
  device.running = true;
  device.free = end;
  device.busy += duration;
  device.firstStart = Math.min(device.firstStart, now);
  // The slot is taken from the start of F, one operation before the executor counts it as done.
  if (op.kind === "F") device.peak = Math.max(device.peak, heldBy(run, device) + 1);
  const kind = op.kind === "B" && run.fused ? "BW" : op.kind;
  const { microBatch } = op;
  run.trace.push({ device: index, kind, direction: 0, stage, microBatch, start: now, end });
  post(run, { time: end, instance, what: { end: { kind: op.kind, microBatch } } });
}

/** Over all of a device's stages in the peers' own order: kind, then micro-batch, then stage. */
function nextOf(run: Run, { instances }: Device): { op: NextOp; instance: number } | null {
  let best: { op: NextOp; instance: number } | null = null;
  for (const instance of instances) {
    const op = nextOp(run.instances[instance]!.progress);
    if (op !== null && (best === null || goesBefore(op, best.op))) best = { op, instance };
  }
  return best;
}

function goesBefore(a: NextOp, b: NextOp): boolean {
  const ranks = KIND_RANK[a.kind] - KIND_RANK[b.kind];
  return ranks < 0 || (ranks === 0 && a.microBatch < b.microBatch);
}

function heldBy(run: Run, { instances }: Device): number {
  return instances.reduce((sum, instance) => sum + slotsHeld(run.instances[instance]!.progress), 0);
}

function endOp(run: Run, { stage, device: index, progress }: Instance, op: StageOp): void {
  const device = run.devices[index]!;
  device.running = false;
  opDone(progress, op);
  if (op.kind === "B" && run.fused) opDone(progress, { kind: "W", microBatch: op.microBatch });
  if (op.kind === "W") return;
  const to = run.holders[stage + (op.kind === "F" ? 1 : -1)]?.get(op.microBatch);
  if (to === undefined) return;
  const what = {
    arrival: op.kind === "F" ? "activation" as const : "gradient" as const,
    microBatch: op.microBatch,
  };
  post(run, { time: arrivalAt(run, { from: index, to: run.instances[to]!.device }), instance: to, what });
}

function arrivalAt(run: Run, { from, to }: { from: number; to: number }): number {
  const { free } = run.devices[from]!;
  if (from === to) return free;
  const stretch = { latency: run.jitter("latency", from), transfer: run.jitter("transfer", from) };
  return run.wires.send(from, to, free, stretch);
}

function secondsOf(
  run: Run,
  kind: StageOp["kind"],
  { stage, device }: { stage: number; device: number },
): number {
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
