// What a contributor has given to a run, added up over visits, and how quick this computer is against its own best. Pure:
// snapshots in, sums out; contributor_kept.ts keeps them.
import type { TabSnapshot } from "../peer/wire/status.ts";

/** Sums over all visits. */
export interface Given {
  steps: number;
  tokens: number;
  bytesUp: number;
  bytesDown: number;
  /** Time spent in training, ms. */
  ms: number;
}

export const NOTHING: Given = { steps: 0, tokens: 0, bytesUp: 0, bytesDown: 0, ms: 0 };

/** A page that slept between two snapshots did not train meanwhile. */
const GAP_MS_MAX = 5_000;

/** Adds what happened between two snapshots of one visit; `ms` is the time between them. */
export function addGiven(given: Given, before: TabSnapshot | null, now: TabSnapshot, ms: number): Given {
  const grown = (pick: (snapshot: TabSnapshot) => number) =>
    Math.max(0, pick(now) - (before === null ? 0 : pick(before)));
  const trained = before !== null && trains(before) && trains(now);
  return {
    steps: given.steps + (trained ? grown(({ step }) => step) : 0),
    tokens: given.tokens + grown(({ tokens }) => tokens),
    bytesUp: given.bytesUp + grown(({ bytesUp }) => bytesUp),
    bytesDown: given.bytesDown + grown(({ bytesDown }) => bytesDown),
    ms: given.ms + (trained && ms > 0 && ms <= GAP_MS_MAX ? ms : 0),
  };
}

function trains({ phase, stage }: TabSnapshot): boolean {
  return stage !== null && (phase === "training" || phase === "finishing");
}

/** Sums as they were kept; nothing if they make no sense. */
export function readGiven(value: unknown): Given {
  const record = typeof value === "object" && value !== null ? value as Record<string, unknown> : {};
  const sum = (name: keyof Given) => {
    const found = record[name];
    return typeof found === "number" && found >= 0 && Number.isFinite(found) ? found : 0;
  };
  return {
    ...{ steps: sum("steps"), tokens: sum("tokens"), ms: sum("ms") },
    ...{ bytesUp: sum("bytesUp"), bytesDown: sum("bytesDown") },
  };
}

/** Own step times of late, and the best that they have been for the same work. */
export interface PaceRecord {
  /** What is compared: another stage or another limit is other work. */
  work: string;
  recentMs: number[];
  bestMs: number;
}

/** So many steps decide: one slow step is no slow computer. */
const RECENT = 9;

export function notePace(record: PaceRecord | null, snapshot: TabSnapshot, duty: number): PaceRecord | null {
  const { phase, layers, stage, ownStepMs, step } = snapshot;
  if (phase !== "training" || layers === null || !(ownStepMs > 0) || step < 1) return record;
  const work = `${stage} ${layers} ${duty}`;
  const old = record?.work === work ? record : { work, recentMs: [], bestMs: Infinity };
  if (old.recentMs.at(-1) === ownStepMs) return old;
  const recentMs = [...old.recentMs, ownStepMs].slice(-RECENT);
  const full = recentMs.length === RECENT;
  return { work, recentMs, bestMs: full ? Math.min(old.bestMs, median(recentMs)) : old.bestMs };
}

/** How many times its best a step takes now; 1 while that is not known. */
export function slowdownOf(record: PaceRecord | null): number {
  if (record === null || record.recentMs.length < RECENT || !Number.isFinite(record.bestMs)) return 1;
  return median(record.recentMs) / record.bestMs;
}

function median(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)] ?? 0;
}
