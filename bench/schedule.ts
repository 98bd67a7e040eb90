// Prints how long one step takes under every schedule, for equal stages on equal links, by simulation.
// Not a measurement: nothing runs and no clock is read. `npm run sim:schedule -- --help` lists the flags.
import { parseArgs } from "node:util";
import { unknownMessage } from "../coordinator/cli/usage.mjs";
import {
  type ComparedSchedule,
  compareSchedules,
  type RuledOut,
  type Setting,
} from "../coordinator/plan/compare.ts";
import { lognormalJitter } from "../coordinator/plan/jitter.ts";
import { svgGantt, textGantt } from "../coordinator/plan/gantt.ts";
import type { LinkMode } from "../coordinator/plan/network.ts";
import { messageOf, ShoalError } from "../peer/wire/errors.ts";

const MODES: readonly LinkMode[] = ["duplex", "inbound-shared", "stop-and-wait"];

const HELP = `usage: npm run sim:schedule -- [flags]
Simulates one training step under every schedule and prints a table.

  --stages N             pipeline stages, one device each (8)
  --micro-batches N      micro-batches of a step (32)
  --forward-ms X         F of one micro-batch on one stage (20)
  --backward-ms X        B, the input gradient (20)
  --weight-grad-ms X     W, the weight gradient (20)
  --latency-ms X         one-way latency of a link (50)
  --transfer-ms X        time one message occupies a link (20)
  --bytes N, --rate X    instead: bytes of a message, and Mb/s of a link
  --link MODE            duplex, inbound-shared or stop-and-wait (duplex)
  --jitter X             spread of link times, a lognormal's sigma; operations get half of it (0)
  --seed N               of the jitter (1)
  --gantt NAME           also draw this schedule, by its name in the table
  --svg FILE             write the --gantt (dynamic, if not given) as an SVG document; - prints it alone
  --json                 print one JSON object, with a summary (of schedules that flush), as the last line
  --help                 show this text`;

const OPTIONS = {
  "stages": { type: "string", default: "8" },
  "micro-batches": { type: "string", default: "32" },
  "forward-ms": { type: "string", default: "20" },
  "backward-ms": { type: "string", default: "20" },
  "weight-grad-ms": { type: "string", default: "20" },
  "latency-ms": { type: "string", default: "50" },
  "transfer-ms": { type: "string", default: "20" },
  "bytes": { type: "string" },
  "rate": { type: "string" },
  "link": { type: "string", default: "duplex" },
  "jitter": { type: "string", default: "0" },
  "seed": { type: "string", default: "1" },
  "gantt": { type: "string" },
  "svg": { type: "string" },
  "json": { type: "boolean", default: false },
  "help": { type: "boolean", default: false },
} as const;

type Flags = ReturnType<typeof parseFlags>;
type Row = ComparedSchedule | RuledOut;

function parseFlags(args: string[]) {
  const names = Object.keys(OPTIONS).map((name) => `--${name}`);
  const unknown = args.map((arg) => arg.split("=")[0]!).find((arg) =>
    arg.startsWith("--") && !names.includes(arg)
  );
  if (unknown !== undefined) {
    throw new ShoalError("usage", `${unknownMessage("flag", unknown, names)} See --help`);
  }
  try {
    return parseArgs({ args, options: OPTIONS, strict: true, allowPositionals: false }).values;
  } catch (error) {
    throw new ShoalError("usage", `${messageOf(error)}; see --help`, { cause: error });
  }
}

export interface Output {
  stdout: string;
  /** A file to write, if one was asked for. */
  file: { path: string; text: string } | null;
}

/** Runs the command; returns what belongs on stdout and into a file. Throws `usage` on flags that mean nothing. */
export function main(args: string[]): Output {
  const flags = parseFlags(args);
  if (flags.help) return { stdout: HELP, file: null };
  const setting = settingOf(flags);
  const rows = compareSchedules(setting);
  const name = flags.gantt ?? (flags.svg === undefined ? undefined : "dynamic");
  const drawn = name === undefined ? null : chosen(rows, name);
  const svg = drawn === null ? "" : svgGantt(drawn.result, { title: drawn.name });
  if (flags.svg === "-") return { stdout: svg, file: null };
  const parts = [table(rows)];
  if (flags.gantt !== undefined && drawn !== null) parts.push("", `${drawn.name}:`, textGantt(drawn.result));
  if (flags.json) parts.push(JSON.stringify(report(setting, rows)));
  const file = flags.svg === undefined ? null : { path: flags.svg, text: svg };
  return { stdout: parts.join("\n"), file };
}

function settingOf(flags: Flags): Setting {
  const mode = MODES.find((known) => known === flags.link);
  if (mode === undefined) {
    throw new ShoalError("usage", `--link must be one of ${MODES.join(", ")}, got "${flags.link}"`);
  }
  const jitter = number("jitter", flags.jitter);
  const seed = whole("seed", flags.seed, SEED_MAX);
  return {
    stages: whole("stages", flags.stages),
    microBatches: whole("micro-batches", flags["micro-batches"]),
    forward: seconds("forward-ms", flags["forward-ms"]),
    backward: seconds("backward-ms", flags["backward-ms"]),
    weightGrad: seconds("weight-grad-ms", flags["weight-grad-ms"]),
    latency: seconds("latency-ms", flags["latency-ms"]),
    transfer: transferOf(flags),
    mode,
    ...(jitter === 0 ? {} : { jitter: () => lognormalJitter(seed, { link: jitter, compute: jitter / 2 }) }),
  };
}

function transferOf(flags: Flags): number {
  if (flags.bytes === undefined && flags.rate === undefined) {
    return seconds("transfer-ms", flags["transfer-ms"]);
  }
  if (flags.bytes === undefined || flags.rate === undefined) {
    throw new ShoalError("usage", "--bytes and --rate belong together; give both, or --transfer-ms");
  }
  const rate = number("rate", flags.rate);
  if (rate === 0) throw new ShoalError("usage", "--rate must be more than 0 Mb/s, got 0");
  return number("bytes", flags.bytes) * 8 / (rate * 1e6);
}

/** More stages or micro-batches than this are a slip of the keyboard, and would simulate for minutes. */
const COUNT_MAX = 256;

/** Any 32-bit number is a seed. */
const SEED_MAX = 2 ** 32 - 1;

function whole(name: string, text: string, max = COUNT_MAX): number {
  const value = Number(text);
  if (Number.isInteger(value) && value >= 1 && value <= max) return value;
  throw new ShoalError("usage", `--${name} must be a whole number from 1 to ${max}, got "${text}"`);
}

function seconds(name: string, text: string): number {
  return number(name, text) / 1000;
}

function number(name: string, text: string): number {
  const value = Number(text);
  if (text.trim() !== "" && value >= 0 && value < Infinity) return value;
  throw new ShoalError("usage", `--${name} must be a number, at least 0, got "${text}"`);
}

function chosen(rows: readonly Row[], name: string): ComparedSchedule {
  const row = rows.find((candidate) => candidate.name === name);
  if (row === undefined) {
    const names = rows.map((candidate) => `"${candidate.name}"`).join(", ");
    throw new ShoalError("usage", `--gantt must be one of ${names}, got "${name}"`);
  }
  if ("reason" in row) throw new ShoalError("usage", row.reason);
  return row;
}

function table(rows: readonly Row[]): string {
  const header = ["schedule", "step s", "slowdown", "bubble", "activations", "weights"];
  const cells = rows.map((row) =>
    "reason" in row ? [row.name, row.reason] : [
      row.name,
      row.seconds.toFixed(3),
      row.slowdown.toFixed(2),
      `${(100 * row.result.bubble).toFixed(1)} %`,
      String(row.activations),
      String(row.weights),
    ]
  );
  const complete = [header, ...cells.filter((line) => line.length === header.length)];
  const widths = header.map((_, column) => Math.max(...complete.map((line) => line[column]!.length)));
  widths[0] = Math.max(...cells.map((line) => line[0]!.length));
  return [header, ...cells].map((line) => formatLine(line, widths)).join("\n");
}

function formatLine(line: string[], widths: number[]): string {
  const name = line[0]!.padEnd(widths[0]!);
  if (line.length !== widths.length) return `${name}  ${line[1]!}`;
  return [name, ...line.slice(1).map((cell, i) => cell.padStart(widths[i + 1]!))].join("  ");
}

function report(setting: Setting, rows: readonly Row[]) {
  const usable = rows.filter((row) => "result" in row);
  const fastest = usable.filter((row) => row.flush).reduce((best, row) =>
    row.seconds < best.seconds ? row : best
  );
  const textbook = usable.find((row) => row.name === "1f1b");
  return {
    benchmark: "schedule",
    setting,
    schedules: rows.map((row) =>
      "reason" in row ? row : {
        name: row.name,
        seconds: row.seconds,
        slowdown: row.slowdown,
        bubble: row.result.bubble,
        activations: row.activations,
        weights: row.weights,
      }
    ),
    summary: {
      fastest: fastest.name,
      seconds: fastest.seconds,
      slowdown: fastest.slowdown,
      speedup_over_1f1b: textbook === undefined ? null : textbook.seconds / fastest.seconds,
    },
  };
}

if (import.meta.main) {
  try {
    const { stdout, file } = main(Deno.args);
    if (file !== null) Deno.writeTextFileSync(file.path, file.text);
    console.log(stdout);
  } catch (error) {
    console.error(messageOf(error));
    Deno.exit(error instanceof ShoalError && error.code === "usage" ? 2 : 1);
  }
}
