// Measures the engine side by side with tfjs: matrix products, whole training steps, and where the time goes, in headless
// Chromium and in Deno. Not a test of speed: only losses that differ fail. `npm run bench:engine -- --help` lists the flags.
import { fileURLToPath } from "node:url";
import type { Page } from "playwright";
import { openDenoDevice } from "../peer/gpu/provider_deno.ts";
import type { Tabs } from "../test/e2e/browser_support.ts";
import { MODEL_NAMES, type ModelName } from "./engine_models.ts";
import {
  measurePlace,
  type Options,
  type PlaceResult,
  type Section,
  SECTIONS,
  SIDES,
} from "./engine_place.ts";
import { report, summarise } from "./engine_report.ts";
import { badChecks } from "./engine_step.ts";
import type { EngineTab } from "./engine_tab.ts";
import { choicesFlag, flagValues, runMain, wholeFlag } from "./support.ts";

const ENTRY = fileURLToPath(new URL("./engine_tab.ts", import.meta.url));
const BACKEND = "DENO_WEBGPU_BACKEND";
/** More rounds take hours with tfjs on a software adapter. */
const ROUNDS_MAX = 100;

const HELP = `usage: npm run bench:engine -- [flags]
Measures Shoal's engine beside tfjs on the same adapter, in turns: medians, and half the range in percent of them.

  --chromium       only in a headless tab (wgsl, tfjs-webgpu, tfjs-wasm, fallback engine)
  --deno           only in this process (wgsl, tfjs-wasm, fallback engine)
  --sections=A,B   ${SECTIONS.join(", ")} (all)
  --sides=A,B      ${SIDES.join(", ")} (all)
                   on a GPU no CPU side does products or large models
  --models=A,B     ${MODEL_NAMES.join(", ")} (all)
                   nano 3 layers of 48, base 2 of 128, six 6 of 384, gpt2 GPT-2 small's shape; a software adapter
                   gets smaller batches, and fewer layers of gpt2
  --rounds=N       measurements of everything (3)
  --quick          fewer products, only the model base, 2 rounds
  --json           print one JSON object, with a summary, as the last line
  --help           show this text

A step is forward, backward, clip and AdamW of one micro-batch; Shoal's contains the readback of the gradient and the
exact optimizer on the CPU, whose share has a column. Ends with 1 if the losses of two sides differ.`;

const OPTIONS = {
  "chromium": { type: "boolean", default: false },
  "deno": { type: "boolean", default: false },
  "sections": { type: "string", default: SECTIONS.join(",") },
  "sides": { type: "string", default: SIDES.join(",") },
  "models": { type: "string" },
  "rounds": { type: "string" },
  "quick": { type: "boolean", default: false },
  "json": { type: "boolean", default: false },
  "help": { type: "boolean", default: false },
} as const;

export interface Flags extends Options {
  places: PlaceResult["place"][];
  sections: Section[];
  models: ModelName[];
  json: boolean;
  help: boolean;
}

/** Throws `usage` on flags that mean nothing. Without --chromium and --deno it is both. */
export function parseFlags(args: string[]): Flags {
  const values = flagValues(args, OPTIONS);
  const { chromium, deno, quick, json, help } = values;
  const both = chromium === deno;
  return {
    ...{ quick, json, help },
    places: [...(chromium || both ? ["chromium" as const] : []), ...(deno || both ? ["deno" as const] : [])],
    sections: choicesFlag("sections", values.sections, SECTIONS),
    sides: choicesFlag("sides", values.sides, SIDES),
    models: choicesFlag("models", values.models ?? (quick ? "base" : MODEL_NAMES.join(",")), MODEL_NAMES),
    rounds: wholeFlag("rounds", values.rounds ?? (quick ? "2" : "3"), [1, ROUNDS_MAX]),
  };
}

async function measureHere(options: Options): Promise<PlaceResult> {
  // Without this a missing driver silently becomes a slow GL adapter of the same name (as in shoal.mjs).
  if (Deno.build.os === "linux" && Deno.env.get(BACKEND) === undefined) Deno.env.set(BACKEND, "vulkan");
  const { openTfjsInDeno } = await import("./tfjs_deno.ts");
  await openTfjsInDeno();
  const gpu = await openDenoDevice({ features: ["timestamp-query"] });
  try {
    const note = (text: string) => console.error(`deno: ${text}`);
    return await measurePlace({ name: "deno", gpu, backends: ["tfjs-wasm"], note }, options);
  } finally {
    gpu.destroy();
  }
}

/** Loaded on demand: vite's native parts take a permission that --help and a run in this process do not need. */
async function measureInTab(options: Options): Promise<PlaceResult> {
  const { callTab, closeBrowser, openTabs } = await import("../test/e2e/browser_support.ts");
  try {
    await using tabs = await openTabs(ENTRY);
    const page = await lenientPage(tabs);
    page.on("console", (message) => console.error(`chromium: ${message.text()}`));
    return await callTab<EngineTab, "measure">(page, "measure", options);
  } finally {
    await closeBrowser();
  }
}

/** The same tab without the pages' content policy, under which tfjs' WASM does not start. */
async function lenientPage(tabs: Tabs): Promise<Page> {
  const strict = await tabs.open();
  const context = await tabs.context.browser()!.newContext({ bypassCSP: true });
  const page = await context.newPage();
  await page.goto(strict.url());
  await page.waitForFunction(() => "suite" in globalThis);
  await strict.close();
  return page;
}

/** Resolves to the exit code: 1 if losses differ. */
async function main(args: string[]): Promise<number> {
  const { places, json, help, ...options } = parseFlags(args);
  if (help) {
    console.log(HELP);
    return 0;
  }
  const results: PlaceResult[] = [];
  for (const place of places) {
    const result = place === "chromium" ? await measureInTab(options) : await measureHere(options);
    console.log(`${report(result)}\n`);
    results.push(result);
  }
  const bad = results.flatMap(({ place, checks }) => badChecks(checks).map((check) => ({ place, ...check })));
  for (const { place, side, failure, difference } of bad) {
    console.error(`${place}: the losses of ${side} differ: ${failure ?? difference}`);
  }
  const summary = summarise(results);
  if (json) console.log(JSON.stringify({ benchmark: "engine", ...options, places: results, summary }));
  return bad.length === 0 ? 0 : 1;
}

if (import.meta.main) await runMain(main);
