// From what each peer tells of a step, on its own clock, to one picture: clocks placed, waits divided, sums made. Pure. What must
// stay true: no operation begins before what it needed was done, as long as the peers' clocks run at one rate.
import type { Trace, TracedOp } from "../../peer/wire/measures.ts";
import type { View } from "../../peer/wire/run.ts";
import type { StepTrace, TraceLane, TraceOp } from "../../peer/wire/status.ts";

/** Operations that a page is given in all; the earliest of each peer go first. */
const OPS_MAX = 32_768;

/** When an operation ended, on its peer's clock, ms. */
interface Made {
  peer: string;
  endMs: number;
}

type Picture = Pick<StepTrace, "startMs" | "endMs" | "bubble" | "lanes">;

/** @param lags by how much each peer's clock began later than the coordinator's at least, ms: half its round trip */
export function assembleTrace(
  view: View,
  traces: Readonly<Record<string, Trace>>,
  lags: Readonly<Record<string, number>>,
): Picture {
  const made = madeBy(traces);
  const offsets = placeClocks(view, traces, lags);
  const linkWait = (peer: string, op: TraceOp): number => {
    const source = made.get(neededBy(view, op) ?? "");
    if (source === undefined || source.peer === peer) return 0;
    const sentMs = source.endMs + offsets[source.peer]!;
    return Math.max(0, op.startMs - Math.max(sentMs, op.startMs - op.waitMs));
  };
  const lanes = Object.entries(traces).map(([peer, trace]): TraceLane => {
    const ops = trace.ops.map((op) => placed(op, offsets[peer]!)).sort((a, b) => a.startMs - b.startMs);
    for (const op of ops) op.linkWaitMs = linkWait(peer, op);
    const sum = (of: (op: TraceOp) => number) => ops.reduce((total, op) => total + of(op), 0);
    const waits = { waitMs: sum((op) => op.waitMs), linkWaitMs: sum((op) => op.linkWaitMs) };
    return { peer, ops, dropped: trace.dropped, busyMs: sum((op) => op.endMs - op.startMs), ...waits };
  });
  const startMs = lanes.reduce((least, { ops }) => Math.min(least, ops[0]?.startMs ?? Infinity), Infinity);
  const endMs = lanes.reduce((most, { ops }) => ops.reduce((m, op) => Math.max(m, op.endMs), most), 0);
  const busy = lanes.reduce((total, lane) => total + lane.busyMs, 0);
  const bubble = endMs > startMs ? Math.max(0, 1 - busy / (lanes.length * (endMs - startMs))) : 0;
  const most = Math.max(1, Math.floor(OPS_MAX / Math.max(1, lanes.length)));
  return {
    startMs: Number.isFinite(startMs) ? startMs : 0,
    endMs,
    bubble,
    lanes: lanes.map((it) => cut(it, most)),
  };
}

function cut(lane: TraceLane, most: number): TraceLane {
  const over = Math.max(0, lane.ops.length - most);
  return { ...lane, ops: lane.ops.slice(over), dropped: lane.dropped + over };
}

function placed({ kind, stage, microBatch, startUs, endUs, waitUs }: TracedOp, offset: number): TraceOp {
  const [startMs, endMs, waitMs] = [startUs / 1000 + offset, endUs / 1000 + offset, waitUs / 1000];
  return { kind, stage, microBatch, startMs, endMs, waitMs, linkWaitMs: 0 };
}

function keyOf(kind: string, stage: number, microBatch: number): string {
  return `${kind}/${stage}/${microBatch}`;
}

/** The operation of another stage whose result this one takes; null for what needs none. */
function neededBy(
  view: View,
  { kind, stage, microBatch }: Pick<TracedOp, "kind" | "stage" | "microBatch">,
): string | null {
  if (kind === "F" && stage > 0) return keyOf("F", stage - 1, microBatch);
  if (kind === "B" && stage < view.stages.length - 1) return keyOf("B", stage + 1, microBatch);
  return null;
}

function madeBy(traces: Readonly<Record<string, Trace>>): Map<string, Made> {
  const made = new Map<string, Made>();
  for (const [peer, { ops }] of Object.entries(traces)) {
    for (const { kind, stage, microBatch, endUs } of ops) {
      made.set(keyOf(kind, stage, microBatch), { peer, endMs: endUs / 1000 });
    }
  }
  return made;
}

/**
 * How much is added to each peer's times. Half the round trip first; a peer that was busy when the round was opened heard of it
 * late, which shows as a result that is used before it was made: then the user's clock is moved. Times that did happen have
 * such a placement, and each round settles one more peer of a chain.
 */
function placeClocks(
  view: View,
  traces: Readonly<Record<string, Trace>>,
  lags: Readonly<Record<string, number>>,
): Record<string, number> {
  const offsets = { ...lags };
  const gaps = gapsOf(view, traces);
  for (let round = Object.keys(traces).length; round > 0; round--) {
    let moved = false;
    for (const { from, to, ms } of gaps) {
      if (offsets[to]! >= offsets[from]! + ms) continue;
      offsets[to] = offsets[from]! + ms;
      moved = true;
    }
    if (!moved) break;
  }
  return offsets;
}

/** By how much the clock of `to` must be placed later than that of `from`, at least. */
function gapsOf(
  view: View,
  traces: Readonly<Record<string, Trace>>,
): { from: string; to: string; ms: number }[] {
  const made = madeBy(traces);
  const gaps = new Map<string, { from: string; to: string; ms: number }>();
  for (const [to, { ops }] of Object.entries(traces)) {
    for (const op of ops) {
      const source = made.get(neededBy(view, op) ?? "");
      if (source === undefined || source.peer === to) continue;
      const ms = source.endMs - op.startUs / 1000;
      const pair = `${source.peer} ${to}`;
      if (ms > (gaps.get(pair)?.ms ?? -Infinity)) gaps.set(pair, { from: source.peer, to, ms });
    }
  }
  return [...gaps.values()];
}
