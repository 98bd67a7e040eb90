// Measures frames between the workers of two tabs: through the page's links and a MessagePort, which Shoal ships,
// against a data channel transferred to the worker. Not a test: nothing fails on slow figures.
import { fileURLToPath } from "node:url";
import type { Page } from "playwright";
import type { BenchTab, Way } from "./data_channel_tab.ts";
import { aligned, flagValues, median, runMain, wholeFlag } from "./support.ts";

/** Loaded on demand: flags are read, and refused, without a browser's driver. */
const support = () => import("../test/e2e/browser_support.ts");

const ENTRY = fileURLToPath(new URL("./data_channel_tab.ts", import.meta.url));
const WAYS: readonly Way[] = ["port", "transferred"];
const KIB = 1024;
const MIB = 1024 * KIB;
const STREAM_BYTES = [64 * KIB, MIB];
const ECHO_BYTES = [8, 64 * KIB, MIB];
const ECHOES = 10;
/** More would not fit the queue of one link, which refuses what exceeds it. */
const MIB_MAX = 64;
const ROUNDS_MAX = 100;

const HELP = `usage: deno run bench/data_channel.ts [flags]
Opens two headless tabs per measurement and prints a table of medians.

  --rounds N   measurements of each way, taken in turn (5)
  --mib N      MiB sent per throughput measurement (16)
  --json       print one JSON object, with a summary, as the last line
  --help       show this text`;

const OPTIONS = {
  "rounds": { type: "string", default: "5" },
  "mib": { type: "string", default: "16" },
  "json": { type: "boolean", default: false },
  "help": { type: "boolean", default: false },
} as const;

/** Figure's name with its unit -> one value per round. One MB is 10^6 bytes. */
type Samples = Record<string, number[]>;

export function parseFlags(args: string[]) {
  const values = flagValues(args, OPTIONS);
  return {
    ...values,
    rounds: wholeFlag("rounds", values.rounds, [1, ROUNDS_MAX]),
    mib: wholeFlag("mib", values.mib, [1, MIB_MAX]),
  };
}

/** The ways take turns, so that a machine that gets slower or faster treats both alike. */
async function measure(rounds: number, mib: number): Promise<Record<Way, Samples>> {
  const samples: Record<Way, Samples> = { port: {}, transferred: {} };
  for (let round = 0; round < rounds; round++) {
    for (const way of WAYS) {
      console.error(`round ${round + 1} of ${rounds}: ${way}`);
      const figures = await measureOnce(way, mib);
      for (const [name, value] of Object.entries(figures)) (samples[way][name] ??= []).push(value);
    }
  }
  return samples;
}

async function measureOnce(way: Way, mib: number): Promise<Record<string, number>> {
  const { callTab, openTabs } = await support();
  await using tabs = await openTabs(ENTRY);
  const pages: Page[] = [];
  // A signal that comes after the measurement has nowhere to go.
  const signal = (page: Page, data: string) =>
    void callTab<BenchTab, "signal">(page, "signal", data).catch(() => {});
  for (const other of [1, 0]) pages.push(await tabs.open((data) => signal(pages[other]!, data)));
  const [a, b] = [pages[0]!, pages[1]!];
  await callTab<BenchTab, "connect">(b, "connect", way, false);
  await callTab<BenchTab, "connect">(a, "connect", way, true);
  for (const page of pages) await callTab<BenchTab, "opened">(page, "opened");
  await callTab<BenchTab, "stream">(a, "stream", 4, MIB);
  const figures: Record<string, number> = {};
  for (const bytes of STREAM_BYTES) {
    const ms = await callTab<BenchTab, "stream">(a, "stream", mib * MIB / bytes, bytes);
    figures[`stream_${sizeName(bytes)}_mb_per_s`] = mib * MIB / 1000 / ms;
  }
  for (const bytes of ECHO_BYTES) {
    const times = await callTab<BenchTab, "echo">(a, "echo", ECHOES, bytes);
    figures[`echo_${sizeName(bytes)}_ms`] = median(times);
  }
  return figures;
}

function sizeName(bytes: number): string {
  if (bytes >= MIB) return `${bytes / MIB}mib`;
  return bytes >= KIB ? `${bytes / KIB}kib` : `${bytes}b`;
}

type Summary = Record<Way, Record<string, number>>;

/** Medians over the rounds. */
export function summarise(samples: Record<Way, Samples>): Summary {
  const medians = (way: Way) =>
    Object.fromEntries(Object.entries(samples[way]).map(([name, values]) => [name, median(values)]));
  return { port: medians("port"), transferred: medians("transferred") };
}

export function table(summary: Summary): string {
  const names = Object.keys(summary.port);
  const rows = names.map((name) => [name, ...WAYS.map((way) => summary[way][name]!.toFixed(2))]);
  return aligned([["", ...WAYS], ...rows]).join("\n");
}

async function main(args: string[]): Promise<void> {
  const { rounds, mib, json, help } = parseFlags(args);
  if (help) return console.log(HELP);
  const samples = await measure(rounds, mib).finally(async () => (await support()).closeBrowser());
  const summary = summarise(samples);
  console.log(table(summary));
  if (json) console.log(JSON.stringify({ benchmark: "data_channel", rounds, mib, samples, summary }));
}

if (import.meta.main) await runMain(main);
