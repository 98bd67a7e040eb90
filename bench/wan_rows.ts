// Which runs the bench makes, what a finished one says, and what all of them say together. It starts nothing.
import { encodeTensor } from "../peer/codec/codec.ts";
import { CHUNK_HEADER_BYTES } from "../peer/net/chunks.ts";
import { followedSchedule } from "../peer/schedule/placed.ts";
import { directionsOf, emitSchedule, isPlaced, stagesFor } from "../peer/schedule/catalogue.ts";
import { FRAME_HEADER_BYTES } from "../peer/wire/frame.ts";
import { type RunConfig, SCHEDULE_IDS, type ScheduleId, type View } from "../peer/wire/run.ts";
import { ownerOf } from "../peer/wire/view.ts";
import { aligned, median, sum } from "./support.ts";
import { type LayerMs, stageMs } from "./wan_engine.ts";
import type { WireOptions } from "./wan_links.ts";
import { commitOf, endOf, type Overheads, predict } from "./wan_predict.ts";
import { latenessOf, MODEL, type RunResult, type Step } from "./wan_run.ts";

/** How all links of a run are. */
export interface Setting {
  name: string;
  wire: WireOptions;
}

/** Bytes per second of 20 Mb/s. */
const SLOW_BYTES_PER_S = 20e6 / 8;

export const SETTINGS: readonly Setting[] = [
  { name: "0ms", wire: { delayMs: 0 } },
  { name: "10ms", wire: { delayMs: 10 } },
  { name: "50ms", wire: { delayMs: 50 } },
  { name: "100ms", wire: { delayMs: 100 } },
  { name: "50ms-20Mb/s", wire: { delayMs: 50, bytesPerS: SLOW_BYTES_PER_S } },
];

/** A schedule as peers are to run it. */
export interface Case {
  name: string;
  schedule: RunConfig["schedule"];
  fused: boolean;
  /** Twice as many stages as peers: two each, in the placement that the planner finds the quickest. */
  looped?: boolean;
}

const TEXTBOOK: Case = { name: "1f1b-fused", schedule: "1f1b", fused: true };

const LOOPED: Case = { name: "dynamic-looped", schedule: "dynamic", fused: false, looped: true };

/** Whichever the planner takes. */
const CHOSEN: Case = { name: "auto", schedule: "auto", fused: false };

/**
 * Every schedule that peers know; the dynamic order with two stages a peer, as looped and mirrored schedules have; and the textbook's 1F1B,
 * whose gradient leaves only when B and W are done; and the one that the planner takes.
 */
export const CASES: readonly Case[] = [
  ...SCHEDULE_IDS.map((schedule) => ({ name: schedule, schedule, fused: false })),
  LOOPED,
  TEXTBOOK,
  CHOSEN,
];

/** Why peers cannot run it with these sizes; null if they can. */
export function ruledOut({ schedule }: Case, peers: number, microBatches: number): string | null {
  if (!isPlaced(schedule)) return null;
  const stages = stagesFor(schedule, peers, 0);
  if (typeof stages === "string") return stages;
  const directions = directionsOf(schedule, 1);
  const order = emitSchedule(schedule, { devices: peers, stages, microBatches, directions });
  return typeof order === "string" ? order : null;
}

/** The paper's own case, for its formula: as many micro-batches as devices, no latency, backward twice the forward. */
export const CHIMERA_CASE: Case = { name: "chimera-paper", schedule: "chimera", fused: true };

/** Idle share of Chimera at N = D with BW = 2F (Li & Hoefler 2021, table 2). */
export function chimeraBubble(devices: number): number {
  return (devices - 2) / (1.5 * devices + devices - 2);
}

export interface Row {
  setting: string;
  schedule: string;
  /** What peers followed. */
  followed: ScheduleId;
  peers: number;
  microBatches: number;
  /** From the first operation of a step to the first of the next one: the median step. */
  stepMs: number;
  predictedMs: number;
  /** (measured - predicted) / predicted. */
  error: number;
  tokensPerS: number;
  /** The same work on as many peers that never wait. */
  idealMs: number;
  /** Idle share of the peers, from the first operation to the last one's end; a commit is not in it. */
  bubble: number;
  predictedBubble: number;
  commitMs: number;
  /** Mean duration of operations over what they were told, less 1: what the machine's other work added. */
  late: number;
  lagP95Ms: number;
  /** Steps that were measured and not calm. */
  disturbed: number;
}

export interface Skipped {
  setting: string;
  schedule: string;
  reason: string;
}

export interface Measured {
  setting: Setting;
  case: Case;
  layerMs: LayerMs;
  result: RunResult;
  overheads: Overheads;
}

export function rowOf({ setting, case: { name, fused }, layerMs, result, overheads }: Measured): Row {
  const { view, steps, tokensPerStep, lag } = result;
  const microBatches = microBatchesOf(view);
  const peers = new Set(steps[0]!.ops.map((op) => op.peer)).size;
  const bytes = { messageBytes: messageBytes(), sumBytes: sumBytes(view, result.bytesPerStep) };
  const said = predict(view, { layerMs, fused, wire: setting.wire, overheads, ...bytes });
  const stepMs = median(steps.map((step) => step.nextMs - step.ops[0]!.startMs));
  const late = median(steps.map((step) => latenessOf(step, view, { layerMs, fused })));
  const told = sum(view.stages.map(({ firstLayer, endLayer }) => {
    return sum(Object.values(stageMs(layerMs, endLayer - firstLayer, fused))) * microBatches;
  }));
  return {
    ...{ setting: setting.name, schedule: name, peers, microBatches, stepMs },
    followed: followedSchedule(view),
    ...{ predictedMs: said.stepMs, error: stepMs / said.stepMs - 1, predictedBubble: said.bubble },
    ...{ tokensPerS: tokensPerStep / (stepMs / 1000), idealMs: told / peers, late },
    bubble: median(steps.map((step) => bubbleOf(step, peers))),
    ...{ commitMs: median(steps.map(commitOf)), lagP95Ms: lag.p95Ms, disturbed: result.disturbed },
  };
}

function bubbleOf(step: Step, peers: number): number {
  const worked = sum(step.ops.map((op) => op.endMs - op.startMs));
  return 1 - worked / (peers * (endOf(step) - step.ops[0]!.startMs));
}

function microBatchesOf(view: View): number {
  return sum(view.stages[0]!.replicas.map((replica) => replica.microBatches.length));
}

/** A boundary tensor's frame, which fits one chunk. */
function messageBytes(): number {
  const { batch_size, block_size, n_embd, codec_forward } = MODEL;
  const rows = batch_size * block_size;
  const { payload } = encodeTensor(codec_forward, new Float32Array(rows * n_embd), rows, n_embd);
  return payload.length + FRAME_HEADER_BYTES + CHUNK_HEADER_BYTES;
}

/** What is on the wires beside boundary tensors, per message of a sum; pings are too few to matter. */
function sumBytes(view: View, bytesPerStep: number): number {
  const computing = view.stages.map(({ replicas }) =>
    replicas.filter(({ microBatches }) => microBatches.length > 0).length
  );
  const sums = sum(
    computing.map((count, s) => count > 1 ? count * (view.stages[s]!.replicas.length - 1) : 0),
  );
  return sums === 0 ? 0 : Math.max(0, bytesPerStep - boundaries(view) * messageBytes()) / sums;
}

/** Boundary tensors of a step that go from one peer to another. */
function boundaries({ stages }: View): number {
  const count = microBatchesOf({ stages } as View);
  let found = 0;
  for (let s = 0; s + 1 < stages.length; s++) {
    for (let m = 0; m < count; m++) {
      if (ownerOf(stages[s]!, m, count) !== ownerOf(stages[s + 1]!, m, count)) found += 2;
    }
  }
  return found;
}

export interface Summary {
  /** Tokens/s of the dynamic order over those of the textbook's 1F1B, and of the one that peers run as `1f1b`. */
  dynamic_vs_1f1b_50ms: number | null;
  dynamic_vs_live_1f1b_50ms: number | null;
  /** The better of as many and twice as many stages as peers, over the best other schedule; and with as many. */
  dynamic_vs_best_0ms: number | null;
  dynamic_line_vs_best_0ms: number | null;
  best_0ms: string | null;
  /** Tokens/s of the schedule that the planner took over those of the best published one, and which it was. */
  auto_vs_best_0ms: number | null;
  auto_0ms: string | null;
  /** Tokens/s of the asynchronous schedule, which is another training, over those of the dynamic order. */
  delayed_vs_dynamic_50ms: number | null;
  /** Of all rows, real processes among them. */
  worst_prediction_error: number | null;
  /** |measured - formula| / formula of Chimera's idle share at N = D. */
  chimera_bubble_error: number | null;
}

export function summarise(rows: readonly Row[], real: readonly { error: number }[] = []): Summary {
  const speed = (setting: string, schedule: string) =>
    rows.find((row) => row.setting === setting && row.schedule === schedule)?.tokensPerS ?? null;
  const ratio = (a: number | null, b: number | null) => a === null || b === null ? null : a / b;
  const dynamic = ["dynamic", LOOPED.name];
  const others = rows.filter((row) =>
    row.setting === "0ms" && ![...dynamic, "2bw", CHOSEN.name, CHIMERA_CASE.name].includes(row.schedule)
  );
  const best = others.toSorted((a, b) => b.tokensPerS - a.tokensPerS)[0] ?? null;
  const near = dynamic.map((name) => speed("0ms", name)).filter((it) => it !== null);
  const paper = rows.find((row) => row.schedule === CHIMERA_CASE.name) ?? null;
  const errors = [...rows, ...real].map(({ error }) => Math.abs(error));
  return {
    dynamic_vs_1f1b_50ms: ratio(speed("50ms", "dynamic"), speed("50ms", TEXTBOOK.name)),
    dynamic_vs_live_1f1b_50ms: ratio(speed("50ms", "dynamic"), speed("50ms", "1f1b")),
    dynamic_vs_best_0ms: near.length === 0 ? null : ratio(Math.max(...near), best?.tokensPerS ?? null),
    dynamic_line_vs_best_0ms: ratio(speed("0ms", "dynamic"), best?.tokensPerS ?? null),
    best_0ms: best?.schedule ?? null,
    auto_vs_best_0ms: ratio(speed("0ms", CHOSEN.name), best?.tokensPerS ?? null),
    auto_0ms: rows.find((row) => row.setting === "0ms" && row.schedule === CHOSEN.name)?.followed ?? null,
    delayed_vs_dynamic_50ms: ratio(speed("50ms", "2bw"), speed("50ms", "dynamic")),
    worst_prediction_error: errors.length === 0 ? null : Math.max(...errors),
    chimera_bubble_error: paper === null ? null : Math.abs(paper.bubble / chimeraBubble(paper.peers) - 1),
  };
}

const HEADER = ["links", "schedule", "step ms", "simulated", "error", "tokens/s", "of ideal", "bubble"];
const MORE = ["simulated", "commit ms", "ops late", "lag p95 ms", "disturbed"];

export function table(rows: readonly Row[]): string {
  const percent = (value: number) => `${(100 * value).toFixed(1)} %`;
  const cells = rows.map((row) => [
    ...[row.setting, nameOf(row), row.stepMs.toFixed(0), row.predictedMs.toFixed(0), percent(row.error)],
    ...[row.tokensPerS.toFixed(0), (row.stepMs / row.idealMs).toFixed(2), percent(row.bubble)],
    ...[percent(row.predictedBubble), row.commitMs.toFixed(0), percent(row.late), row.lagP95Ms.toFixed(1)],
    String(row.disturbed),
  ]);
  return aligned([[...HEADER, ...MORE], ...cells]).join("\n");
}

function nameOf({ schedule, followed }: Row): string {
  return schedule === CHOSEN.name ? `${schedule}: ${followed}` : schedule;
}
