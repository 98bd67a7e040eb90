// Sums over many simulated runs, and the table and summary made of them. Plain data that workers can send; no running here.
import type { Outcome } from "./play.ts";

/** Failing seeds that are kept per scenario; the count goes on. */
const FAILURES_KEPT = 20;

export interface Tally {
  scenario: string;
  worlds: number;
  commits: number;
  departures: number;
  generations: number;
  redone: number;
  recomputed: number;
  reduced: number;
  fenced: number;
  /** Longest virtual ms between two commits of each world, and from healing to the end. */
  worstGaps: number[];
  converged: number[];
  violations: number;
  failures: { seed: number; violation: string }[];
  hits: Record<string, number>;
  /** Real milliseconds of the worker. */
  spentMs: number;
}

export function emptyTally(scenario: string): Tally {
  return {
    ...{ scenario, worlds: 0, commits: 0, departures: 0, generations: 0, redone: 0, recomputed: 0 },
    ...{ reduced: 0, fenced: 0, worstGaps: [], converged: [], violations: 0, failures: [], hits: {} },
    spentMs: 0,
  };
}

export function count(tally: Tally, outcome: Outcome): void {
  tally.worlds++;
  for (const field of ["commits", "departures", "generations", "redone"] as const) {
    tally[field] += outcome[field];
  }
  for (const field of ["recomputed", "reduced", "fenced"] as const) tally[field] += outcome[field];
  tally.worstGaps.push(Math.round(Math.max(0, ...outcome.gaps)));
  tally.converged.push(Math.round(outcome.convergedMs));
  for (const [what, times] of Object.entries(outcome.hits)) {
    tally.hits[what] = (tally.hits[what] ?? 0) + times;
  }
  if (outcome.violation === "") return;
  tally.violations++;
  const { seed, violation } = outcome;
  if (tally.failures.length < FAILURES_KEPT) tally.failures.push({ seed, violation });
}

export function add(into: Tally, more: Tally): void {
  for (const field of ["worlds", "commits", "departures", "generations", "redone", "violations"] as const) {
    into[field] += more[field];
  }
  for (const field of ["recomputed", "reduced", "fenced", "spentMs"] as const) into[field] += more[field];
  into.worstGaps.push(...more.worstGaps);
  into.converged.push(...more.converged);
  into.failures = [...into.failures, ...more.failures].slice(0, FAILURES_KEPT);
  for (const [what, times] of Object.entries(more.hits)) into.hits[what] = (into.hits[what] ?? 0) + times;
}

/** The value below which the share lies; 0 of nothing. */
export function quantile(values: readonly number[], share: number): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? 0;
}

/** The one line that runs a failing seed again. */
export function rerunLine(scenario: string, seed: number): string {
  return `npm run sim -- --scenario=${scenario} --first-seed=${seed} --seeds=1`;
}

const COLUMNS: [head: string, value: (tally: Tally) => number | string][] = [
  ["scenario", (t) => t.scenario],
  ["worlds", (t) => t.worlds],
  ["commits", (t) => t.commits],
  ["departures", (t) => t.departures],
  ["generations", (t) => t.generations],
  ["redone", (t) => t.redone],
  ["recomputed", (t) => t.recomputed],
  ["fenced", (t) => t.fenced],
  ["gap p50", (t) => quantile(t.worstGaps, 0.5)],
  ["gap p99", (t) => quantile(t.worstGaps, 0.99)],
  ["ms/world", (t) => (t.spentMs / Math.max(1, t.worlds)).toFixed(1)],
  ["violations", (t) => t.violations],
];

/** Gaps are the worst of each world, in virtual milliseconds. */
export function tableOf(tallies: readonly Tally[]): string {
  const rows = [
    COLUMNS.map(([head]) => head),
    ...tallies.map((tally) => COLUMNS.map(([, value]) => `${value(tally)}`)),
  ];
  const widths = COLUMNS.map((_, c) => Math.max(...rows.map((row) => row[c]!.length)));
  const line = (row: string[]) =>
    row.map((cell, c) => c === 0 ? cell.padEnd(widths[c]!) : cell.padStart(widths[c]!)).join("  ");
  return rows.map(line).join("\n");
}

export interface Summary {
  worlds: number;
  commits: number;
  violations: number;
  redone: number;
  worst_gap_p50_ms: number;
  worst_gap_p99_ms: number;
  converged_max_ms: number;
  ms_per_world: number;
}

export function summaryOf(tallies: readonly Tally[]): Summary {
  const all = emptyTally("all");
  for (const tally of tallies) add(all, tally);
  return {
    ...{ worlds: all.worlds, commits: all.commits, violations: all.violations, redone: all.redone },
    worst_gap_p50_ms: quantile(all.worstGaps, 0.5),
    worst_gap_p99_ms: quantile(all.worstGaps, 0.99),
    converged_max_ms: quantile(all.converged, 1),
    ms_per_world: Number((all.spentMs / Math.max(1, all.worlds)).toFixed(2)),
  };
}
