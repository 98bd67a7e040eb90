// What the simulators say about a run of the bench, and the fixed costs that they must be told: what an operation and a hop take
// beyond the times that were set, and a commit. Those are measured once, in runs without latency; nothing of the run
// that is predicted goes into its own prediction but its plan and the size of its messages.
import { type SimulatedStage, simulatePipeline } from "../coordinator/plan/dynamic.ts";
import { steadySeconds } from "../coordinator/plan/steady.ts";
import { type OpSeconds, simulate, type Simulation } from "../coordinator/plan/simulate.ts";
import { asRun, placedOf } from "../peer/schedule/placed.ts";
import type { View } from "../peer/wire/run.ts";
import { isDelayed } from "../peer/wire/view.ts";
import { sum } from "./support.ts";
import { type LayerMs, stageMs, type TracedOp } from "./wan_engine.ts";
import type { WireOptions } from "./wan_links.ts";
import type { RunResult, Step } from "./wan_run.ts";

/** Fixed costs in milliseconds, beyond what the engine and the links were told. */
export interface Overheads {
  /** Of an operation: the timer is late, then the core decides, frames are made, gradients are quantised. */
  op: LayerMs;
  /** Of a message: it is framed, checked and told to the core. */
  hop: number;
  /** From the end of a step's last operation to the start of the next step's first: totals, commit, optimizer. */
  commit: number;
}

export const NO_OVERHEADS: Overheads = { op: { F: 0, B: 0, W: 0 }, hop: 0, commit: 0 };

export interface Costs {
  layerMs: LayerMs;
  fused: boolean;
  wire: WireOptions;
  /** Bytes that a boundary tensor is on the wire. */
  messageBytes: number;
  /** Bytes of a replica's sum on the wire; 0 where every stage has one holder. */
  sumBytes: number;
  overheads: Overheads;
}

export interface Prediction {
  /** From the first operation's start to the last one's end. */
  pipelineMs: number;
  /** With the exchange of sums and the commit: until the next step begins. */
  stepMs: number;
  bubble: number;
}

/**
 * From two runs without latency: `busy`, in the dynamic order, has operations that follow one another without waiting;
 * `lone` has one micro-batch, so that each operation waits for exactly one message.
 */
export function calibrate(busy: RunResult, lone: RunResult, told: { layerMs: LayerMs }): Overheads {
  const { view, steps } = busy;
  const gaps = steps.map(gapsOf);
  const gap = (kind: keyof LayerMs) => midmean(gaps.flatMap((step) => step[kind]));
  const late = (kind: keyof LayerMs) => {
    const ops = steps.flatMap((step) => step.ops).filter((op) => op.kind === kind);
    return midmean(ops.map((op) => op.endMs - op.startMs - toldOf(view, op, told.layerMs)));
  };
  const op = { F: late("F") + gap("F"), B: late("B") + gap("B"), W: late("W") + gap("W") };
  const hops = lone.steps.flatMap(hopsOf);
  // The last operation's own gap counts in the pipeline.
  return { op, hop: Math.max(0, midmean(hops) - gap("F")), commit: midmean(steps.map(commitOf)) - gap("W") };
}

function toldOf(view: View, op: TracedOp, layerMs: LayerMs): number {
  const { firstLayer, endLayer } = view.stages[op.stage]!;
  return stageMs(layerMs, endLayer - firstLayer, false)[op.kind];
}

/** Time between two operations of a peer where the later one had nothing to wait for, by the kind of the earlier one. */
export function gapsOf({ ops }: Step): Record<keyof LayerMs, number[]> {
  const gaps: Record<keyof LayerMs, number[]> = { F: [], B: [], W: [] };
  const before = new Map<string, TracedOp>();
  for (const op of ops) {
    const last = before.get(op.peer);
    before.set(op.peer, op);
    if (last === undefined) continue;
    // A first stage waits for nobody's activation; a weight gradient only for its own peer's backward, which is no later.
    const free = last.stage === op.stage &&
      ((last.kind === "F" && op.kind === "F" && op.stage === 0) || (last.kind !== "F" && op.kind === "W"));
    if (free) gaps[last.kind].push(op.startMs - last.endMs);
  }
  return gaps;
}

/** From the end of each forward of a lone micro-batch to the start of the next stage's. */
function hopsOf({ ops }: Step): number[] {
  const forwards = ops.filter((op) => op.kind === "F");
  return forwards.slice(1).map((op, i) => op.startMs - forwards[i]!.endMs);
}

/** Mean of the middle half: what is usual, without the stalls that other programs cause. NaN of none. */
export function midmean(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const quarter = Math.floor(sorted.length / 4);
  const middle = sorted.slice(quarter, sorted.length - quarter);
  return sum(middle) / middle.length;
}

export function endOf({ ops }: Step): number {
  return Math.max(...ops.map((op) => op.endMs));
}

/** From a step's last end to the next one's first start. */
export function commitOf(step: Step): number {
  return step.nextMs - endOf(step);
}

export function predict(view: View, costs: Costs): Prediction {
  const { wire, overheads } = costs;
  const transferMs = (bytes: number) => wire.bytesPerS === undefined ? 0 : (bytes * 1000) / wire.bytesPerS;
  const network = {
    latency: (wire.delayMs + overheads.hop) / 1000,
    transfer: transferMs(costs.messageBytes) / 1000,
    mode: "duplex" as const,
  };
  const seconds = secondsOf(view, costs);
  const placed = placedOf(view);
  const simulated = placed === null
    ? simulatePipeline(view.schedule, simulatedStages(view), { seconds, network })
    : simulate(asRun(placed.schedule), seconds, network);
  const exchangeMs = wire.delayMs + overheads.hop + transferMs(costs.sumBytes);
  const summed = Math.max(...sharedEnds(view, simulated).map((end) => end * 1000 + exchangeMs), 0);
  const pipelineMs = simulated.makespan * 1000;
  if (isDelayed(view)) {
    const stepMs = steadySeconds(simulatedStages(view), { seconds, network }) * 1000;
    return {
      pipelineMs,
      stepMs,
      bubble: Math.max(0, 1 - simulated.makespan * (1 - simulated.bubble) * 1000 / stepMs),
    };
  }
  return {
    pipelineMs,
    stepMs: Math.max(pipelineMs, summed) + overheads.commit,
    bubble: simulated.bubble,
  };
}

function secondsOf({ stages }: View, { layerMs, fused, overheads }: Costs): OpSeconds {
  const of = (kind: keyof LayerMs) => (stage: number) => {
    const { firstLayer, endLayer } = stages[stage]!;
    return (stageMs(layerMs, endLayer - firstLayer, fused)[kind] + overheads.op[kind]) / 1000;
  };
  return { F: of("F"), B: of("B"), W: of("W") };
}

/** A peer is a device, however many stages it holds. */
function simulatedStages({ stages }: View): SimulatedStage[] {
  const computing = stages.map(({ replicas }) =>
    replicas.filter(({ microBatches }) => microBatches.length > 0)
  );
  const peers = [...new Set(computing.flat().map(({ peer }) => peer))];
  return stages.map(({ inflight }, s) => ({
    ...{ inflight, slots: inflight, replicas: computing[s]!.map(({ microBatches }) => microBatches) },
    devices: computing[s]!.map(({ peer }) => peers.indexOf(peer)),
  }));
}

/** When each replica of a stage that several compute is done with it: then its sum leaves. */
function sharedEnds({ stages }: View, { trace }: Simulation): number[] {
  const ends = new Map<string, number>();
  for (const { stage, device, end } of trace) {
    const computing = stages[stage]!.replicas.filter(({ microBatches }) => microBatches.length > 0);
    if (computing.length > 1) {
      ends.set(`${stage}@${device}`, Math.max(end, ends.get(`${stage}@${device}`) ?? 0));
    }
  }
  return [...ends.values()];
}
