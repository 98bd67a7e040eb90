// Real tabs of one headless Chromium that lend themselves to a run, and the ways in which a tab can go. No assertions.
// A tab presses the same button that a contributor would press; everything closes with the browser.
import { type Browser, type BrowserContext, chromium, type Page } from "playwright";
import { findChromium } from "../../coordinator/cli/install.mjs";
import { PATIENCE_MS } from "./process.ts";

/**
 * Software WebGPU, WebRTC on machines with no network but loopback, no traffic of the browser's own. The coordinator of a
 * test network is no localhost: its plain http address is declared secure beside these.
 */
const FLAGS = [
  "--no-sandbox",
  "--enable-unsafe-webgpu",
  "--allow-loopback-in-peer-connection",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];
/** With these the browser gives out the addresses that loopback connections need; nothing is recorded. */
const PERMISSIONS = ["microphone", "camera"];

export type TabEngineChoice = "cpu" | "wgsl";

export interface TabsOptions {
  joinLink: string;
  engine: TabEngineChoice;
  /** Network namespace for the whole browser; `scratch` is then the folder for its start script. */
  space?: string;
  scratch: string;
}

export class Tabs implements AsyncDisposable {
  readonly #options: TabsOptions;
  #browser: Promise<{ browser: Browser; context: BrowserContext }> | null = null;

  constructor(options: TabsOptions) {
    this.#options = options;
  }

  /** A tab that has pressed its button. */
  async open(): Promise<Tab> {
    this.#browser ??= this.#launch();
    const { context } = await this.#browser;
    const tab = new Tab(await context.newPage());
    await tab.join(this.#address());
    return tab;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await (await this.#browser)?.browser.close();
  }

  #address(): string {
    const url = new URL(this.#options.joinLink);
    url.searchParams.set("engine", this.#options.engine);
    return url.href;
  }

  async #launch(): Promise<{ browser: Browser; context: BrowserContext }> {
    const signals = { handleSIGINT: false, handleSIGTERM: false, handleSIGHUP: false };
    const browser = await chromium.launch({
      executablePath: await this.#executable(),
      args: [
        ...FLAGS,
        `--unsafely-treat-insecure-origin-as-secure=${new URL(this.#options.joinLink).origin}`,
      ],
      ...signals,
    });
    const context = await browser.newContext({ permissions: PERMISSIONS });
    context.setDefaultTimeout(PATIENCE_MS);
    return { browser, context };
  }

  async #executable(): Promise<string> {
    const program = findChromium();
    if (program === null) throw new Error("no Chromium found: install it or set CHROMIUM_PATH");
    const { space, scratch } = this.#options;
    if (space === undefined) return program;
    const script = `${scratch}/chromium-${space}`;
    await Deno.writeTextFile(script, `#!/bin/sh\nexec ip netns exec ${space} "${program}" "$@"\n`, {
      mode: 0o700,
    });
    return script;
  }
}

export class Tab {
  readonly page: Page;

  constructor(page: Page) {
    this.page = page;
  }

  async join(address: string): Promise<void> {
    await this.page.goto(address);
    await this.#lend();
  }

  async #lend(): Promise<void> {
    await this.page.getByRole("button", { name: /lend this computer/i }).click();
  }

  /** As a person closes a tab: the page hears of it and can say goodbye. */
  async goodbye(): Promise<void> {
    const closed = this.page.waitForEvent("close");
    await this.page.close({ runBeforeUnload: true });
    await closed;
  }

  /** The renderer dies in the middle of whatever it did; nothing in it runs again. */
  async crash(): Promise<void> {
    const session = await this.page.context().newCDPSession(this.page);
    const crashed = this.page.waitForEvent("crash");
    // The answer never comes: who would give it is dead.
    session.send("Page.crash").catch(() => {});
    await crashed;
    await this.page.close();
  }

  /** The page goes and comes again by itself, as a new peer: who agreed is not asked twice. */
  async reload(): Promise<void> {
    await this.page.reload();
    await this.page.getByRole("button", { name: /leave now/i }).waitFor();
  }

  /** The button of a contributor who is done: the step is finished and the stage handed over. */
  async finish(): Promise<void> {
    await this.page.getByRole("button", { name: /finish this step and leave/i }).click();
    await this.page.getByText(/left|thank/i).first().waitFor();
    await this.page.close();
  }
}
