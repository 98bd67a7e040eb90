// Times every kernel of one micro-batch of the demo's model and prints a table; in this process, or in a headless tab.
// Not a test: nothing fails on slow figures. `deno run bench/kernels.ts --help` lists the flags.
import { fileURLToPath } from "node:url";
import type { ProviderName } from "../peer/gpu/device.ts";
import { openDenoDevice } from "../peer/gpu/provider_deno.ts";
import { ShoalError } from "../peer/wire/errors.ts";
import { DEMO_BATCH, DEMO_SPEC, type KernelTime, timeDemo, type Timings } from "./kernels_measure.ts";
import type { KernelsTab } from "./kernels_tab.ts";
import { aligned, choiceFlag, flagValues, runMain, sum, wholeFlag } from "./support.ts";

const ENTRY = fileURLToPath(new URL("./kernels_tab.ts", import.meta.url));
const PROVIDERS: readonly ProviderName[] = ["builtin", "dawn"];
/** More rounds take minutes on a software adapter and move no median. */
const ROUNDS_MAX = 100;

const HELP = `usage: deno run bench/kernels.ts [flags]
Times each kernel of a micro-batch (one block, embedding and head; B 8, T 64, C 64, H 4, Hk 2, D 16, I 192, V 83).

  --rounds N        measurements of each kernel, taken in turn (5)
  --provider NAME   WebGPU implementation in this process: builtin or dawn (builtin, dawn where that has no adapter)
  --chromium        measure in a headless Chromium with --enable-unsafe-webgpu instead
  --json            print one JSON object, with a summary, as the last line
  --help            show this text`;

const OPTIONS = {
  "rounds": { type: "string", default: "5" },
  "provider": { type: "string" },
  "chromium": { type: "boolean", default: false },
  "json": { type: "boolean", default: false },
  "help": { type: "boolean", default: false },
} as const;

export interface Flags {
  rounds: number;
  provider: ProviderName | undefined;
  chromium: boolean;
  json: boolean;
  help: boolean;
}

/** Throws `usage` on flags that mean nothing. */
export function parseFlags(args: string[]): Flags {
  const values = flagValues(args, OPTIONS);
  const provider = values.provider === undefined
    ? undefined
    : choiceFlag("provider", values.provider, PROVIDERS);
  if (values.chromium && provider !== undefined) {
    throw new ShoalError("usage", "--chromium has its own WebGPU; leave out --provider");
  }
  return { ...values, provider, rounds: wholeFlag("rounds", values.rounds, [1, ROUNDS_MAX]) };
}

async function measureHere(rounds: number, provider: ProviderName | undefined): Promise<Timings> {
  const gpu = await openDenoDevice(provider === undefined ? {} : { provider });
  try {
    return await timeDemo(gpu, rounds);
  } finally {
    gpu.destroy();
  }
}

/** Loaded on demand: vite's native parts take a permission that --help and a run in this process do not need. */
async function measureInTab(rounds: number): Promise<Timings> {
  const { callTab, closeBrowser, openTabs } = await import("../test/e2e/browser_support.ts");
  try {
    await using tabs = await openTabs(ENTRY);
    return await callTab<KernelsTab, "time">(await tabs.open(), "time", rounds);
  } finally {
    await closeBrowser();
  }
}

/** Milliseconds that a kernel takes in one micro-batch. */
function weight({ count, ms }: KernelTime): number {
  return count * ms;
}

function gigaflops({ flops, ms }: KernelTime): number {
  return flops / ms / 1e6;
}

export interface Summary {
  /** All kernels of one micro-batch: F, B and W of one block and both ends. */
  micro_batch_ms: number;
  slowest: string;
  slowest_share: number;
  /** Over all products of a micro-batch. */
  matmul_gflop_per_s: number;
}

export function summarise(times: readonly KernelTime[]): Summary {
  const total = sum(times.map(weight));
  const slowest = times.reduce((worst, time) => weight(time) > weight(worst) ? time : worst);
  const products = times.filter(({ name }) => name.startsWith("matmul"));
  const flops = sum(products.map(({ count, flops }) => count * flops));
  return {
    micro_batch_ms: total,
    slowest: slowest.name,
    slowest_share: weight(slowest) / total,
    matmul_gflop_per_s: flops / sum(products.map(weight)) / 1e6,
  };
}

/** Slowest first. The share counts how often a micro-batch runs the kernel. */
export function table(times: readonly KernelTime[]): string {
  const total = sum(times.map(weight));
  const rows = [...times].sort((a, b) => weight(b) - weight(a)).map((time) => [
    time.name,
    String(time.count),
    time.ms.toFixed(3),
    `${(100 * weight(time) / total).toFixed(1)} %`,
    time.flops > 0 ? gigaflops(time).toFixed(2) : "",
  ]);
  const header = ["kernel", "runs", "ms", "share", "GFLOP/s"];
  return aligned([header, ...rows]).join("\n");
}

async function main(args: string[]): Promise<void> {
  const { rounds, provider, chromium, json, help } = parseFlags(args);
  if (help) return console.log(HELP);
  const { adapter, times } = chromium ? await measureInTab(rounds) : await measureHere(rounds, provider);
  const summary = summarise(times);
  console.log(`${adapter}: ${summary.micro_batch_ms.toFixed(1)} ms for the kernels of one micro-batch`);
  console.log(table(times));
  if (!json) return;
  const setting = { ...DEMO_SPEC, batch_size: DEMO_BATCH };
  console.log(JSON.stringify({ benchmark: "kernels", rounds, adapter, setting, times, summary }));
}

if (import.meta.main) await runMain(main);
