// npm run sim: simulated runs by the thousand, on all the cores asked for. Progress and failing seeds go to stderr, the table or
// JSON to stdout. A failing seed is printed with the one line that runs it again. Exit codes: 0 clean, 1 violations, 2 usage.
import { parseArgs } from "node:util";
import { runSeeds, STATE_COUNT, statesMissed } from "./runner.ts";
import { describePlan, planOf, SCENARIOS } from "./scenarios.ts";
import { rerunLine, summaryOf, tableOf, type Tally } from "./tally.ts";

/** More workers than this only fight for the memory bus. */
const JOBS_MAX = 64;

/** Progress lines where stderr is no terminal. */
const LINES = 10;

const USAGE = `usage: npm run sim -- [options]
Simulated runs: both cores in one thread, a virtual clock, seeded faults. The same seed is the same run.
  --seeds=N         worlds in all, shared by the scenarios (default 2000)
  --first-seed=K    every scenario plays seeds from K on (default 1)
  --scenario=A,B    only these (default all): ${SCENARIOS.join(", ")}
  --jobs=J          workers (default: one for each core)
  --fail-fast       stop after the first violations
  --json            one JSON value instead of the table; it ends with "summary"
  --help            this text
With --seeds=1 and one scenario the plan of that seed is printed first.`;

interface Options {
  seeds: number;
  firstSeed: number;
  scenarios: string[];
  jobs: number;
  json: boolean;
  failFast: boolean;
}

class UsageError extends Error {}

function readOptions(args: string[]): Options | null {
  const { values } = parse(args);
  if (values.help) return null;
  const scenarios = values.scenario?.split(",") ?? [...SCENARIOS];
  const unknown = scenarios.find((name) => !SCENARIOS.includes(name));
  if (unknown !== undefined) {
    throw new UsageError(`unknown scenario "${unknown}"; known: ${SCENARIOS.join(", ")}`);
  }
  return {
    scenarios,
    seeds: wholeNumber("--seeds", values.seeds ?? "2000"),
    firstSeed: wholeNumber("--first-seed", values["first-seed"] ?? "1"),
    jobs: Math.min(JOBS_MAX, wholeNumber("--jobs", values.jobs ?? `${navigator.hardwareConcurrency}`)),
    json: values.json ?? false,
    failFast: values["fail-fast"] ?? false,
  };
}

function parse(args: string[]) {
  const text = { type: "string" } as const;
  const flag = { type: "boolean" } as const;
  try {
    return parseArgs({
      args,
      options: {
        "fail-fast": flag,
        seeds: text,
        "first-seed": text,
        scenario: text,
        jobs: text,
        json: flag,
        help: flag,
      },
    });
  } catch (error) {
    throw new UsageError((error as Error).message);
  }
}

function wholeNumber(name: string, text: string): number {
  const value = Number(text);
  if (Number.isSafeInteger(value) && value >= 1) return value;
  throw new UsageError(`${name}=${text} is not a whole number of at least 1`);
}

async function main(args: string[]): Promise<number> {
  const options = readOptions(args);
  if (options === null) {
    console.log(USAGE);
    return 0;
  }
  announce(options);
  const begun = performance.now();
  const tallies = await runSeeds({ ...options, onTally: (tally, done) => progress(options, tally, done) });
  const seconds = (performance.now() - begun) / 1000;
  const missed = missedStates(options, tallies);
  if (missed.length > 0) console.error(`never reached: ${missed.join("; ")}`);
  const summary = { ...summaryOf(tallies), seconds: Number(seconds.toFixed(1)) };
  if (options.json) console.log(JSON.stringify({ scenarios: tallies.map(withoutLists), missed, summary }));
  else console.log(`${tableOf(tallies)}\n${JSON.stringify(summary)}`);
  return summary.violations + missed.length > 0 ? 1 : 0;
}

/** The seed comes first, whatever happens then. */
function announce({ seeds, firstSeed, scenarios, jobs }: Options): void {
  console.error(
    `${seeds} worlds from seed ${firstSeed} on, ${scenarios.length} scenarios, ${jobs} workers`,
  );
  if (seeds === 1) console.error(describePlan(planOf(scenarios[0]!, firstSeed)));
}

function progress({ seeds }: Options, tally: Tally, done: number): void {
  for (const { seed, violation } of tally.failures) {
    console.error(
      `\nFAILED ${tally.scenario}, seed ${seed}: ${violation}\n  ${rerunLine(tally.scenario, seed)}`,
    );
  }
  if (Deno.stderr.isTerminal()) {
    Deno.stderr.writeSync(new TextEncoder().encode(`\r${done} of ${seeds}${done >= seeds ? "\n" : ""}`));
  } else if (Math.floor(done * LINES / seeds) > Math.floor((done - tally.worlds) * LINES / seeds)) {
    console.error(`${done} of ${seeds}`);
  }
}

function missedStates({ firstSeed }: Options, tallies: Tally[]): string[] {
  const states = tallies.find((tally) => tally.scenario === "states");
  return states === undefined || firstSeed > 1 || states.worlds < STATE_COUNT ? [] : statesMissed(states);
}

function withoutLists({ worstGaps: _, converged: __, ...rest }: Tally) {
  return rest;
}

try {
  Deno.exitCode = await main(Deno.args);
} catch (error) {
  if (!(error instanceof UsageError)) throw error;
  console.error(`${error.message}\n${USAGE}`);
  Deno.exitCode = 2;
}
