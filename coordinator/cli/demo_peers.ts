// The demo's own peers: Deno processes and tabs of one headless Chromium, started and ended here.
// Not a part of the run: a peer that dies is reported, and the run goes on without it. Whatever was started is ended.
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Browser, BrowserContext } from "playwright";
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";
import type { EngineWish } from "../../peer/wire/status.ts";
import { permissionsFor } from "./permissions.mjs";
import { repositoryRoot } from "./root.ts";

/** Between asking a peer to leave and ending it: a micro-batch and a goodbye take less. */
const LEAVE_MS = 5000;
/** A page that has not shown its button by then has failed to load. */
const BUTTON_MS = 30_000;
/** What is kept of a peer's messages to explain its death. */
const LAST_WORDS_CHARS = 400;

/**
 * WebGPU without a GPU, WebRTC over loopback, and no traffic of the browser's own. Chromium's sandbox does not start
 * as root or in many containers; the pages it opens here are our own.
 */
const CHROMIUM_ARGS = [
  "--no-sandbox",
  "--enable-unsafe-webgpu",
  "--allow-loopback-in-peer-connection",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

export interface DemoPeers {
  /**
   * Starts everything; resolves when all tabs have pressed their button.
   * @throws {ShoalError} missing-tool without a Chromium; link-timeout if a tab does not load.
   */
  start(): Promise<void>;
  /** Asks every peer to leave, waits a little, then ends what is left. */
  stop(): Promise<void>;
  /** Ends at once, without goodbyes; for the second Ctrl-C. */
  kill(): void;
}

export interface DemoPeersOptions {
  joinLink: string;
  deno: number;
  tabs: number;
  /** undefined = what each peer finds to be the quickest. */
  engine?: EngineWish | undefined;
  /** A peer ended that nobody asked to end: one sentence, and how many of the demo's peers are left. */
  onLoss: (text: string, left: number) => void;
}

export function createDemoPeers(options: DemoPeersOptions): DemoPeers {
  const children: DenoPeer[] = [];
  let left = options.deno + options.tabs;
  function lose(text: string, count: number): void {
    left -= count;
    options.onLoss(text, left);
  }
  const tabs = new Tabs(tabLink(options), lose);
  return {
    async start() {
      for (let number = 1; number <= options.deno; number++) {
        children.push(new DenoPeer(number, options, lose));
      }
      await tabs.open(options.tabs);
    },
    async stop() {
      await Promise.all([tabs.close(), ...children.map((child) => child.stop())]);
    },
    kill() {
      for (const child of children) child.kill("SIGKILL");
      tabs.kill();
    },
  };
}

/** Takes note of `count` peers that ended unasked. */
type Lose = (text: string, count: number) => void;

/** One `shoal peer` process, with the permissions that the verb has everywhere. */
class DenoPeer {
  readonly #process: Deno.ChildProcess;
  readonly #ended: Promise<void>;
  #stopping = false;
  #lastWords = "";

  constructor(number: number, options: DemoPeersOptions, lose: Lose) {
    this.#process = new Deno.Command(Deno.execPath(), {
      args: denoPeerArgs(options, `deno-${number}`),
      stdin: "null",
      stdout: "null",
      stderr: "piped",
    }).spawn();
    const heard = this.#listen();
    this.#ended = this.#process.status.then(async ({ code, signal }) => {
      await heard;
      if (this.#stopping) return;
      lose(`peer deno-${number} ended (${signal ?? `exit code ${code}`}): ${this.#lastWords.trim()}`, 1);
    });
  }

  kill(signal: Deno.Signal): void {
    this.#stopping = true;
    try {
      this.#process.kill(signal);
    } catch {
      // It has ended already.
    }
  }

  async stop(): Promise<void> {
    this.kill("SIGINT");
    const timer = setTimeout(() => this.kill("SIGKILL"), LEAVE_MS);
    await this.#ended;
    clearTimeout(timer);
  }

  /** Reads stderr to its end, so that the pipe never fills, and keeps the last words. */
  async #listen(): Promise<void> {
    for await (const text of this.#process.stderr.pipeThrough(new TextDecoderStream())) {
      this.#lastWords = (this.#lastWords + text).slice(-LAST_WORDS_CHARS);
    }
  }
}

/** The join link of a tab: the engine stands before the #. */
export function tabLink({ joinLink, engine }: Pick<DemoPeersOptions, "joinLink" | "engine">): string {
  const url = new URL(joinLink);
  if (engine !== undefined) url.searchParams.set("engine", engine);
  return url.href;
}

function denoPeerArgs({ joinLink, engine }: DemoPeersOptions, name: string): string[] {
  const chosen = engine === undefined ? [] : ["--engine", engine];
  const args = ["--join", joinLink, "--name", name, ...chosen];
  const around = {
    root: repositoryRoot,
    cwd: Deno.cwd(),
    tmp: tmpdir(),
    deno: Deno.execPath(),
    chromium: null,
  };
  const script = join(repositoryRoot, "coordinator", "cli", "main.ts");
  const config = ["--config", join(repositoryRoot, "deno.json"), "--quiet", "--no-prompt"];
  return ["run", ...config, ...permissionsFor("peer", args, around), script, "peer", ...args];
}

/**
 * Playwright looks into /proc while it loads, to find out whether it runs under Windows, which Deno allows only with
 * every permission there is. This variable puts the look off until somebody asks, and nobody here does.
 */
async function loadChromium() {
  Deno.env.set("__IS_WSL_TEST__", "1");
  return (await import("playwright")).chromium;
}

async function launch(executablePath: string): Promise<Browser> {
  const chromium = await loadChromium();
  // Ctrl-C is ours: tabs say goodbye before the browser goes.
  const signals = { handleSIGINT: false, handleSIGTERM: false, handleSIGHUP: false };
  try {
    return await chromium.launch({ executablePath, args: CHROMIUM_ARGS, ...signals });
  } catch (error) {
    const reason = messageOf(error).split("\n")[0];
    const remedy = "set CHROMIUM_PATH to one that starts, or use --tabs=0";
    throw new ShoalError(
      "missing-tool",
      `Chromium (${executablePath}) did not start: ${reason}; ${remedy}`,
      {
        cause: error,
      },
    );
  }
}

/** Tabs of one headless browser; each presses the button that a contributor would press. */
class Tabs {
  readonly #joinLink: string;
  readonly #lose: Lose;
  #browser: Browser | null = null;
  /** Tabs that have joined and not crashed. */
  #open = 0;
  #closing = false;

  constructor(joinLink: string, lose: Lose) {
    this.#joinLink = joinLink;
    this.#lose = lose;
  }

  async open(count: number): Promise<void> {
    if (count === 0) return;
    const executablePath = Deno.env.get("CHROMIUM_PATH");
    if (executablePath === undefined) {
      throw new ShoalError("missing-tool", "no Chromium is known; set CHROMIUM_PATH, or use --tabs=0");
    }
    this.#browser = await launch(executablePath);
    this.#browser.on("disconnected", () => {
      if (!this.#closing) this.#lose("the browser ended, and its tabs with it", this.#open);
    });
    // Loopback candidates are withheld from pages that may use neither camera nor microphone; none is opened.
    const context = await this.#browser.newContext({ permissions: ["microphone", "camera"] });
    for (let number = 1; number <= count; number++) await this.#join(context, number);
  }

  async #join(context: BrowserContext, number: number): Promise<void> {
    const page = await context.newPage();
    page.on("crash", () => {
      this.#open--;
      this.#lose(`tab ${number} crashed`, 1);
    });
    try {
      await page.goto(this.#joinLink);
      await page.getByRole("button", { name: /lend this computer/i }).click({ timeout: BUTTON_MS });
      this.#open++;
    } catch (error) {
      throw new ShoalError("link-timeout", `tab ${number} did not join: ${messageOf(error)}`, {
        cause: error,
      });
    }
  }

  kill(): void {
    this.#closing = true;
    // Closing is a message to the browser; the process ends with the pipe when ours does.
    this.#browser?.close().catch(() => {});
  }

  async close(): Promise<void> {
    this.#closing = true;
    await this.#browser?.close();
  }
}
