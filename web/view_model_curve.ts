// The loss curve as data: columns for the plot, one sentence and a small table for everyone who does not see it.
// Pure. The sentence and the table say the same as the picture.
import type { LossPoint } from "../peer/wire/status.ts";
import { count, loss, NOT_YET } from "./format.ts";

/** More points than pixels cost time at every update and show nothing. */
export const CURVE_POINTS_MAX = 1000;
/** The table beside the plot is for reading aloud; more rows would not be read. */
export const CURVE_ROWS_MAX = 12;

export interface CurveRow {
  step: string;
  train: string;
  val: string;
}

export interface CurveView {
  /** Steps, training losses, validation losses: three columns of equal length. */
  columns: [number[], (number | null)[], (number | null)[]];
  summary: string;
  /** Newest first. */
  rows: CurveRow[];
}

export function curveView(losses: readonly LossPoint[]): CurveView {
  const points = thin(losses);
  return {
    columns: [
      points.map((point) => point.step),
      points.map((point) => point.train ?? null),
      points.map((point) => point.val ?? null),
    ],
    summary: summarise(losses),
    rows: spread(losses).map(rowOf),
  };
}

/** Keeps every validation point and the last point; training points by an even stride. */
function thin(losses: readonly LossPoint[]): LossPoint[] {
  const stride = Math.ceil(losses.length / CURVE_POINTS_MAX);
  if (stride <= 1) return [...losses];
  const last = losses.length - 1;
  return losses.filter((point, index) => index % stride === 0 || index === last || point.val !== undefined);
}

function summarise(losses: readonly LossPoint[]): string {
  const train = losses.filter((point) => point.train !== undefined);
  const first = train[0];
  const last = train.at(-1);
  if (!first || !last) return "No loss has been measured yet.";
  const now = `Training loss ${loss(last.train)} at step ${count(last.step)}`;
  const then = first === last ? "" : `, from ${loss(first.train)} at step ${count(first.step)}`;
  const val = losses.findLast((point) => point.val !== undefined);
  return now + then + (val ? `; validation loss ${loss(val.val)} at step ${count(val.step)}.` : ".");
}

/** Even steps through the history that always end at the newest point, newest first. */
function spread(losses: readonly LossPoint[]): LossPoint[] {
  const rows: LossPoint[] = [];
  const wanted = Math.min(CURVE_ROWS_MAX, losses.length);
  for (let row = 0; row < wanted; row += 1) {
    const back = wanted === 1 ? 0 : Math.round((row * (losses.length - 1)) / (wanted - 1));
    const point = losses[losses.length - 1 - back];
    if (point) rows.push(point);
  }
  return rows;
}

function rowOf(point: LossPoint): CurveRow {
  return {
    step: count(point.step),
    train: point.train === undefined ? NOT_YET : loss(point.train),
    val: point.val === undefined ? "not measured" : loss(point.val),
  };
}
