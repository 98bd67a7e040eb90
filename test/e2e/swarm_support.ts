// A real swarm for tests: a coordinator in this process, real tabs with software WebGPU, a real Deno peer as a child process.
// Everything it starts is ended by its disposer, by process id.
import { fileURLToPath } from "node:url";
import type { Browser, BrowserContext, Page } from "playwright";
import { permissionsFor } from "../../coordinator/cli/permissions.mjs";
import type { CoordinatorEventLine } from "../../coordinator/core/run_state.ts";
import { type Coordinator, startCoordinator } from "../../coordinator/main.ts";
import { readConfig } from "../../peer/model/config.ts";
import type { EngineWish } from "../../peer/wire/status.ts";
import { openBrowser } from "./pages_support.ts";

const ROOT = fileURLToPath(new URL("../../", import.meta.url));
/** Longest wait for anything; a loaded two-core machine compiles shaders for a while. */
const PATIENCE_MS = 240_000;
const POLL_MS = 100;

export interface Swarm extends AsyncDisposable {
  coordinator: Coordinator;
  lines: CoordinatorEventLine[];
  outDir: string;
  /** A tab that computes with `engine`. @param prepare runs on the empty page, before the join link is opened */
  openTab(engine?: EngineWish, prepare?: (page: Page) => Promise<unknown>): Promise<Page>;
  startPeer(engine?: EngineWish): Deno.ChildProcess;
  step(): number;
  until(what: string, holds: () => boolean): Promise<void>;
}

/** A model small enough that software adapters take well under a second per step. */
export const SMALL = {
  ...{ n_layer: 2, n_head: 2, n_kv_head: 1, n_embd: 32, n_inner: 64, block_size: 32, batch_size: 4 },
  ...{
    gradient_accumulation_steps: 4,
    max_iters: 2000,
    lr_decay_iters: 2000,
    warmup_iters: 5,
    eval_interval: 10,
  },
  ...{ learning_rate: 3e-3, snapshot_interval: 5, checkpoint_interval: 1000, sample_chars: 20 },
};

export async function startSwarm(changes: Record<string, unknown>): Promise<Swarm> {
  const lines: CoordinatorEventLine[] = [];
  const outDir = await Deno.makeTempDir({ prefix: "shoal-swarm-" });
  const coordinator = await startCoordinator({
    config: readConfig({ ...SMALL, ...changes }),
    ...{ host: "127.0.0.1", port: 0, outDir, operator: "the test", runName: "test run" },
    webRoot: `${ROOT}web/dist`,
    onEvent: (line) => lines.push(line),
  });
  const children: Deno.ChildProcess[] = [];
  let browser: { browser: Browser; context: BrowserContext } | null = null;
  const openTab: Swarm["openTab"] = async (engine = "wgsl", prepare) => {
    browser ??= await openGpuBrowser();
    const page = await browser.context.newPage();
    page.setDefaultTimeout(PATIENCE_MS);
    await prepare?.(page);
    await page.goto(coordinator.joinLink.replace("/#", `/?engine=${engine}#`));
    return page;
  };
  const step = () => coordinator.shell.core.state.committed;
  return {
    ...{ coordinator, lines, outDir, openTab, step },
    startPeer: (engine = "wgsl") => {
      const child = spawnPeer(coordinator.joinLink, engine);
      children.push(child);
      return child;
    },
    until: (what, holds) => until(what, holds, coordinator),
    async [Symbol.asyncDispose]() {
      await browser?.browser.close();
      for (const child of children) await end(child);
      await coordinator.stop("the test is over");
      await Deno.remove(outDir, { recursive: true });
    },
  };
}

async function openGpuBrowser() {
  const browser = await openBrowser(["--enable-unsafe-webgpu", "--allow-loopback-in-peer-connection"]);
  const context = await browser.newContext({ permissions: ["microphone", "camera"] });
  return { browser, context };
}

function spawnPeer(link: string, engine: string): Deno.ChildProcess {
  const around = { root: ROOT, cwd: ROOT, tmp: "", deno: Deno.execPath(), chromium: null };
  const args = ["peer", "--join", link, "--engine", engine, "--json"];
  const flags = permissionsFor("peer", args.slice(1), around);
  const command = ["run", "--no-prompt", ...flags, "coordinator/cli/main.ts", ...args];
  return new Deno.Command(Deno.execPath(), { args: command, cwd: ROOT, stdout: "null", stderr: "null" })
    .spawn();
}

async function end(child: Deno.ChildProcess): Promise<void> {
  try {
    child.kill("SIGKILL");
  } catch {
    // It has ended already.
  }
  await child.status;
}

async function until(what: string, holds: () => boolean, coordinator: Coordinator): Promise<void> {
  const deadline = performance.now() + PATIENCE_MS;
  while (!holds()) {
    if (performance.now() > deadline) {
      const { status, reason, committed, events } = coordinator.shell.core.state;
      const log = events.slice(-12).map((event) => event.text).join("\n");
      throw new Error(`waited too long for ${what}; step ${committed}, ${status}: ${reason}\n${log}`);
    }
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}
