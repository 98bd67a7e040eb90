// The end of a soak as a table and as JSON. Pure.
import type { SoakResult } from "./soak.ts";
import { type StallRow, stallRows } from "./stall.ts";

export interface SoakReport {
  benchmark: "chaos";
  seed: number;
  seconds: number;
  peerFailures: string[];
  faults: (StallRow & { stepsLost: number })[];
  summary: {
    /** No step lost that the redundancy promised to keep, the right weights, and every peer ended cleanly. */
    survived: boolean;
    /** What the run did not recover from; it then has no steps and no hashes. */
    failure: string | null;
    faults: number;
    steps: number | null;
    lost_steps: number;
    /** Steps lost by faults that take both holders of a stage. */
    lost_steps_beyond_promise: number;
    hash_equal: boolean | null;
    hash: string | null;
    hash_expected: string | null;
    peers_failed: number;
  };
}

export function reportOf(result: SoakResult, seed: number): SoakReport {
  const { seconds, injuries, comparison, peerFailures, failure } = result;
  const lost = (counted: typeof injuries) => counted.reduce((sum, injury) => sum + injury.stepsLost, 0);
  const promised = lost(injuries.filter((injury) => !injury.mayLose));
  const rows = stallRows(injuries.map(({ kind, stallMs }) => ({ kind, ms: stallMs })));
  return {
    ...{ benchmark: "chaos", seed, seconds },
    peerFailures,
    faults: rows.map((row) => ({
      ...row,
      stepsLost: lost(injuries.filter(({ kind }) => kind === row.kind)),
    })),
    summary: {
      survived: failure === null && promised === 0 && (comparison?.equal ?? false) &&
        peerFailures.length === 0,
      failure,
      faults: injuries.length,
      steps: comparison?.step ?? null,
      lost_steps: promised,
      lost_steps_beyond_promise: lost(injuries) - promised,
      hash_equal: comparison?.equal ?? null,
      hash: comparison?.found ?? null,
      hash_expected: comparison?.expected ?? null,
      peers_failed: peerFailures.length,
    },
  };
}

const COLUMNS = ["fault", "count", "stall p50 s", "p95 s", "max s", "steps lost"];

export function soakTable({ faults, summary, seconds, peerFailures }: SoakReport): string {
  const seconds2 = (ms: number) => (ms / 1000).toFixed(2);
  const cells = faults.map((row) => [
    ...[row.kind, String(row.count), seconds2(row.p50Ms), seconds2(row.p95Ms), seconds2(row.maxMs)],
    String(row.stepsLost),
  ]);
  const lines = [COLUMNS, ...cells];
  const widths = COLUMNS.map((_, column) => Math.max(...lines.map((line) => line[column]!.length)));
  const line = (parts: string[]) =>
    parts.map((part, i) => i === 0 ? part.padEnd(widths[i]!) : part.padStart(widths[i]!)).join("  ");
  return [...lines.map(line), "", ...verdict(summary, seconds), ...peerFailures].join("\n");
}

function verdict(summary: SoakReport["summary"], seconds: number): string[] {
  const { faults, steps, lost_steps, lost_steps_beyond_promise: beyond, hash, hash_expected } = summary;
  const more = beyond > 0 ? ` (and ${beyond} where both holders of a stage went)` : "";
  const counts = `${faults} faults in ${Math.round(seconds)} s, ${
    steps ?? "unknown"
  } steps, ${lost_steps} lost${more}`;
  if (summary.failure !== null) return [counts, `the run did NOT recover: ${summary.failure}`];
  return [
    counts,
    summary.hash_equal
      ? `weights and moments equal those of a run without faults: ${hash}`
      : `weights or moments DIFFER from those of a run without faults: ${hash}, not ${hash_expected}`,
  ];
}
