// The newest traced step as data: one row per stage and peer, bars over time, and the same in words. Pure; draws nothing. What
// must stay true: never more bars than BARS_MAX, and no bar whose meaning is in its colour alone.
import type { RunStatus, StepTrace, TraceLane, TraceOp } from "../peer/wire/status.ts";
import { count, duration, plural } from "./format.ts";

/** More would slow the page down, and could not be told apart. */
export const BARS_MAX = 2_000;
/** A digit of a label in pixels, and what is kept free beside it. */
const DIGIT_PX = 7.4;
const MARGIN_PX = 3;
/** Width of a row's bars on a phone, and at least on a wide screen. */
const ROW_PX = { always: 290, wide: 720 };
/** Shorter waits are the pauses of timers, not of the pipeline. */
const WAIT_SHOWN_MS = 1;
const TICKS_MAX = 6;
/** Further right a label would leave a phone's screen. */
const TICK_NARROW_MAX = 0.82;

export type BarKind = "F" | "B" | "W" | "link" | "idle" | "elsewhere";

const KINDS_IN_ORDER: BarKind[] = ["F", "B", "W", "link", "idle", "elsewhere"];

export interface GanttBar {
  kind: BarKind;
  /** Share of the width, 0 to 1. */
  x: number;
  width: number;
  /** Number of the micro-batch; empty where none is drawn. */
  label: string;
  /** "always", or "wide" where the label fits on a wide screen only. */
  shown: "always" | "wide" | "never";
}

export interface GanttRow {
  key: string;
  stage: string;
  peer: string;
  bars: GanttBar[];
  /** The whole row in words. */
  text: string;
  /** For the table: mean times of F, B and W, waits, idle share. */
  cells: string[];
}

export interface GanttView {
  /** Predicted against measured, in one line. */
  summary: string;
  rows: GanttRow[];
  /** `wide`: its label fits on a wide screen only. */
  ticks: { x: number; label: string; wide: boolean }[];
  /** Kinds that occur. */
  kinds: BarKind[];
  /** Where the step was committed and where the simulator saw its end. */
  committed: number;
  predicted: number | null;
  /** Something was left out of the picture; empty if nothing was. */
  note: string;
}

/** Null while no step has been traced. */
export function ganttView(trace: StepTrace | null): GanttView | null {
  if (trace === null || trace.lanes.length === 0) return null;
  const whole = Math.max(trace.measuredMs, trace.endMs, trace.predictedMs ?? 0, 1);
  const parts = trace.lanes.flatMap((lane) => stagesOf(lane).map((stage) => ({ lane, stage })));
  parts.sort((a, b) => a.stage - b.stage);
  const most = Math.max(1, Math.floor(BARS_MAX / parts.length));
  const drawn = parts.map((part) => ({ ...part, bars: barsOf(part.lane, part.stage, trace) }));
  const merged = drawn.some(({ bars }) => bars.length > most);
  const seen = new Set(drawn.flatMap(({ bars }) => bars.map((bar) => bar.kind)));
  return {
    summary: summaryOf(trace),
    rows: drawn.map(({ lane, stage, bars }) => ({
      ...{ key: `${stage} ${lane.peer}`, stage: `Stage ${stage + 1}`, peer: lane.peer },
      bars: (bars.length > most ? slots(bars, most, whole) : bars).map((bar) => scaled(bar, whole)),
      ...wordsOf(lane, stage, trace),
    })),
    ticks: ticksOf(whole),
    kinds: KINDS_IN_ORDER.filter((kind) => seen.has(kind)),
    committed: trace.measuredMs / whole,
    predicted: trace.predictedMs === null ? null : trace.predictedMs / whole,
    note: noteOf(trace, merged),
  };
}

function stagesOf({ ops }: TraceLane): number[] {
  return [...new Set(ops.map((op) => op.stage))];
}

/** One line for the page and for the readings of the board. */
export function summaryOf(
  { step, measuredMs, predictedMs, bubble }: NonNullable<RunStatus["lastStep"]> | StepTrace,
) {
  const took = `Step ${count(step)} took ${duration(measuredMs)}`;
  const idle = `Computing peers were idle for ${Math.round(bubble * 100)} % of it.`;
  if (predictedMs === null) return `${took}; nothing was predicted yet. ${idle}`;
  const off = predictedMs > 0 ? Math.round((measuredMs / predictedMs - 1) * 100) : 0;
  const compared = off === 0 ? "as it came" : `${Math.abs(off)} % ${off > 0 ? "less" : "more"}`;
  return `${took}; ${duration(predictedMs)} were predicted, ${compared}. ${idle}`;
}

interface Span {
  kind: BarKind;
  startMs: number;
  endMs: number;
  microBatch: number | null;
}

/** Operations of the stage, and what the peer did between them, from the round's opening to the last operation of all. */
function barsOf({ ops }: TraceLane, stage: number, trace: StepTrace): Span[] {
  const spans: Span[] = [];
  let at = 0;
  for (const op of ops) {
    spans.push(...before(op, at));
    const { kind, startMs, endMs, microBatch } = op;
    if (op.stage === stage) spans.push({ kind, startMs, endMs, microBatch });
    else spans.push({ kind: "elsewhere", startMs, endMs, microBatch: null });
    at = Math.max(at, endMs);
  }
  if (trace.endMs - at > WAIT_SHOWN_MS) {
    spans.push({ kind: "idle", startMs: at, endMs: trace.endMs, microBatch: null });
  }
  return joined(spans);
}

function before({ startMs, waitMs, linkWaitMs }: TraceOp, at: number): Span[] {
  const link = Math.max(at, startMs - linkWaitMs);
  const idle = Math.max(at, startMs - waitMs);
  const spans: Span[] = [
    { kind: "idle", startMs: idle, endMs: link, microBatch: null },
    { kind: "link", startMs: link, endMs: startMs, microBatch: null },
  ];
  return spans.filter((it) => it.endMs - it.startMs > WAIT_SHOWN_MS);
}

/** Neighbours that mean the same are one bar. */
function joined(spans: Span[]): Span[] {
  const out: Span[] = [];
  for (const span of spans) {
    const last = out.at(-1);
    if (last?.kind === "elsewhere" && span.kind === "elsewhere") last.endMs = span.endMs;
    else out.push({ ...span });
  }
  return out;
}

/** A row with too many bars is cut into equal slots, each drawn as what takes most of it. */
function slots(spans: Span[], most: number, whole: number): Span[] {
  const width = whole / most;
  const shares = Array.from({ length: most }, () => new Map<BarKind, number>());
  for (const { kind, startMs, endMs } of spans) {
    for (let slot = Math.floor(startMs / width); slot < most && slot * width < endMs; slot++) {
      const share = Math.min(endMs, (slot + 1) * width) - Math.max(startMs, slot * width);
      shares[slot]!.set(kind, (shares[slot]!.get(kind) ?? 0) + share);
    }
  }
  return joinEqual(shares.flatMap((share, slot): Span[] => {
    const [first] = [...share].sort((a, b) => b[1] - a[1]);
    if (first === undefined) return [];
    return [{ kind: first[0], startMs: slot * width, endMs: (slot + 1) * width, microBatch: null }];
  }));
}

function joinEqual(spans: Span[]): Span[] {
  const out: Span[] = [];
  for (const span of spans) {
    const last = out.at(-1);
    if (last !== undefined && last.kind === span.kind && span.startMs - last.endMs < 1e-9) {
      last.endMs = span.endMs;
    } else out.push(span);
  }
  return out;
}

function scaled({ kind, startMs, endMs, microBatch }: Span, whole: number): GanttBar {
  const [x, width] = [startMs / whole, (endMs - startMs) / whole];
  const label = microBatch === null ? "" : String(microBatch + 1);
  const fits = (rowPx: number) => width * rowPx >= label.length * DIGIT_PX + MARGIN_PX;
  const shown = label === "" || !fits(ROW_PX.wide) ? "never" : fits(ROW_PX.always) ? "always" : "wide";
  return { kind, x, width, label, shown };
}

const KINDS = ["F", "B", "W"] as const;

function wordsOf(lane: TraceLane, stage: number, trace: StepTrace): Pick<GanttRow, "text" | "cells"> {
  const own = lane.ops.filter((op) => op.stage === stage);
  const sum = (ops: TraceOp[], of: (op: TraceOp) => number) => ops.reduce((total, op) => total + of(op), 0);
  const means = KINDS.map((kind) => {
    const ops = own.filter((op) => op.kind === kind);
    return ops.length === 0 ? 0 : sum(ops, (op) => op.endMs - op.startMs) / ops.length;
  });
  const [link, wait] = [sum(own, (op) => op.linkWaitMs), sum(own, (op) => op.waitMs)];
  const span = Math.max(1, trace.endMs - trace.startMs);
  const idle = `${Math.round(Math.max(0, 1 - lane.busyMs / span) * 100)} %`;
  const batches = plural(new Set(own.map((op) => op.microBatch)).size, "micro-batch");
  const [f, b, w] = means.map(duration);
  return {
    text: `Stage ${stage + 1} on ${lane.peer}: ${batches}, F ${f}, B ${b}, W ${w} each; ` +
      `waits ${duration(wait)}, ${duration(link)} of it for links; the computer is idle for ${idle}.`,
    cells: [batches, f!, b!, w!, duration(wait), duration(link), idle],
  };
}

/** Round times, from 0 on. */
function ticksOf(whole: number): GanttView["ticks"] {
  const rough = whole / TICKS_MAX;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5, 10].find((factor) => factor * power >= rough) ?? 10);
  const ticks: GanttView["ticks"] = [];
  for (let n = 0; n * step < whole * 0.95; n++) {
    const x = n * step / whole;
    ticks.push({ x, label: duration(n * step), wide: n % 2 === 1 || x > TICK_NARROW_MAX });
  }
  return ticks;
}

function noteOf(trace: StepTrace, merged: boolean): string {
  const dropped = trace.lanes.reduce((sum, lane) => sum + lane.dropped, 0);
  const parts = [
    merged ? "There are too many operations to draw one by one: each slice shows what took most of it." : "",
    dropped > 0 ? `The first ${plural(dropped, "operation")} found no room in the trace.` : "",
  ];
  return parts.filter((part) => part !== "").join(" ");
}
