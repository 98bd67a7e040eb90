// What the tests of bound pages need: a scripted coordinator, a scripted peer in place of the real one, a browser. No assertions.
// The peer's module is replaced at its address, so these tests are of the pages and not of the training.
import type { Browser, BrowserContext, Page } from "playwright";
import type { snapshot } from "../../web/fixtures_data.ts";
import { type ApiHandler, buildPages, type Built, openBrowser, serveBuilt } from "./pages_support.ts";

export const TOKEN = "k3v9-2mfa";

/** Stands at the address of peer/browser.ts: notes every call, and lets the test send snapshots. */
const PEER_MODULE = `
globalThis.calls = [];
const note = (name) => (...args) => { globalThis.calls.push([name, ...args.filter((a) => typeof a !== "function")]); };
export function openTabPeer() {
  note("open")();
  const wish = (name) => async (...args) => note(name)(...args);
  return {
    start: async (options, show) => { note("start")(options); globalThis.show = show; },
    setLimits: wish("setLimits"), pause: wish("pause"), resume: wish("resume"),
    finishAndLeave: wish("finishAndLeave"), leaveNow: wish("leaveNow"), setHidden: wish("setHidden"),
    goodbye: wish("goodbye"), comeBack: wish("comeBack"), forget: wish("forget"),
  };
}`;

/** A coordinator that knows one token; `answers` maps "METHOD /path" to a body or a refusal. */
export function scripted(answers: Record<string, () => Response>, seen: string[] = []): ApiHandler {
  return function answer(request) {
    const { pathname } = new URL(request.url);
    if (pathname === "/peer/browser.ts") {
      return new Response(PEER_MODULE, { headers: { "content-type": "text/javascript" } });
    }
    const reply = answers[`${request.method} ${pathname}`];
    if (!reply) return null;
    if (request.headers.get("authorization") !== `Bearer ${TOKEN}`) {
      return refusal(401, "bad-token", "unknown token");
    }
    return request.text().then(function note(body) {
      seen.push(`${request.method} ${pathname} ${body}`.trim());
      return reply();
    });
  };
}

export function refusal(code: number, name: string, message: string): Response {
  return Response.json({ code: name, message }, { status: code });
}

/** Built once for all tests of a process. */
let built: Promise<Built> | undefined;

export async function withPage(
  api: ApiHandler,
  test: (page: Page, origin: string, context: BrowserContext) => Promise<void>,
): Promise<void> {
  built ??= buildPages("production");
  await using site = serveBuilt(await built, api);
  const browser: Browser = await openBrowser();
  try {
    const context = await browser.newContext();
    await test(await context.newPage(), site.origin, context);
  } finally {
    await browser.close();
  }
}

export function calls(page: Page): Promise<unknown[][]> {
  return page.evaluate(() => (globalThis as unknown as { calls: unknown[][] }).calls);
}

export function send(page: Page, value: typeof snapshot): Promise<void> {
  return page.evaluate(
    (next) => (globalThis as unknown as { show: (value: unknown) => void }).show(next),
    value,
  );
}
