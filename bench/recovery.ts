// Prints how long a departure stalls a run, by kind of departure, and what each level of redundancy costs while nobody leaves.
// Not a test: nothing fails on slow figures. Departures are those of real processes and tabs on this machine.
import { quantile, stallRows } from "../test/chaos/stall.ts";
import {
  type ArmResult,
  ARMS,
  type Kind,
  KINDS,
  type Measured,
  measureOverhead,
  measureStalls,
  type StallResult,
} from "./recovery_measure.ts";
import { aligned, choicesFlag, flagValues, runMain, wholeFlag } from "./support.ts";

const KIND_NAMES = Object.keys(KINDS) as Kind[];
const COUNT_MAX = 1000;

const HELP = `usage: npm run bench:recovery -- [flags]
Lets peers of a real run leave and measures the stall, then compares levels of redundancy.

  --departures=N  departures of each kind (20)
  --kinds=A,B     which kinds: ${KIND_NAMES.slice(0, 3).join(", ")},
                  ${KIND_NAMES.slice(3).join(", ")} (all)
  --rounds=N      runs of each level of redundancy, taken in turn (5; 0 = leave this part out)
  --steps=N       steps measured in each of them (40)
  --seed=N        which peer leaves (1)
  --quick         3 departures of each kind, 2 rounds of 15 steps
  --json          print one JSON object, with a summary, as the last line
  --help          show this text`;

const OPTIONS = {
  "departures": { type: "string" },
  "kinds": { type: "string", default: KIND_NAMES.join(",") },
  "rounds": { type: "string" },
  "steps": { type: "string" },
  "seed": { type: "string", default: "1" },
  "quick": { type: "boolean", default: false },
  "json": { type: "boolean", default: false },
  "help": { type: "boolean", default: false },
} as const;

export function parseFlags(args: string[]) {
  const values = flagValues(args, OPTIONS);
  const { quick, json, help } = values;
  const whole = (name: "departures" | "rounds" | "steps" | "seed", text: string, min: number) =>
    wholeFlag(name, text, [min, COUNT_MAX]);
  return {
    ...{ quick, json, help, kinds: choicesFlag("kinds", values.kinds, KIND_NAMES) },
    departures: whole("departures", values.departures ?? (quick ? "3" : "20"), 0),
    rounds: whole("rounds", values.rounds ?? (quick ? "2" : "5"), 0),
    steps: whole("steps", values.steps ?? (quick ? "15" : "40"), 2),
    seed: whole("seed", values.seed, 0),
  };
}

export interface Summary {
  lost_steps: number;
  /** The worse of killed tabs and killed Deno peers. */
  stall_killed_p95_s: number | null;
  stall_goodbye_p95_s: number | null;
  /** Step time with shadows over step time without, minus 1: median over the rounds. */
  shadow_overhead: number | null;
}

export function summarise(
  { departures }: Pick<StallResult, "departures">,
  arms: readonly ArmResult[],
): Summary {
  const p95 = (...kinds: Kind[]) => {
    const rows = stallRows(departures.map(({ kind, stallMs: ms }) => ({ kind, ms })));
    const of = rows.filter(({ kind }) => kinds.some((name) => name === kind)).map((row) => row.p95Ms / 1000);
    return of.length === 0 ? null : Math.max(...of);
  };
  return {
    lost_steps: departures.reduce((sum, { lostSteps }) => sum + lostSteps, 0),
    stall_killed_p95_s: p95("killed-tab", "killed-deno"),
    stall_goodbye_p95_s: p95("goodbye-tab"),
    shadow_overhead: overheadOf("shadow", arms),
  };
}

/** A level's step time against its base of the same round, minus 1; the median over the rounds, null if not measured. */
export function overheadOf(name: string, arms: readonly ArmResult[]): number | null {
  const level = arms.find((arm) => arm.name === name);
  const base = arms.find((arm) => arm.name === level?.base)?.stepMs ?? [];
  const middle = quantile((level?.stepMs ?? []).map((ms, round) => ms / base[round]!), 0.5);
  return middle === null ? null : middle - 1;
}

export function stallTable({ departures, normalStepMs }: StallResult): string {
  const rows = stallRows(departures.map(({ kind, stallMs: ms }) => ({ kind, ms })));
  const noticed = (kind: string) =>
    quantile(departures.filter((it) => it.kind === kind).map((it) => it.noticedMs), 0.5)!;
  const total = (kind: string, count: (it: Measured) => number) =>
    departures.filter((it) => it.kind === kind).reduce((sum, it) => sum + count(it), 0);
  const cells = rows.map(({ kind, count, ...ms }) => [
    ...[kind, String(count)],
    ...[ms.p50Ms, ms.p95Ms, ms.maxMs, noticed(kind)].map((value) => (value / 1000).toFixed(2)),
    String(total(kind, (it) => it.reassigned)),
    String(total(kind, (it) => it.lostSteps)),
  ]);
  const header = [
    "departure",
    "count",
    "stall p50 s",
    "p95 s",
    "max s",
    "noticed p50 s",
    "reassigned",
    "steps lost",
  ];
  return [`normal step ${normalStepMs.toFixed(0)} ms`, ...aligned([header, ...cells])].join("\n");
}

export function overheadTable(arms: readonly ArmResult[]): string {
  const cells = arms.map((arm) => {
    const overhead = overheadOf(arm.name, arms)!;
    const step = quantile(arm.stepMs, 0.5)!;
    return [
      arm.name,
      String(arm.peers),
      step.toFixed(0),
      `${(overhead * 100).toFixed(1)} % over ${arm.base}`,
    ];
  });
  return aligned([["redundancy", "peers", "step ms", "overhead"], ...cells]).join("\n");
}

/** What the coordinator counted of recovery and of snapshots. */
function counterTable(counters: Record<string, number>): string {
  const rows = Object.entries(counters).map(([name, value]) => [name, String(value)]);
  return rows.length === 0 ? "this coordinator counts nothing of recovery" : aligned(rows).join("\n");
}

/** Resolves to the exit code: 1 if the run did not recover from a departure. */
async function main(args: string[]): Promise<number> {
  const flags = parseFlags(args);
  if (flags.help) {
    console.log(HELP);
    return 0;
  }
  const note = (text: string) => console.error(text);
  const { kinds, departures, seed, rounds, steps } = flags;
  const nothing: StallResult = { departures: [], normalStepMs: 0, counters: {}, failure: null };
  const stalls = departures === 0 ? nothing : await measureStalls({ kinds, departures, seed, note });
  if (departures > 0) console.log(`${stallTable(stalls)}\n\n${counterTable(stalls.counters)}\n`);
  if (stalls.failure !== null) console.log(`the run did NOT recover: ${stalls.failure}\n`);
  const arms = rounds === 0 ? [] : await measureOverhead({ arms: ARMS, rounds, steps, note });
  if (rounds > 0) console.log(overheadTable(arms));
  const code = stalls.failure === null ? 0 : 1;
  if (!flags.json) return code;
  const overheads = arms.map((arm) => ({ ...arm, overhead: overheadOf(arm.name, arms) }));
  const summary = summarise(stalls, arms);
  console.log(JSON.stringify({ benchmark: "recovery", seed, ...stalls, redundancy: overheads, summary }));
  return code;
}

if (import.meta.main) await runMain(main);
