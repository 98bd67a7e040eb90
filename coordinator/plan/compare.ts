// Every schedule on the same stages and links, as rows of a table: what a step takes, idles and holds.
// Pure; it chooses nothing. A schedule that these sizes rule out is a row that says why.
import { ShoalError } from "../../peer/wire/errors.ts";
import {
  breadthFirst,
  chimera,
  gpipe,
  interleaved,
  latencyAwareWarmUp,
  oneForwardOneBackward,
} from "../../peer/schedule/emitters.ts";
import { dualPipe, zbH1, zbH2 } from "../../peer/schedule/emitters_split.ts";
import type { Schedule } from "../../peer/schedule/ir.ts";
import { inflightCaps } from "../../peer/schedule/windows.ts";
import { simulatePipeline, singleReplicas } from "./dynamic.ts";
import type { LinkMode } from "./network.ts";
import { simulate, type Simulation } from "./simulate.ts";

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
}

export interface ComparedSchedule {
  name: string;
  result: Simulation;
  /** Step time over the compute of one device: 1 is perfect. */
  slowdown: number;
  /** Most activations of a device, in units of one whole stage. */
  activations: number;
  /** Copies of the weights that each device holds. */
  weights: number;
}

export interface RuledOut {
  name: string;
  reason: string;
}

/** Chunks per device of the looped schedules in the comparison; more only adds latency. */
const CHUNKS = 2;

/** All schedules in one setting, textbook ones first, the peers' own (`dynamic`) last. */
export function compareSchedules(setting: Setting): (ComparedSchedule | RuledOut)[] {
  const { stages: P, microBatches: N } = setting;
  const hop = setting.latency + setting.transfer;
  const aware = latencyAwareWarmUp(P, workOf(setting), hop);
  return [
    staticRow("gpipe", setting, () => gpipe(P, N)),
    staticRow("1f1b", setting, () => oneForwardOneBackward(P, N)),
    staticRow("1f1b, latency-aware", setting, () => oneForwardOneBackward(P, N, aware)),
    staticRow(`interleaved, ${CHUNKS} chunks`, setting, () => interleaved(P, N, CHUNKS)),
    staticRow(`breadth-first, ${CHUNKS} chunks`, setting, () => breadthFirst(P, N, CHUNKS)),
    staticRow("chimera", setting, () => chimera(P, N)),
    staticRow("zb-h1", setting, () => zbH1(P, N)),
    staticRow("zb-h2", setting, () => zbH2(P, N)),
    // A GPU of the web has one queue, so nothing overlaps and a pair is one operation after the other.
    staticRow("dualpipe", setting, () => dualPipe(P, N, { paired: false })),
    dynamicRow("dynamic, fused backward", setting, true),
    dynamicRow("dynamic", setting, false),
  ];
}

function staticRow(name: string, setting: Setting, emit: () => Schedule): ComparedSchedule | RuledOut {
  let schedule: Schedule;
  try {
    schedule = emit();
  } catch (error) {
    if (error instanceof ShoalError && error.code === "bad-config") return { name, reason: error.message };
    throw error;
  }
  const chunks = schedule.stages / schedule.devices;
  const result = simulate(schedule, secondsOf(setting, chunks), setting);
  return rowOf(name, setting, { result, chunks, weights: schedule.placement.length });
}

function dynamicRow(name: string, setting: Setting, fusedBackward: boolean): ComparedSchedule {
  const { stages: P, microBatches: N, latency, transfer } = setting;
  const filled = (count: number, value: number) => new Array<number>(count).fill(value);
  const hops = filled(P - 1, latency + transfer);
  const caps = inflightCaps(filled(P, workOf(setting)), hops, N, { transfers: filled(P - 1, transfer) });
  // A weight gradient that waits keeps its activations, so every stage may hold as many as the first one.
  const slots = fusedBackward ? caps : filled(P, caps[0]!);
  const costs = { seconds: secondsOf(setting, 1), network: setting, fusedBackward };
  const result = simulatePipeline("dynamic", singleReplicas(N, caps, slots), costs);
  return rowOf(name, setting, { result, chunks: 1, weights: 1 });
}

function rowOf(
  name: string,
  setting: Setting,
  of: { result: Simulation; chunks: number; weights: number },
): ComparedSchedule {
  return {
    name,
    result: of.result,
    slowdown: of.result.makespan / (setting.microBatches * workOf(setting)),
    activations: Math.max(...of.result.peak) / of.chunks,
    weights: of.weights,
  };
}

function secondsOf(setting: Setting, chunks: number): { F: number; B: number; W: number } {
  return { F: setting.forward / chunks, B: setting.backward / chunks, W: setting.weightGrad / chunks };
}

function workOf(setting: Setting): number {
  return setting.forward + setting.backward + setting.weightGrad;
}
