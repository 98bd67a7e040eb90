// The soak: a real run that is hurt every few seconds for as long as wished, with a replacement after each departure. Prints a
// table; the exit code says whether the run survived with the right weights and without a lost step. Not part of the gate.
import { parseArgs } from "node:util";
import { unknownMessage } from "../../coordinator/cli/usage.mjs";
import { listenForInterrupts } from "../../coordinator/cli/interrupts.ts";
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";
import { seededRandom } from "../support/random.ts";
import { reportOf, soakTable } from "./report.ts";
import { soak } from "./soak.ts";

const HELP = `usage: npm run chaos -- [flags]
Trains with real peers and hurts the run: kills, freezes, reloads, cut networks, a dead coordinator.

  --minutes=N   how long (10)
  --every=S     seconds from one fault to the next (10)
  --peers=N     Deno peers (4)
  --tabs=N      browser tabs (2)
  --seed=N      which faults come when (1)
  --loopback    no network of its own, and so no faults of the network; needs no root
  --json        print one JSON object, with a summary, as the last line
  --help        show this text`;

const OPTIONS = {
  "minutes": { type: "string", default: "10" },
  "every": { type: "string", default: "10" },
  "peers": { type: "string", default: "4" },
  "tabs": { type: "string", default: "2" },
  "seed": { type: "string", default: "1" },
  "loopback": { type: "boolean", default: false },
  "json": { type: "boolean", default: false },
  "help": { type: "boolean", default: false },
} as const;

export function parseFlags(args: string[]) {
  const names = Object.keys(OPTIONS).map((name) => `--${name}`);
  const unknown = args.map((arg) => arg.split("=")[0]!).find((arg) =>
    arg.startsWith("--") && !names.includes(arg)
  );
  if (unknown !== undefined) {
    throw new ShoalError("usage", `${unknownMessage("flag", unknown, names)} See --help`);
  }
  try {
    const { values } = parseArgs({ args, options: OPTIONS, strict: true, allowPositionals: false });
    return {
      ...values,
      minutes: bounded("minutes", values.minutes, { min: 0.1, max: 10_000 }),
      every: bounded("every", values.every, { min: 1, max: 3600 }),
      peers: bounded("peers", values.peers, { min: 0, max: 50, whole: true }),
      tabs: bounded("tabs", values.tabs, { min: 0, max: 50, whole: true }),
      seed: bounded("seed", values.seed, { min: 0, max: 0xffff_ffff, whole: true }),
    };
  } catch (error) {
    if (error instanceof ShoalError) throw error;
    throw new ShoalError("usage", `${messageOf(error)}; see --help`, { cause: error });
  }
}

function bounded(name: string, text: string, range: { min: number; max: number; whole?: boolean }): number {
  const value = Number(text);
  const { min, max, whole = false } = range;
  if (text.trim() !== "" && value >= min && value <= max && (!whole || Number.isInteger(value))) return value;
  throw new ShoalError(
    "usage",
    `--${name} must be a ${whole ? "whole " : ""}number from ${min} to ${max}, got "${text}"`,
  );
}

/** Resolves to the exit code: 0 survived, 1 not. */
async function main(args: string[]): Promise<number> {
  const flags = parseFlags(args);
  if (flags.help) {
    console.log(HELP);
    return 0;
  }
  console.error(`seed ${flags.seed}`);
  // The first Ctrl-C ends the faults early and still judges the run; what was started is cleaned up after a second one too.
  const interrupts = listenForInterrupts();
  try {
    const result = await soak({
      ...flags,
      ...{ random: seededRandom(flags.seed), network: !flags.loopback, signal: interrupts.signal },
      note: (text) => console.error(text),
    });
    const report = reportOf(result, flags.seed);
    console.log(soakTable(report));
    if (flags.json) console.log(JSON.stringify(report));
    return report.summary.survived ? 0 : 1;
  } finally {
    interrupts.close();
  }
}

if (import.meta.main) {
  try {
    Deno.exit(await main(Deno.args));
  } catch (error) {
    console.error(messageOf(error));
    Deno.exit(error instanceof ShoalError && error.code === "usage" ? 2 : 1);
  }
}
