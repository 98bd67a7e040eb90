// Every schedule on the same stages and links, as rows of a table: what a step takes, idles and holds.
// Pure; it chooses nothing. A schedule that these sizes rule out is a row that says why.
import { ShoalError } from "../../peer/wire/errors.ts";
import {
  breadthFirst,
  gpipe,
  interleaved,
  latencyAwareWarmUp,
  oneForwardOneBackward,
  pipeDream2bw,
} from "../../peer/schedule/emitters.ts";
import {
  chimera,
  chimeraBackwardHalving,
  chimeraForwardDoubling,
} from "../../peer/schedule/emitters_chimera.ts";
import { dualPipe, zbH1, zbH2 } from "../../peer/schedule/emitters_split.ts";
import { zbV } from "../../peer/schedule/emitters_zbv.ts";
import type { Schedule } from "../../peer/schedule/ir.ts";
import { inflightCaps } from "../../peer/schedule/windows.ts";
import { type SimulatedStage, simulatePipeline, singleReplicas } from "./dynamic.ts";
import type { LinkMode } from "./network.ts";
import { slopedSlots } from "./planner_mirrored.ts";
import { type Jitter, simulate, type Simulation } from "./simulate.ts";

/** Equal stages and equal links; seconds per micro-batch and stage, or per message. */
export interface Setting {
  stages: number;
  microBatches: number;
  forward: number;
  backward: number;
  weightGrad: number;
  latency: number;
  transfer: number;
  mode: LinkMode;
  /** Makes a fresh jitter for one row, so that every schedule meets the same luck. Default: none. */
  jitter?: () => Jitter;
}

export interface ComparedSchedule {
  name: string;
  result: Simulation;
  /** Seconds of a step: the makespan, but for schedules without a flush, which have a steady pace. */
  seconds: number;
  /** Step time over the compute of one device: 1 is perfect. */
  slowdown: number;
  /** Most activations of a device, in units of one whole stage and micro-batch. */
  activations: number;
  /** Whether each step waits for the one before; if not, gradients are a step old. */
  flush: boolean;
  /** Copies of the weights that each device holds: stages, or versions. */
  weights: number;
}

export interface RuledOut {
  name: string;
  reason: string;
}

/** Chunks per device of the looped schedules in the comparison; more only adds latency. */
const CHUNKS = 2;
/** Steps of an asynchronous run: its pace is that of the last ones, after the fill. */
const ASYNC_STEPS = 4;

/** How an order's times relate to one stage and one micro-batch. */
interface Scale {
  /** Sequences of an operation as a share of a micro-batch's. Default 1. */
  share?: number;
}

/** All schedules in one setting, textbook ones first, the peers' own (`dynamic`) last. */
export function compareSchedules(setting: Setting): (ComparedSchedule | RuledOut)[] {
  const { stages: P, microBatches: N } = setting;
  const aware = latencyAwareWarmUp(P, workOf(setting), setting.latency + setting.transfer);
  return [
    staticRow("gpipe", setting, () => gpipe(P, N)),
    staticRow("1f1b", setting, () => oneForwardOneBackward(P, N)),
    staticRow("1f1b, latency-aware", setting, () => oneForwardOneBackward(P, N, aware)),
    staticRow(`interleaved, ${CHUNKS} chunks`, setting, () => interleaved(P, N, CHUNKS)),
    staticRow(`breadth-first, ${CHUNKS} chunks`, setting, () => breadthFirst(P, N, CHUNKS)),
    staticRow("chimera", setting, () => chimera(P, N)),
    staticRow("chimera, 2 pairs", setting, () => chimera(P, N, { pairs: 2 })),
    staticRow("chimera, forward doubling", setting, () => chimeraForwardDoubling(P, N)),
    staticRow("chimera, backward halving", setting, () => chimeraBackwardHalving(P, N), { share: 1 / 2 }),
    staticRow("zb-h1", setting, () => zbH1(P, N)),
    staticRow("zb-h2", setting, () => zbH2(P, N)),
    staticRow("zb-v", setting, () => zbV(P, N)),
    // A GPU of the web has one queue, so nothing overlaps and a pair is one operation after the other.
    staticRow("dualpipe", setting, () => dualPipe(P, N, { paired: false })),
    staticRow(
      "2bw, asynchronous",
      setting,
      () => pipeDream2bw(P, N, { steps: ASYNC_STEPS, warmUp: (p) => Math.min(N, aware(p)) }),
    ),
    dynamicRow("dynamic, fused backward", setting, { fusedBackward: true }),
    dynamicRow("dynamic", setting, {}),
    dynamicRow("dynamic, every slot", setting, { everySlot: true }),
    mirroredRow(setting),
  ];
}

function staticRow(
  name: string,
  setting: Setting,
  emit: () => Schedule,
  scale: Scale = {},
): ComparedSchedule | RuledOut {
  let schedule: Schedule;
  try {
    schedule = emit();
  } catch (error) {
    if (error instanceof ShoalError && error.code === "bad-config") return { name, reason: error.message };
    throw error;
  }
  const { share = 1 } = scale;
  const chunks = schedule.stages / schedule.devices;
  const seconds = secondsOf(setting, share / chunks);
  const result = simulate(schedule, seconds, { ...setting, transfer: setting.transfer * share }, {
    ...(setting.jitter === undefined ? {} : { jitter: setting.jitter() }),
  });
  const weights = schedule.placement.length + (schedule.asynchronous?.delay ?? 0);
  return rowOf(name, setting, { result, unit: share / chunks, weights, schedule });
}

/** `everySlot`: memory holds the whole step, so nothing but the inputs keeps a forward waiting. */
function dynamicRow(
  name: string,
  setting: Setting,
  { fusedBackward = false, everySlot = false }: { fusedBackward?: boolean; everySlot?: boolean },
): ComparedSchedule {
  const { stages: P, microBatches: N, latency, transfer } = setting;
  const filled = (count: number, value: number) => new Array<number>(count).fill(value);
  const hops = filled(P - 1, latency + transfer);
  const covering = inflightCaps(filled(P, workOf(setting)), hops, N, { transfers: filled(P - 1, transfer) });
  const caps = everySlot ? filled(P, N) : covering;
  // A weight gradient that waits keeps its activations, so every stage may hold as many as the first one.
  const slots = fusedBackward ? caps : filled(P, caps[0]!);
  const result = simulatePipeline("dynamic", singleReplicas(N, caps, slots), {
    ...{ seconds: secondsOf(setting, 1), network: setting, fusedBackward },
    ...(setting.jitter === undefined ? {} : { jitter: setting.jitter() }),
  });
  return rowOf(name, setting, { result, unit: 1, weights: 1 });
}

/** The dynamic order with two stages a peer, half of the micro-batches up the line, and no more activations than with one stage. */
function mirroredRow(setting: Setting): ComparedSchedule {
  const { stages: P, microBatches: N, latency, transfer } = setting;
  const passes = Array.from(
    { length: P },
    (_, s) => P - s + 2 * (P - 1 - s) * (latency + transfer) / workOf(setting),
  );
  const hops = new Array<number>(P - 1).fill(latency + transfer);
  const transfers = new Array<number>(P - 1).fill(transfer);
  const [covering] = inflightCaps(new Array<number>(P).fill(workOf(setting)), hops, N, { transfers });
  const halves = [0, 1].map((rest) => Array.from({ length: N }, (_, m) => m).filter((m) => m % 2 === rest));
  const stages = slopedSlots(passes, covering! / 2).map((slots, s): SimulatedStage => {
    const lone = 2 * s + 1 === P;
    return {
      ...{ inflight: lone ? covering! : slots, slots: lone ? covering! : slots },
      replicas: lone ? [halves.flat().toSorted((a, b) => a - b)] : halves,
      devices: lone ? [s] : [s, P - 1 - s],
    };
  });
  const result = simulatePipeline("dynamic", stages, {
    ...{ seconds: secondsOf(setting, 1), network: setting },
    ...(setting.jitter === undefined ? {} : { jitter: setting.jitter() }),
  });
  return rowOf("dynamic, mirrored", setting, { result, unit: 1, weights: 2 });
}

function rowOf(
  name: string,
  setting: Setting,
  of: { result: Simulation; unit: number; weights: number; schedule?: Schedule },
): ComparedSchedule {
  const perStep = of.schedule?.asynchronous?.perStep;
  const seconds = perStep === undefined ? of.result.makespan : pace(of.result, perStep);
  return {
    name,
    result: of.result,
    seconds,
    slowdown: seconds / (setting.microBatches * workOf(setting)),
    activations: Math.max(...of.result.peak) * of.unit,
    flush: perStep === undefined,
    weights: of.weights,
  };
}

/** Seconds of a step once the pipeline is full: between the ends of the first and of the last but one step. */
function pace(result: Simulation, perStep: number): number {
  const endOf = (step: number) =>
    Math.max(
      ...result.trace.filter((entry) => Math.floor(entry.microBatch / perStep) === step).map(({ end }) =>
        end
      ),
    );
  return (endOf(ASYNC_STEPS - 2) - endOf(0)) / (ASYNC_STEPS - 2);
}

function secondsOf(setting: Setting, unit: number): { F: number; B: number; W: number } {
  return { F: setting.forward * unit, B: setting.backward * unit, W: setting.weightGrad * unit };
}

function workOf(setting: Setting): number {
  return setting.forward + setting.backward + setting.weightGrad;
}
