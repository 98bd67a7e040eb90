// How long planning takes and how good the plans are, for swarms of 4 to 200 peers drawn from seeds. Not a test: nothing
// fails on a bad figure. Small swarms are compared with the exact optimum of the cost model, all with a lower bound.
import process from "node:process";
import { parseArgs } from "node:util";
import { unknownMessage } from "../coordinator/cli/usage.mjs";
import { plan } from "../coordinator/plan/planner.ts";
import { stepBound } from "../coordinator/plan/planner_bound.ts";
import { exactFits, exactLayout } from "../coordinator/plan/planner_exact.ts";
import { CostModel } from "../coordinator/plan/planner_model.ts";
import { searchLayouts } from "../coordinator/plan/planner_search.ts";
import type { PlanRequest } from "../coordinator/plan/planner_types.ts";
import { drawSwarm } from "../test/support/swarm_requests.ts";
import { slowestPlacing } from "./plan_textbook.ts";
import { messageOf, ShoalError } from "../peer/wire/errors.ts";

/** Sizes up to this are planned with every fixed number of stages as well; beyond it that takes minutes. */
const FIXED_PEERS_MAX = 32;

const HELP = `usage: npm run bench:plan -- [flags]
Plans random swarms and prints how long it took and how good the plans are.

  --peers LIST   sizes of the swarms, separated by commas (4,5,8,16,32,64,128,200)
  --seeds N      swarms of each size (3)
  --json         print one JSON object, with a summary, as the last line
  --help         show this text

"ms" is the median and the worst time of one plan, "cpu ms" the median processor time: on a busy machine it tells more. "step s" is the median predicted step. "of bound" divides it by a time that
no plan can beat (all work shared without a wait), so 1 is out of reach where links are slow; "of exact" divides the cost of
the search without the exact programme by the optimum of the same cost model, where that can be computed. "of fixed" divides the step
by that of the best fixed n_stage, up to ${FIXED_PEERS_MAX} peers; above 1 the free choice of the depth missed it. Below the table stands
how long the slowest published schedule takes to be placed on as many peers, where memory is too small for all of them.`;

const OPTIONS = {
  "peers": { type: "string", default: "4,5,8,16,32,64,128,200" },
  "seeds": { type: "string", default: "3" },
  "json": { type: "boolean", default: false },
  "help": { type: "boolean", default: false },
} as const;

const PEERS_MAX = 200;
const SEEDS_MAX = 100;
/** Layers of the planned model; more layers than stages leave the cut a choice. */
const LAYERS = 12;
const LAYERS_OF_LARGE = 24;
const SMALL_SWARM = 32;
/** A micro-batch or more for every peer, as a run of that size would have. */
const MICRO_BATCHES_MIN = 16;
const MICRO_BATCHES_MAX = 256;

export interface Flags {
  peers: number[];
  seeds: number;
  json: boolean;
  help: boolean;
}

/** Throws `usage` on flags that mean nothing. */
export function parseFlags(args: string[]): Flags {
  const names = Object.keys(OPTIONS).map((name) => `--${name}`);
  const unknown = args.map((arg) => arg.split("=")[0]!).find((arg) =>
    arg.startsWith("--") && !names.includes(arg)
  );
  if (unknown !== undefined) {
    throw new ShoalError("usage", `${unknownMessage("flag", unknown, names)} See --help`);
  }
  const values = parsed(args);
  const peers = values.peers.split(",").map((text) => whole("peers", text, PEERS_MAX));
  return { ...values, peers, seeds: whole("seeds", values.seeds, SEEDS_MAX) };
}

function parsed(args: string[]) {
  try {
    return parseArgs({ args, options: OPTIONS, strict: true, allowPositionals: false }).values;
  } catch (error) {
    throw new ShoalError("usage", `${messageOf(error)}; see --help`, { cause: error });
  }
}

function whole(name: string, text: string, max: number): number {
  const value = Number(text);
  if (Number.isInteger(value) && value >= 1 && value <= max) return value;
  throw new ShoalError("usage", `--${name} must be whole numbers from 1 to ${max}, got "${text}"`);
}

/** One planned swarm. */
export interface Planned {
  peers: number;
  seed: number;
  ms: number;
  cpuMs: number;
  seconds: number;
  stages: number;
  ofBound: number;
  /** Null where the exact optimum is out of reach. */
  ofExact: number | null;
  /** Seconds over those of the best fixed number of stages; null where those were not tried. */
  ofFixed: number | null;
}

/** Plans one swarm; null if its memories do not hold the model. */
export function planOne(peers: number, seed: number): Planned | null {
  const microBatches = Math.min(
    MICRO_BATCHES_MAX,
    Math.max(MICRO_BATCHES_MIN, 2 ** Math.ceil(Math.log2(2 * peers))),
  );
  const n_layer = peers > SMALL_SWARM ? LAYERS_OF_LARGE : LAYERS;
  const config = { n_layer, n_embd: 256, n_head: 4, gradient_accumulation_steps: microBatches };
  const request = drawSwarm({ peers, seed, config });
  const [start, cpu] = [performance.now(), process.cpuUsage()];
  const answer = plan(request);
  const ms = performance.now() - start;
  const cpuMs = process.cpuUsage(cpu).user / 1000;
  if (answer.kind === "infeasible") return null;
  const { seconds, stages } = answer;
  const ofBound = seconds / stepBound(request);
  return {
    peers,
    seed,
    ms,
    cpuMs,
    seconds,
    stages: stages.length,
    ofBound,
    ofExact: shareOfExact(new CostModel(request)),
    ofFixed: peers > FIXED_PEERS_MAX ? null : seconds / fixedSeconds(request),
  };
}

/** Of the best plan with a fixed number of stages. */
function fixedSeconds(request: PlanRequest): number {
  const { config, spec, peers } = request;
  const counts = Array.from({ length: Math.min(peers.length, spec.n_layer) }, (_, i) => i + 1);
  const answers = counts.map((n_stage) => plan({ ...request, config: { ...config, n_stage } }));
  return Math.min(...answers.map((answer) => answer.kind === "plan" ? answer.seconds : Infinity));
}

function shareOfExact(model: CostModel): number | null {
  if (!exactFits(model)) return null;
  const found = searchLayouts(model, { most: Math.min(model.peers, model.layers), exactly: false })[0];
  const exact = exactLayout(model);
  return found === undefined || exact === null ? null : found.cost.seconds / exact.seconds;
}

export interface Row {
  peers: number;
  swarms: number;
  medianMs: number;
  worstMs: number;
  cpuMs: number;
  seconds: number;
  stages: number;
  ofBound: number;
  ofExact: number | null;
  ofFixed: number | null;
}

/** Swarms of one size as a row of the table: medians, and the worst where it says so. */
export function rowOf(planned: readonly Planned[]): Row {
  const of = (value: (it: Planned) => number) => median(planned.map(value));
  const worst = (values: readonly (number | null)[]) => {
    const known = values.filter((value) => value !== null);
    return known.length === 0 ? null : Math.max(...known);
  };
  return {
    ...{ peers: planned[0]!.peers, swarms: planned.length },
    ...{ medianMs: of(({ ms }) => ms), worstMs: Math.max(...planned.map(({ ms }) => ms)) },
    cpuMs: of(({ cpuMs }) => cpuMs),
    ...{ seconds: of(({ seconds }) => seconds), stages: of(({ stages }) => stages) },
    ofBound: of(({ ofBound }) => ofBound),
    ofExact: worst(planned.map(({ ofExact }) => ofExact)),
    ofFixed: worst(planned.map(({ ofFixed }) => ofFixed)),
  };
}

function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  return (sorted[(sorted.length - 1) >> 1]! + sorted[sorted.length >> 1]!) / 2;
}

export function table(rows: readonly Row[]): string {
  const header = [
    "peers",
    "swarms",
    "median ms",
    "worst ms",
    "cpu ms",
    "stages",
    "step s",
    "of bound",
    "of exact, worst",
    "of fixed, worst",
  ];
  const lines = rows.map((row) => [
    ...[
      row.peers,
      row.swarms,
      row.medianMs.toFixed(0),
      row.worstMs.toFixed(0),
      row.cpuMs.toFixed(0),
      row.stages,
    ].map(String),
    row.seconds.toFixed(3),
    row.ofBound.toFixed(2),
    row.ofExact === null ? "-" : row.ofExact.toFixed(3),
    row.ofFixed === null ? "-" : row.ofFixed.toFixed(3),
  ]);
  const widths = header.map((name, i) => Math.max(name.length, ...lines.map((line) => line[i]!.length)));
  return [header, ...lines].map((line) => line.map((cell, i) => cell.padStart(widths[i]!)).join("  ")).join(
    "\n",
  );
}

function main(args: string[]): void {
  const flags = parseFlags(args);
  if (flags.help) return console.log(HELP);
  // The first plan pays for compiling the code, which no later one does.
  planOne(flags.peers[0]!, 1);
  const rows = flags.peers.flatMap((peers) => {
    const seeds = Array.from({ length: flags.seeds }, (_, i) => i + 1);
    const planned = seeds.map((seed) => planOne(peers, seed)).filter((it) => it !== null);
    return planned.length === 0 ? [] : [rowOf(planned)];
  });
  console.log(table(rows));
  const textbook = flags.peers.map((peers) => ({ peers, ...slowestPlacing(peers) }));
  for (const { peers, schedule, ms, cpuMs } of textbook) {
    console.log(`${peers} peers, ${schedule}: placed in ${ms.toFixed(0)} ms, cpu ${cpuMs.toFixed(0)} ms`);
  }
  if (!flags.json) return;
  const exact = rows.flatMap(({ ofExact }) => ofExact === null ? [] : [ofExact]);
  const fixed = rows.flatMap(({ ofFixed }) => ofFixed === null ? [] : [ofFixed]);
  const largest = rows.at(-1);
  const summary = {
    ...{ largest_peers: largest?.peers ?? null, largest_median_ms: largest?.medianMs ?? null },
    largest_cpu_ms: largest?.cpuMs ?? null,
    worst_of_exact: exact.length === 0 ? null : Math.max(...exact),
    worst_of_fixed: fixed.length === 0 ? null : Math.max(...fixed),
    worst_of_bound: Math.max(...rows.map(({ ofBound }) => ofBound)),
    largest_textbook_cpu_ms: textbook.at(-1)?.cpuMs ?? null,
  };
  console.log(JSON.stringify({ benchmark: "plan", rows, textbook, summary }));
}

if (import.meta.main) {
  try {
    main(Deno.args);
  } catch (error) {
    console.error(messageOf(error));
    Deno.exit(error instanceof ShoalError && error.code === "usage" ? 2 : 1);
  }
}
