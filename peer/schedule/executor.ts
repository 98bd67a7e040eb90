// Decides what one replica of a stage runs next: the runtime half of the schedules, pure and incremental.
// Not a transport and not a clock: it is told what arrived and what finished. State is a plain serialisable
// object that these functions change in place; one operation runs at a time, chosen by nextOp alone.
import { assert } from "../wire/errors.ts";
import type { ScheduleId, View } from "../wire/run.ts";
import { placedOrder } from "./placed.ts";
import { fixedSpans, type StageLoad } from "./windows.ts";

/** Where this replica's stage stands in the pipeline. */
export interface StagePosition {
  first: boolean;
  last: boolean;
  /** 0-based stage number and the number of stages P. */
  index: number;
  stages: number;
}

export interface ExecutorCaps {
  /** Most forwards started whose backward is not done (K of the latency-aware schedule). */
  inflight: number;
  /** Activation slots: most forwards started whose weight gradient is not done. */
  slots: number;
  /**
   * Fixed orders only, a span of micro-batch numbers of the whole step. `1f1b`: the forward of a micro-batch
   * may precede backwards of numbers up to `span` - 1 lower. `gpipe`: size of a chunk. Default: what the caps
   * allow for a lone replica that holds every micro-batch; `progressFromView` finds the best for replicated stages.
   */
  span?: number;
  /** The replica's part of a placed schedule, in place of an order of its own, and where its operations stand in the peer's. */
  placed?: { order: StageOp[]; ranks: number[] };
}

/** F forward, B input gradient, W weight gradient of one micro-batch. */
export interface StageOp {
  kind: "F" | "B" | "W";
  microBatch: number;
}

/** Among a peer's stages: backward first (it frees memory and feeds the neighbour), then forward, then what fills gaps. */
export const KIND_RANK: Readonly<Record<StageOp["kind"], number>> = { B: 0, F: 1, W: 2 };

/** What to run now, with the activation slot it uses (0 .. slots-1): F takes it, W gives it back. */
export interface NextOp extends StageOp {
  slot: number;
}

/** One micro-batch at this replica. `done` is the last operation finished. */
export interface Cell {
  microBatch: number;
  activation: boolean;
  gradient: boolean;
  done: "none" | "F" | "B" | "W";
  /** Held from F to W; null otherwise. */
  slot: number | null;
}

/** Plain data: may be cloned, stored and compared. */
export interface Progress {
  schedule: ScheduleId;
  first: boolean;
  last: boolean;
  inflightCap: number;
  slots: number;
  /** Ascending by micro-batch; numbers need not be dense, other replicas hold the rest. */
  cells: Cell[];
  /** The whole order of a fixed schedule; null if dynamic. */
  order: StageOp[] | null;
  /** Of a placed schedule: where each operation stands in the order of all of the peer's stages. */
  ranks: number[] | null;
  forwards: number;
  backwards: number;
  weightGrads: number;
}

/**
 * State of a replica before its first operation of a step.
 * Fixed orders are cut from one order of the whole stage by global micro-batch number (never by position in
 * this replica's list), because replicas that each count their own list can wait for one another for ever.
 * They stay free of deadlock if the spans never grow from one stage to the next (`1f1b`), or are equal
 * (`gpipe`); `progressFromView` sees to it. `dynamic` never deadlocks, whatever the caps.
 * @param microBatches ascending, distinct, any subset of the step's
 */
export function createProgress(
  schedule: ScheduleId,
  stage: StagePosition,
  microBatches: readonly number[],
  caps: ExecutorCaps,
): Progress {
  const cap = Math.min(caps.inflight, caps.slots);
  assert(Number.isInteger(cap) && cap >= 1, `caps must be whole and at least 1, got ${cap}`);
  assert(isAscending(microBatches), `micro-batches must ascend, got ${microBatches.join(",")}`);
  const { placed, span = defaultSpan(schedule, stage, cap) } = caps;
  const order = placed?.order ?? fixedOrder(schedule, microBatches, span);
  assert(peakHeld(order ?? []) <= cap, `a span of ${caps.span} needs more than ${cap} slots`);
  return {
    schedule,
    first: stage.first,
    last: stage.last,
    inflightCap: caps.inflight,
    slots: caps.slots,
    cells: microBatches.map((microBatch) => emptyCell(microBatch)),
    order,
    ranks: placed?.ranks ?? null,
    forwards: 0,
    backwards: 0,
    weightGrads: 0,
  };
}

/**
 * State of the replica `peer` of stage `stageIndex`, with spans computed from the whole view, so that every
 * peer of the view gets orders that fit together. Caps are the stage's `inflight` (forwards and slots alike).
 * A peer that holds no replica of the stage gets an empty, finished progress.
 */
export function progressFromView(view: View, stageIndex: number, peer: string): Progress {
  const stage = view.stages[stageIndex];
  assert(stage !== undefined, `no stage ${stageIndex} in a view of ${view.stages.length}`);
  const replica = stage.replicas.find((candidate) => candidate.peer === peer);
  const caps: ExecutorCaps = { inflight: stage.inflight, slots: stage.inflight };
  const span = fixedSpans(view.schedule, loadOf(view))?.[stageIndex];
  if (span !== undefined) caps.span = span;
  const placed = placedOrder(view, stageIndex, peer);
  if (placed !== null) caps.placed = placed;
  const stages = view.stages.length;
  const position = { first: stageIndex === 0, last: stageIndex === stages - 1, index: stageIndex, stages };
  return createProgress(view.schedule, position, replica?.microBatches ?? [], caps);
}

/**
 * Takes further micro-batches over in the middle of a step, after a departure. What is fixed about the order ends here:
 * the rest of the step runs in the dynamic order, which never deadlocks, from whatever state the replicas are in.
 */
export function takeOver(progress: Progress, microBatches: readonly number[]): void {
  const known = new Set(progress.cells.map((cell) => cell.microBatch));
  for (const microBatch of microBatches) {
    if (!known.has(microBatch)) progress.cells.push(emptyCell(microBatch));
  }
  progress.cells.sort((a, b) => a.microBatch - b.microBatch);
  progress.order = null;
  progress.ranks = null;
}

/** An activation is here. False, and nothing changes, if it is not this replica's, or was known already. */
export function activationArrived(progress: Progress, microBatch: number): boolean {
  const cell = cellOf(progress, microBatch);
  if (cell === null || cell.activation || progress.first) return false;
  cell.activation = true;
  return true;
}

/** An output gradient is here. False, and nothing changes, if it is not this replica's, or was known already. */
export function gradientArrived(progress: Progress, microBatch: number): boolean {
  const cell = cellOf(progress, microBatch);
  if (cell === null || cell.gradient || progress.last) return false;
  cell.gradient = true;
  return true;
}

/** The operation finished; it must be the one that nextOp gave. Anything else is our own mistake and throws. */
export function opDone(progress: Progress, op: StageOp): void {
  const cell = cellOf(progress, op.microBatch);
  assert(cell !== null && cell.done === doneBefore(op.kind), `${op.kind}${op.microBatch} cannot be done now`);
  assert(isReady(progress, cell, op.kind), `${op.kind}${op.microBatch} finished before its input arrived`);
  if (progress.order !== null) {
    const due = progress.order[opsDone(progress)];
    assert(sameOp(due, op), `${op.kind}${op.microBatch} finished out of order`);
  }
  if (op.kind === "F") {
    cell.slot = lowestFreeSlot(progress);
    progress.forwards++;
  } else if (op.kind === "B") progress.backwards++;
  else {
    cell.slot = null;
    progress.weightGrads++;
  }
  cell.done = op.kind;
}

/**
 * The one decision: what an idle replica runs now, or null to wait for an arrival (or because all is done).
 * Reads only; asked again before opDone, it may answer differently after an arrival, so ask when idle.
 * Source of the dynamic rule: ready B first, else F within the caps, else W, each lowest micro-batch first.
 */
export function nextOp(progress: Progress): NextOp | null {
  if (progress.order !== null) return nextInOrder(progress, progress.order[opsDone(progress)]);
  return nextDynamic(progress);
}

/**
 * Where the operation that is due next stands in the order of the whole peer; null if there is no such order, or nothing is
 * left. A peer with several stages waits for the lowest of them.
 */
export function dueRank(progress: Progress): number | null {
  return progress.ranks?.[opsDone(progress)] ?? null;
}

/** Whether the replica has run F, B and W of each of its micro-batches. */
export function finished(progress: Progress): boolean {
  return progress.weightGrads === progress.cells.length;
}

/** Forwards done whose backward is not. */
export function inFlight(progress: Progress): number {
  return progress.forwards - progress.backwards;
}

/** Activation slots in use: forwards done whose weight gradient is not. */
export function slotsHeld(progress: Progress): number {
  return progress.forwards - progress.weightGrads;
}

function nextDynamic(progress: Progress): NextOp | null {
  const backward = findReady(progress, "B");
  if (backward !== null) return toNext(progress, backward, "B");
  const mayForward = inFlight(progress) < progress.inflightCap && slotsHeld(progress) < progress.slots;
  const forward = mayForward ? findReady(progress, "F") : null;
  if (forward !== null) return toNext(progress, forward, "F");
  const weightGrad = findReady(progress, "W");
  return weightGrad === null ? null : toNext(progress, weightGrad, "W");
}

function nextInOrder(progress: Progress, due: StageOp | undefined): NextOp | null {
  if (due === undefined) return null;
  const cell = cellOf(progress, due.microBatch);
  assert(cell !== null, `order names micro-batch ${due.microBatch}, which is not held`);
  return isReady(progress, cell, due.kind) ? toNext(progress, cell, due.kind) : null;
}

function toNext(progress: Progress, cell: Cell, kind: StageOp["kind"]): NextOp {
  const slot = kind === "F" ? lowestFreeSlot(progress) : cell.slot;
  assert(slot !== null, `${kind}${cell.microBatch} holds no slot`);
  return { kind, microBatch: cell.microBatch, slot };
}

function findReady(progress: Progress, kind: StageOp["kind"]): Cell | null {
  return progress.cells.find((cell) => isReady(progress, cell, kind)) ?? null;
}

/** The dependency rules at one stage: F needs the activation, B its own F and the gradient, W its own B. */
function isReady(progress: Progress, cell: Cell, kind: StageOp["kind"]): boolean {
  if (cell.done !== doneBefore(kind)) return false;
  if (kind === "F") return progress.first || cell.activation;
  if (kind === "B") return progress.last || cell.gradient;
  return true;
}

function doneBefore(kind: StageOp["kind"]): Cell["done"] {
  if (kind === "F") return "none";
  return kind === "B" ? "F" : "B";
}

function lowestFreeSlot(progress: Progress): number {
  const used = new Array<boolean>(progress.slots).fill(false);
  for (const { slot } of progress.cells) if (slot !== null) used[slot] = true;
  const free = used.indexOf(false);
  assert(free >= 0, `no free slot of ${progress.slots}`);
  return free;
}

function opsDone(progress: Progress): number {
  return progress.forwards + progress.backwards + progress.weightGrads;
}

function cellOf(progress: Progress, microBatch: number): Cell | null {
  return progress.cells.find((cell) => cell.microBatch === microBatch) ?? null;
}

function emptyCell(microBatch: number): Cell {
  return { microBatch, activation: false, gradient: false, done: "none", slot: null };
}

function sameOp(a: StageOp | undefined, b: StageOp): boolean {
  return a !== undefined && a.kind === b.kind && a.microBatch === b.microBatch;
}

function isAscending(numbers: readonly number[]): boolean {
  return numbers.every((value, i) => value >= 0 && (i === 0 || value > numbers[i - 1]!));
}

function defaultSpan(schedule: ScheduleId, stage: StagePosition, cap: number): number {
  return schedule === "1f1b" ? Math.min(stage.stages - stage.index, cap) : cap;
}

function loadOf(view: View): StageLoad[] {
  return view.stages.map((stage) => ({
    cap: stage.inflight,
    lists: stage.replicas.map((replica) => replica.microBatches),
  }));
}

/** Null if dynamic, and for a placed schedule whose placement the view is not. */
function fixedOrder(schedule: ScheduleId, microBatches: readonly number[], span: number): StageOp[] | null {
  if (schedule !== "gpipe" && schedule !== "1f1b") return null;
  assert(Number.isInteger(span) && span >= 1, `span must be whole and at least 1, got ${span}`);
  return schedule === "gpipe" ? gpipeOrder(microBatches, span) : order1f1b(microBatches, span);
}

/** Chunk after chunk: forwards ascending, then backwards descending (frees the newest activations first). */
function gpipeOrder(microBatches: readonly number[], chunk: number): StageOp[] {
  const order: StageOp[] = [];
  for (const chunkList of groupBy(microBatches, (microBatch) => Math.floor(microBatch / chunk))) {
    for (const microBatch of chunkList) order.push({ kind: "F", microBatch });
    for (const microBatch of chunkList.toReversed()) pushBackward(order, microBatch);
  }
  return order;
}

/** F(a) stands before B(b) exactly if a < b + span: textbook 1F1B of the whole stage, cut to this list. */
function order1f1b(microBatches: readonly number[], span: number): StageOp[] {
  const order: StageOp[] = [];
  let next = 0;
  for (const microBatch of microBatches) {
    for (; next < microBatches.length && microBatches[next]! < microBatch + span; next++) {
      order.push({ kind: "F", microBatch: microBatches[next]! });
    }
    pushBackward(order, microBatch);
  }
  return order;
}

function pushBackward(order: StageOp[], microBatch: number): void {
  order.push({ kind: "B", microBatch }, { kind: "W", microBatch });
}

/** Most activations held at once by a fixed order. */
function peakHeld(order: readonly StageOp[]): number {
  let held = 0;
  let peak = 0;
  for (const op of order) {
    if (op.kind === "F") held++;
    if (op.kind === "W") held--;
    peak = Math.max(peak, held);
  }
  return peak;
}

function groupBy(numbers: readonly number[], keyOf: (value: number) => number): number[][] {
  const groups = new Map<number, number[]>();
  for (const value of numbers) {
    const group = groups.get(keyOf(value));
    if (group === undefined) groups.set(keyOf(value), [value]);
    else group.push(value);
  }
  return [...groups.values()];
}
