// Prints what a step takes under every schedule over links with latency and little bandwidth: real peers and a real coordinator
// in one process, real frames, sums and commits; only the operations' times and the wires are set. Beside it what the
// simulators had predicted. Not a test: nothing fails on slow figures.
import { messageOf, ShoalError } from "../peer/wire/errors.ts";
import { choicesFlag, flagValues, runMain, wholeFlag } from "./support.ts";
import type { LayerMs } from "./wan_engine.ts";
import { measureReal, type RealRow, realTable } from "./wan_real.ts";
import { calibrate, type Overheads } from "./wan_predict.ts";
import {
  type Case,
  CASES,
  CHIMERA_CASE,
  type Row,
  rowOf,
  ruledOut,
  type Setting,
  SETTINGS,
  type Skipped,
  summarise,
  table,
} from "./wan_rows.ts";
import { type RunOptions, runSteps } from "./wan_run.ts";

const SETTING_NAMES = SETTINGS.map(({ name }) => name);
const CASE_NAMES = [...CASES, CHIMERA_CASE].map(({ name }) => name);
const QUICK = { settings: "0ms,50ms", schedules: "dynamic,1f1b,1f1b-fused" };

const HELP = `usage: npm run bench:wan -- [flags]
Trains over links with latency under every schedule, and compares each step with the simulator's.
Eight peers of one process; an engine keeps its peer busy for a set time instead of computing.

  --peers=N          peers, each with the layers of one stage (8)
  --micro-batches=N  of a step (32)
  --op-ms=N          F, B and W each, of one micro-batch on one peer's layers (20)
  --steps=N          steps measured of each run, after one that is not (3)
  --settings=A,B     one way, and rate of each direction of each link:
                     ${SETTING_NAMES.join(", ")} (all)
  --schedules=A,B    ${CASE_NAMES.slice(0, 5).join(", ")},
                     ${CASE_NAMES.slice(5, 9).join(", ")},
                     ${CASE_NAMES.slice(9).join(", ")} (all)
                     -fused: B and W are one operation, as in textbooks; -paper: as many micro-batches as peers
  --real=N           steps of real processes with the true engine, three peers 50 ms apart over WebRTC in network
                     namespaces; needs Linux and root (20; 0 = leave this part out)
  --quick            4 peers, 8 micro-batches, 2 steps, none real; ${QUICK.schedules} at ${QUICK.settings}
  --json             print one JSON object, with a summary, as the last line
  --help             show this text`;

const OPTIONS = {
  "peers": { type: "string" },
  "micro-batches": { type: "string" },
  "op-ms": { type: "string", default: "20" },
  "steps": { type: "string" },
  "settings": { type: "string" },
  "schedules": { type: "string" },
  "real": { type: "string" },
  "quick": { type: "boolean", default: false },
  "json": { type: "boolean", default: false },
  "help": { type: "boolean", default: false },
} as const;

export interface Flags {
  peers: number;
  microBatches: number;
  opMs: number;
  steps: number;
  settings: Setting[];
  cases: Case[];
  /** Steps of the part with real processes. */
  real: number;
  json: boolean;
  help: boolean;
}

export function parseFlags(args: string[]): Flags {
  const values = flagValues(args, OPTIONS);
  const { quick, json, help } = values;
  const or = (text: string | undefined, quickly: string, fully: string) => text ?? (quick ? quickly : fully);
  const settings = choicesFlag(
    "settings",
    or(values.settings, QUICK.settings, SETTING_NAMES.join(",")),
    SETTING_NAMES,
  );
  const cases = choicesFlag(
    "schedules",
    or(values.schedules, QUICK.schedules, CASE_NAMES.join(",")),
    CASE_NAMES,
  );
  return {
    ...{ json, help },
    peers: wholeFlag("peers", or(values.peers, "4", "8"), [2, 32]),
    microBatches: wholeFlag("micro-batches", or(values["micro-batches"], "8", "32"), [1, 256]),
    opMs: wholeFlag("op-ms", values["op-ms"], [2, 1000]),
    steps: wholeFlag("steps", or(values.steps, "2", "3"), [1, 100]),
    real: wholeFlag("real", or(values.real, "0", "20"), [0, 1000]),
    settings: SETTINGS.filter(({ name }) => settings.includes(name)),
    cases: [...CASES, CHIMERA_CASE].filter(({ name }) => cases.includes(name)),
  };
}

/** Schedules with two stages a peer cut a peer's layers in two. */
const LAYERS_PER_PEER = 2;

function optionsOf(
  flags: Flags,
  { wire }: Pick<Setting, "wire">,
  { schedule, fused, looped }: Omit<Case, "name">,
) {
  const { peers, microBatches, steps, opMs } = flags;
  const layerMs: LayerMs = {
    F: opMs / LAYERS_PER_PEER,
    B: opMs / LAYERS_PER_PEER,
    W: opMs / LAYERS_PER_PEER,
  };
  const layers = peers * LAYERS_PER_PEER;
  // Otherwise the planner would rather make replicas of fewer stages, and nothing could be compared.
  const planned = ["dynamic", "2bw", "auto"].includes(schedule);
  const config = planned ? { n_stage: looped ? 2 * peers : peers } : {};
  const run: RunOptions = {
    ...{ schedule, peers, microBatches, layers, wire, layerMs, fused, warmUp: 1, steps, config },
  };
  return run;
}

export interface Results {
  overheads: Overheads;
  rows: Row[];
  skipped: Skipped[];
}

/** Everything that the flags ask for; `note` is told what comes next. */
export async function measure(flags: Flags, note: (text: string) => void): Promise<Results> {
  note("calibrating: the dynamic order and a lone micro-batch, without latency");
  const near = { wire: { delayMs: 0 } };
  const dynamic = { schedule: "dynamic" as const, fused: false };
  const options = optionsOf(flags, near, dynamic);
  // With one micro-batch it does not matter which peer has more layers.
  const lone = await runSteps({ ...options, microBatches: 1, even: false });
  const overheads = calibrate(await runSteps(options), lone, options);
  const results: Results = { overheads, rows: [], skipped: [] };
  for (const setting of flags.settings) {
    for (const wanted of flags.cases) await measureOne(flags, { setting, case: wanted, note }, results);
  }
  return results;
}

async function measureOne(
  flags: Flags,
  { setting, case: wanted, note }: { setting: Setting; case: Case; note(text: string): void },
  { overheads, rows, skipped }: Results,
): Promise<void> {
  const paper = wanted === CHIMERA_CASE;
  if (paper && setting.wire !== SETTINGS[0]!.wire) return;
  const options = optionsOf(paper ? { ...flags, microBatches: flags.peers } : flags, setting, wanted);
  try {
    const reason = ruledOut(wanted, options.peers, options.microBatches);
    if (reason !== null) throw new ShoalError("bad-config", reason);
    const result = await runSteps(options);
    const row = rowOf({ setting, case: wanted, layerMs: options.layerMs, result, overheads });
    rows.push(row);
    note(table([row]));
  } catch (error) {
    const reason = messageOf(error);
    skipped.push({ setting: setting.name, schedule: wanted.name, reason });
    note(`${setting.name}, ${wanted.name}: ${reason}`);
  }
}

async function main(args: string[]): Promise<void> {
  const flags = parseFlags(args);
  if (flags.help) return console.log(HELP);
  const { overheads, rows, skipped } = await measure(flags, (text) => console.error(text));
  const { op, hop, commit } = overheads;
  const fixed = [op.F, op.B, op.W, hop, commit].map((ms) => ms.toFixed(2));
  console.log(
    `beyond what was set, in ms: F ${fixed[0]}, B ${fixed[1]}, W ${fixed[2]}, a message ${fixed[3]},`,
  );
  console.log(`totals and commit ${fixed[4]}; the simulators are told so, and nothing else of these runs\n`);
  if (rows.length > 0) console.log(table(rows));
  for (const { setting, schedule, reason } of skipped) console.log(`${setting}, ${schedule}: ${reason}`);
  const real = await measureProcesses(flags);
  const summary = summarise(rows, real);
  console.log(`\n${Object.entries(summary).map(([name, value]) => `${name} ${shown(value)}`).join("\n")}`);
  if (!flags.json) return;
  const { peers, microBatches, opMs, steps } = flags;
  const about = { benchmark: "wan", peers, microBatches, opMs, steps };
  console.log(JSON.stringify({ ...about, overheads, rows, skipped, real, summary }));
}

async function measureProcesses({ real: steps }: Flags): Promise<RealRow[]> {
  const rows = steps === 0 ? [] : await measureReal(steps, (text) => console.error(text));
  if (typeof rows === "string") console.log(`\nno real processes: ${rows}`);
  else if (rows.length > 0) console.log(`\n${realTable(rows)}`);
  return typeof rows === "string" ? [] : rows;
}

function shown(value: number | string | null): string {
  if (value === null) return "not measured";
  return typeof value === "string" ? value : value.toFixed(3);
}

if (import.meta.main) await runMain(main);
