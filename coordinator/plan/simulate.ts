// Discrete-event simulation of a static schedule: every device runs its list in order, messages take time.
// Not the executor that peers run (dynamic.ts simulates that one). Same input, same result, to the last bit.
import { ShoalError } from "../../peer/wire/errors.ts";
import {
  dependencies,
  type Dependency,
  measurePeaks,
  type Op,
  parts,
  resultKey,
  type Schedule,
  sends,
  type SingleOp,
} from "../../peer/schedule/ir.ts";
import { createWires, type Network, type Wires } from "./network.ts";

/** Seconds of an operation; a function where stages or devices differ. */
export type Seconds = number | ((stage: number, device: number) => number);

/** Per micro-batch and virtual stage. `BW` defaults to B + W, `FB` to the sum of its halves. */
export interface OpSeconds {
  F: Seconds;
  B: Seconds;
  W: Seconds;
  BW?: Seconds;
  FB?: Seconds;
}

/** One operation as it ran; both halves of a fused pair have the pair's times. */
export interface TraceEntry {
  device: number;
  kind: SingleOp["kind"];
  direction: number;
  stage: number;
  microBatch: number;
  start: number;
  end: number;
}

export interface Simulation {
  /** Seconds until the last device is done. */
  makespan: number;
  /** Idle share of all devices, 0 .. 1. */
  bubble: number;
  /** Longest span between a device's first start and last end, less the longest busy time, in seconds. */
  stageBubble: number;
  /** Seconds of work per device. */
  busy: number[];
  /** Most activations held per device, in units of one virtual stage. */
  peak: number[];
  trace: TraceEntry[];
}

/** A factor on the seconds of one operation or message; deterministic, given by the caller. */
export type Jitter = (what: "compute" | "latency" | "transfer", device: number) => number;

/** What is known so far about one device. */
interface Device {
  next: number;
  /** Jitter of the next operation, drawn once. */
  factor: number;
  free: number;
  busy: number;
  firstStart: number;
}

interface Run {
  schedule: Schedule;
  seconds: OpSeconds;
  wires: Wires;
  jitter: Jitter;
  devices: Device[];
  /** When a result is ready on the device that made it, and on the one it was sent to. */
  ready: Map<string, number>;
  trace: TraceEntry[];
}

/** Two times closer than this are the same event; keeps rounding noise from reordering devices. */
export const TIME_EPSILON = 1e-12;

/** Runs the schedule. Throws `bad-config` if it deadlocks. `jitter`: default none. */
export function simulate(
  schedule: Schedule,
  seconds: OpSeconds,
  network: Network,
  options: { jitter?: Jitter } = {},
): Simulation {
  const { jitter = () => 1 } = options;
  const run: Run = {
    schedule,
    seconds,
    wires: createWires(network),
    jitter,
    devices: schedule.ops.map((_, device) => ({
      ...{ next: 0, free: 0, busy: 0, firstStart: Infinity },
      factor: jitter("compute", device),
    })),
    ready: new Map(),
    trace: [],
  };
  let left = schedule.ops.reduce((sum, list) => sum + list.length, 0);
  for (; left > 0; left--) step(run);
  return summarise(run.devices, measurePeaks(schedule), run.trace);
}

/** Totals of a finished run. */
export function summarise(
  devices: readonly { free: number; busy: number; firstStart: number }[],
  peak: number[],
  trace: TraceEntry[],
): Simulation {
  const busy = devices.map((device) => device.busy);
  const makespan = Math.max(...devices.map((device) => device.free));
  // A replica without micro-batches never started; it spans nothing.
  const longest = Math.max(
    ...devices.map((device) => device.busy === 0 ? 0 : device.free - device.firstStart),
  );
  const worked = busy.reduce((sum, value) => sum + value, 0);
  const bubble = 1 - worked / (devices.length * makespan);
  return { makespan, bubble, stageBubble: longest - Math.max(...busy), busy, peak, trace };
}

/** Runs the operation that ends first of all that may run: wires are then reserved in the order of time. */
function step(run: Run): void {
  let best: { device: number; op: Op; start: number; end: number } | null = null;
  for (let device = 0; device < run.devices.length; device++) {
    const { next, free, factor } = run.devices[device]!;
    const op = run.schedule.ops[device]![next];
    if (op === undefined) continue;
    const start = Math.max(free, readyTime(run, op, device));
    if (start === Infinity) continue;
    const end = start + durationOf(run.seconds, op, device) * factor;
    if (best === null || end < best.end - TIME_EPSILON) best = { device, op, start, end };
  }
  if (best === null) {
    throw new ShoalError("bad-config", `schedule ${run.schedule.name} deadlocks; validate it first`);
  }
  finish(run, best);
}

function finish(run: Run, done: { device: number; op: Op; start: number; end: number }): void {
  const device = run.devices[done.device]!;
  device.next++;
  device.factor = run.jitter("compute", done.device);
  device.free = done.end;
  device.busy += done.end - done.start;
  device.firstStart = Math.min(device.firstStart, done.start);
  for (const part of parts(done.op)) {
    const { kind, direction, stage, microBatch } = part;
    const { start, end } = done;
    run.trace.push({ device: done.device, kind, direction, stage, microBatch, start, end });
    if (kind === "W") continue;
    const result = resultKey(kind === "F" ? "F" : "B", part);
    run.ready.set(atDevice(result, done.device), end);
    for (const send of sends(part, run.schedule)) {
      const stretch = {
        latency: run.jitter("latency", send.from),
        transfer: run.jitter("transfer", send.from),
      };
      run.ready.set(atDevice(result, send.to), run.wires.send(send.from, send.to, end, stretch));
    }
  }
}

/** Earliest start that the dependencies allow; infinite while one of them has not run. */
function readyTime(run: Run, op: Op, device: number): number {
  const times = dependencies(op, run.schedule).map((needed: Dependency) =>
    run.ready.get(atDevice(resultKey(needed.kind, needed), device)) ?? Infinity
  );
  return Math.max(0, ...times);
}

function durationOf(seconds: OpSeconds, op: Op, device: number): number {
  const of = (value: Seconds, stage: number) => typeof value === "number" ? value : value(stage, device);
  if (op.kind === "FB") {
    if (seconds.FB !== undefined) return of(seconds.FB, op.forward.stage);
    return durationOf(seconds, op.forward, device) + durationOf(seconds, op.backward, device);
  }
  if (op.kind !== "BW") return of(seconds[op.kind], op.stage);
  if (seconds.BW !== undefined) return of(seconds.BW, op.stage);
  return of(seconds.B, op.stage) + of(seconds.W, op.stage);
}

function atDevice(result: string, device: number): string {
  return `${result}@${device}`;
}
