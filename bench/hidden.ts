// Prints how much slower a tab trains while it is hidden, and how soon its page answers a press meanwhile: a real window on a
// virtual screen, one tab that does all the work of a run, visible and hidden in turns. Not a test: nothing fails on slow figures.
import { fileURLToPath } from "node:url";
import { startCoordinator } from "../coordinator/main.ts";
import { readConfig } from "../peer/model/config.ts";
import { ENGINES, type EngineWish } from "../peer/wire/status.ts";
import { type Tab, Window } from "./hidden_window.ts";
import { aligned, choiceFlag, flagValues, median, runMain, wholeFlag } from "./support.ts";

const WEB_ROOT = fileURLToPath(new URL("../web/dist", import.meta.url));
const HELP = `usage: npm run bench:hidden -- [flags]
Trains in one tab of a real window, visible and hidden in turns. Needs Linux with Xvfb (apt-get install xvfb).

  --rounds=N     turns of each kind (5)
  --steps=N      steps of each turn (20)
  --engine=NAME  what the tab computes with: auto, ${ENGINES.join(", ")} (auto)
  --json         print one JSON object, with a summary, as the last line
  --help         show this text`;
const OPTIONS = {
  rounds: { type: "string", default: "5" },
  steps: { type: "string", default: "20" },
  engine: { type: "string", default: "auto" },
  json: { type: "boolean", default: false },
  help: { type: "boolean", default: false },
} as const;

/** Steps after a change of sides that still belong to neither. */
const SETTLE_STEPS = 2;
/** Presses whose answers are timed in each visible turn. */
const PRESSES = 4;
/** Longest turn: beyond it the tab has stopped. */
const TURN_MS = 300_000;

const RUN = {
  ...{ n_layer: 2, n_head: 2, n_kv_head: 1, n_embd: 32, n_inner: 64, block_size: 32, batch_size: 4 },
  ...{ gradient_accumulation_steps: 4, max_iters: 100_000, lr_decay_iters: 100_000, warmup_iters: 5 },
  ...{ eval_interval: 100_000, snapshot_interval: 0, checkpoint_interval: 100_000, sample_chars: 0 },
  ...{ n_stage: 1, min_peers: 1 },
};

export function parseFlags(args: string[]) {
  const { rounds, steps, engine, json, help } = flagValues(args, OPTIONS);
  return {
    ...{ json, help, engine: choiceFlag<EngineWish>("engine", engine, ["auto", ...ENGINES]) },
    rounds: wholeFlag("rounds", rounds, [1, 100]),
    steps: wholeFlag("steps", steps, [3, 10_000]),
  };
}

export interface Turn {
  side: "visible" | "hidden";
  /** What the page itself says of its visibility; anything else than its side would make the turn worthless. */
  state: string;
  /** Median time between two commits, ms. */
  stepMs: number;
  /** From a press to the next paint, ms; the browser gives them in eighths. */
  pressMs: number[];
}

/** Each hidden turn over the mean of the visible ones beside it, so that a machine that gets slower treats both alike. */
export function summarise(turns: readonly Turn[]) {
  const ratios = turns.flatMap(({ side, stepMs }, index) => {
    const beside = [turns[index - 1], turns[index + 1]].filter((turn) => turn?.side === "visible");
    if (side !== "hidden" || beside.length === 0) return [];
    return [stepMs / (beside.reduce((sum, turn) => sum + turn!.stepMs, 0) / beside.length)];
  });
  const presses = turns.flatMap(({ pressMs }) => pressMs);
  return {
    hidden_over_visible: ratios.length === 0 ? null : median(ratios),
    press_to_paint_ms: presses.length === 0 ? null : Math.max(...presses),
    told_truth: turns.every(({ side, state }) => side === state),
  };
}

/** The browser's own measurements of presses, from the slowest kind of event that a press causes. */
const WATCH_PRESSES = `globalThis.presses = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (entry.interactionId > 0) presses.push(entry.duration);
}).observe({ type: "event", durationThreshold: 16 });`;

async function turn(
  side: Turn["side"],
  steps: number,
  { tab, commits }: { tab: Tab; commits: number[] },
): Promise<Turn> {
  await untilLength(commits, commits.length + SETTLE_STEPS);
  const from = commits.length;
  if (side === "visible") {
    for (let press = 0; press < PRESSES; press++) await tab.press(".limits summary");
  }
  await untilLength(commits, from + steps);
  const gaps = commits.slice(from).map((at, index) => at - commits[from + index - 1]!);
  const state = await tab.evaluate<string>("document.visibilityState");
  const pressMs = await tab.evaluate<number[]>("presses.splice(0)");
  return { side, state, stepMs: median(gaps), pressMs };
}

async function untilLength(commits: readonly number[], length: number): Promise<void> {
  const deadline = performance.now() + TURN_MS;
  while (commits.length < length) {
    if (performance.now() > deadline) throw new Error(`no commit for too long; ${commits.length} so far`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

async function measure({ rounds, steps, engine }: ReturnType<typeof parseFlags>): Promise<Turn[]> {
  const commits: number[] = [];
  const outDir = await Deno.makeTempDir({ prefix: "shoal-hidden-run-" });
  const coordinator = await startCoordinator({
    config: readConfig(RUN),
    ...{ host: "127.0.0.1", port: 0, outDir, operator: "the bench", runName: "hidden", webRoot: WEB_ROOT },
    onEvent: (line) => line.event === "step" && commits.push(performance.now()),
  });
  try {
    await using screen = await Window.open();
    const tab = await screen.openTab(coordinator.joinLink.replace("/#", `/?engine=${engine}#`));
    await tab.wait(`document.querySelector("button.primary") !== null`);
    await tab.evaluate(WATCH_PRESSES);
    await tab.evaluate(`document.querySelector("button.primary").click()`);
    await untilLength(commits, 5);
    const cover = await screen.openTab("about:blank");
    const turns: Turn[] = [];
    for (let round = 0; round <= rounds; round++) {
      await screen.show(tab);
      turns.push(await turn("visible", steps, { tab, commits }));
      if (round === rounds) break;
      await screen.show(cover);
      turns.push(await turn("hidden", steps, { tab, commits }));
    }
    for (const open of [tab, cover]) open.close();
    return turns;
  } finally {
    await coordinator.stop("the bench is over");
    await Deno.remove(outDir, { recursive: true });
  }
}

export function turnTable(turns: readonly Turn[]): string {
  const rows = turns.map(({ side, state, stepMs, pressMs }) => [
    side,
    state,
    stepMs.toFixed(1),
    pressMs.length === 0 ? "none above 16" : Math.max(...pressMs).toFixed(0),
  ]);
  return aligned([["turn", "page says", "step ms", "press to paint ms"], ...rows]).join("\n");
}

async function main(args: string[]): Promise<void> {
  const flags = parseFlags(args);
  if (flags.help) return console.log(HELP);
  const turns = await measure(flags);
  const summary = summarise(turns);
  console.log(turnTable(turns));
  console.log(
    `hidden over visible ${summary.hidden_over_visible?.toFixed(2)}; slowest press to paint ${
      summary.press_to_paint_ms ?? "below 16"
    } ms`,
  );
  if (!summary.told_truth) console.log("The window manager did not hide the tab: these figures say nothing.");
  if (flags.json) console.log(JSON.stringify({ turns, summary }));
}

if (import.meta.main) await runMain(main);
