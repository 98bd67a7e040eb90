// Bundles a program for the browser with the project's own build plugins, and opens tabs that run it. No assertions.
// The program is built in memory, once per test process; the browser is shared, a context and its server are not.
import { fileURLToPath } from "node:url";
import type { Browser, BrowserContext, Page } from "playwright";
import { build, loadConfigFromFile } from "vite";
import type { TabSuite } from "./browser_entry.ts";
import { type Built, openBrowser, serveBuilt } from "./pages_support.ts";

const ROOT = fileURLToPath(new URL("../../", import.meta.url));
const ENTRY = `${ROOT}test/e2e/browser_entry.ts`;

/** Software WebGPU, and WebRTC between tabs of a machine that may have no network but loopback. */
const FLAGS = ["--enable-unsafe-webgpu", "--allow-loopback-in-peer-connection"];
/** With these the browser gives out the addresses that loopback connections need; nothing is recorded. */
const PERMISSIONS = ["microphone", "camera"];
/** Longest wait for one call into a tab; shader compilers of software adapters are slow on a loaded machine. */
const PATIENCE_MS = 120_000;

/** Builds `entry` as the pages are built, with the plugins of vite.config.ts, and an index.html that loads it. */
async function bundleForTab(entry: string): Promise<Built> {
  const environment = { command: "build", mode: "production" } as const;
  const loaded = await loadConfigFromFile(environment, `${ROOT}vite.config.ts`);
  if (loaded === null) throw new Error("vite.config.ts does not load");
  const { plugins = [], worker = {} } = loaded.config;
  const result = await build({
    configFile: false,
    root: ROOT,
    plugins,
    worker,
    publicDir: false,
    logLevel: "error",
    build: {
      write: false,
      target: "esnext",
      minify: false,
      assetsInlineLimit: 0,
      modulePreload: { polyfill: false },
      rolldownOptions: { input: [entry], output: { entryFileNames: "entry.js" } },
    },
  });
  if (!("output" in result)) throw new Error("vite gave more than one output");
  const encoder = new TextEncoder();
  const html = '<!doctype html><title>Shoal test</title><script type="module" src="/entry.js"></script>';
  const files = new Map([["index.html", encoder.encode(html)]]);
  for (const item of result.output) {
    const content = item.type === "chunk" ? item.code : item.source;
    files.set(item.fileName, typeof content === "string" ? encoder.encode(content) : content.slice());
  }
  return { files, chunks: [], wasm: true };
}

const bundled = new Map<string, Promise<Built>>();
let browser: Promise<Browser> | undefined;

/**
 * Tests of this module's users share one browser, whose pipe is busy from the first test to the last: what the
 * sanitizers take for a leak. The native WebRTC addon keeps handles too. Contexts and servers are closed by disposers.
 */
export const SHARED_BROWSER = { sanitizeOps: false, sanitizeResources: false };

/** To be called after the last test that used openTabs(). */
export async function closeBrowser(): Promise<void> {
  await (await browser)?.close();
  browser = undefined;
}

export interface Tabs extends AsyncDisposable {
  context: BrowserContext;
  /** What no code of any tab caught, as text. */
  errors: string[];
  /** A tab that has the global `suite`. With `carry`, text that the tab hands to carrySignal arrives there. */
  open(carry?: (data: string) => void): Promise<Page>;
}

/** A fresh context, with software WebGPU and loopback WebRTC, of the browser that all tests of the process share. */
export async function openTabs(entry = ENTRY): Promise<Tabs> {
  const bundle = bundled.get(entry) ?? bundleForTab(entry);
  bundled.set(entry, bundle);
  browser ??= openBrowser(FLAGS);
  const site = serveBuilt(await bundle);
  const context = await (await browser).newContext({ permissions: PERMISSIONS });
  context.setDefaultTimeout(PATIENCE_MS);
  const errors: string[] = [];
  context.on("weberror", (error) => errors.push(String(error.error())));
  return {
    context,
    errors,
    open: async (carry) => {
      const page = await context.newPage();
      if (carry !== undefined) await page.exposeFunction("carrySignal", carry);
      await page.goto(site.origin);
      await page.waitForFunction(() => "suite" in globalThis);
      return page;
    },
    async [Symbol.asyncDispose]() {
      await context.close();
      await site[Symbol.asyncDispose]();
    },
  };
}

/** What a tab's global `suite` offers. */
type Suite = Record<string, (...args: never[]) => unknown>;

/** Calls a function of the tab's `suite`; arguments and result are copied, typed arrays included. */
export function callTab<S extends Suite = TabSuite, Name extends keyof S = keyof S>(
  page: Page,
  name: Name,
  ...args: Parameters<S[Name]>
): Promise<Awaited<ReturnType<S[Name]>>> {
  const call = { name, args } as { name: string; args: unknown[] };
  return page.evaluate(({ name, args }) => {
    const { suite } = globalThis as unknown as { suite: Record<string, (...args: unknown[]) => never> };
    return suite[name]!(...args);
  }, call);
}
