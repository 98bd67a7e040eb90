// Prints how soon the pages answer a press or a key while a tab of the same browser trains: a real window on a virtual screen, the
// contributor's page first and then the admin's in front. Not a test: nothing fails on slow figures.
import { fileURLToPath } from "node:url";
import { startCoordinator } from "../coordinator/main.ts";
import { readConfig } from "../peer/model/config.ts";
import { ENGINES, type EngineWish } from "../peer/wire/status.ts";
import { type Tab, Window } from "./hidden_window.ts";
import { aligned, choiceFlag, flagValues, runMain, wholeFlag } from "./support.ts";

const WEB_ROOT = fileURLToPath(new URL("../web/dist", import.meta.url));
const HELP = `usage: npm run bench:paint -- [flags]
Presses and types on both pages while a tab trains, and prints how long the next paint took. Needs Linux with Xvfb
(apt-get install xvfb).

  --rounds=N     how often each press and key is made (10)
  --engine=NAME  what the tab computes with: auto, ${ENGINES.join(", ")} (auto)
  --json         print one JSON object, with a summary, as the last line
  --help         show this text`;
const OPTIONS = {
  rounds: { type: "string", default: "10" },
  engine: { type: "string", default: "auto" },
  json: { type: "boolean", default: false },
  help: { type: "boolean", default: false },
} as const;

/** Between two presses: the page has updates of its own, and people are no machines. */
const PAUSE_MS = 250;
/** Commits before the first press: kernels are compiled by then. */
const WARM_STEPS = 5;
/** Longest wait for them. */
const WARM_MS = 300_000;
/** The quickest answer that the browser reports; what is quicker counts as this. */
const THRESHOLD_MS = 16;
/** Of all interactions so many are slower than the figure that counts, as browsers reckon it: one in fifty. */
const SLOWER_SHARE = 1 / 50;

const RUN = {
  ...{ n_layer: 2, n_head: 2, n_kv_head: 1, n_embd: 32, n_inner: 64, block_size: 32, batch_size: 4 },
  ...{ gradient_accumulation_steps: 4, max_iters: 100_000, lr_decay_iters: 100_000, warmup_iters: 5 },
  ...{ eval_interval: 100_000, snapshot_interval: 0, checkpoint_interval: 100_000, sample_chars: 0 },
  ...{ n_stage: 1, min_peers: 1 },
};

type PageName = "contributor" | "admin";

/** What is done once in each round, in turn. */
const DEEDS: Record<PageName, { name: string; do(tab: Tab): Promise<void> }[]> = {
  contributor: [
    { name: "unfold the limits", do: (tab) => tab.press(".limits summary") },
    { name: "fold them again", do: (tab) => tab.press(".limits summary") },
  ],
  admin: [
    { name: "put the cursor into the search", do: (tab) => tab.press('input[type="search"]') },
    { name: "type a letter", do: (tab) => tab.key("e") },
    { name: "delete it", do: (tab) => tab.key("Backspace") },
    { name: "unfold the plan's reasons", do: (tab) => tab.press(".plan summary") },
    { name: "ask before a peer is removed", do: (tab) => tab.press(".peer-orders button") },
    { name: "keep it", do: (tab) => tab.key("Escape") },
  ],
};

export function parseFlags(args: string[]) {
  const { rounds, engine, json, help } = flagValues(args, OPTIONS);
  return {
    ...{ json, help, engine: choiceFlag<EngineWish>("engine", engine, ["auto", ...ENGINES]) },
    rounds: wholeFlag("rounds", rounds, [1, 1_000]),
  };
}

/** One press or key, and how long it took from the input to the next paint. */
export interface Interaction {
  page: PageName;
  name: string;
  /** In eighths, as browsers give it; null = quicker than the browser reports. */
  ms: number | null;
}

/** The interaction that one in fifty is slower than, over all and by page; steps that were committed meanwhile. */
export function summarise(interactions: readonly Interaction[], steps: number) {
  const of = (page: PageName | null) => inp(interactions.filter((it) => page === null || it.page === page));
  return {
    inp_ms: of(null),
    contributor_inp_ms: of("contributor"),
    admin_inp_ms: of("admin"),
    interactions: interactions.length,
    steps,
  };
}

function inp(interactions: readonly Interaction[]): number | null {
  const slowest = interactions.map(({ ms }) => ms ?? THRESHOLD_MS).sort((a, b) => b - a);
  return slowest[Math.floor(slowest.length * SLOWER_SHARE)] ?? null;
}

/** The browser's own measurements; of a press it reports several events, and the slowest of them counts. */
const WATCH = `globalThis.presses = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (entry.interactionId > 0) presses.push(entry.duration);
}).observe({ type: "event", durationThreshold: ${THRESHOLD_MS} });`;

async function interact(page: PageName, tab: Tab, rounds: number): Promise<Interaction[]> {
  await tab.evaluate(WATCH);
  const all: Interaction[] = [];
  for (let round = 0; round < rounds; round++) {
    for (const deed of DEEDS[page]) {
      await deed.do(tab);
      await pause(PAUSE_MS);
      const seen = await tab.evaluate<number[]>("presses.splice(0)");
      all.push({ page, name: deed.name, ms: seen.length === 0 ? null : Math.max(...seen) });
    }
  }
  return all;
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

async function measure({ rounds, engine }: ReturnType<typeof parseFlags>) {
  let steps = 0;
  const outDir = await Deno.makeTempDir({ prefix: "shoal-paint-run-" });
  const coordinator = await startCoordinator({
    config: readConfig(RUN),
    ...{ host: "127.0.0.1", port: 0, outDir, operator: "the bench", runName: "paint", webRoot: WEB_ROOT },
    onEvent: (line) => line.event === "step" && steps++,
  });
  try {
    await using screen = await Window.open();
    const tab = await screen.openTab(coordinator.joinLink.replace("/#", `/?engine=${engine}#`));
    await tab.wait(`document.querySelector("button.primary") !== null`);
    await tab.evaluate(`document.querySelector("button.primary").click()`);
    for (const deadline = performance.now() + WARM_MS; steps < WARM_STEPS; await pause(50)) {
      if (performance.now() > deadline) throw new Error(`only ${steps} steps were committed`);
    }
    const from = steps;
    const lending = await interact("contributor", tab, rounds);
    const admin = await screen.openTab(coordinator.adminLink);
    await admin.wait(`document.querySelector(".plan summary") !== null`);
    const steering = await interact("admin", admin, rounds);
    for (const open of [tab, admin]) open.close();
    return { interactions: [...lending, ...steering], steps: steps - from };
  } finally {
    await coordinator.stop("the bench is over");
    await Deno.remove(outDir, { recursive: true });
  }
}

export function paintTable(interactions: readonly Interaction[]): string {
  const kinds = [...new Map(interactions.map((it) => [`${it.page}/${it.name}`, it])).values()];
  const rows = kinds.map(({ page, name }) => {
    const all = interactions.filter((it) => it.page === page && it.name === name);
    return [page, name, String(all.length), `${Math.max(...all.map(({ ms }) => ms ?? THRESHOLD_MS))}`];
  });
  return aligned([["page", "press or key", "times", "slowest ms"], ...rows]).join("\n");
}

async function main(args: string[]): Promise<void> {
  const flags = parseFlags(args);
  if (flags.help) return console.log(HELP);
  const { interactions, steps } = await measure(flags);
  const summary = summarise(interactions, steps);
  console.log(paintTable(interactions));
  console.log(`interaction to next paint ${summary.inp_ms} ms, while ${steps} steps were committed`);
  if (flags.json) console.log(JSON.stringify({ interactions, summary }));
}

if (import.meta.main) await runMain(main);
