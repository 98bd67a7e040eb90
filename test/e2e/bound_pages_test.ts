// The two pages as they ship, bound to a scripted coordinator and a scripted peer: what they ask, send and show.
// The peer's module is replaced at its address, so this tests the pages and not the training.
import assert from "node:assert/strict";
import type { Browser, Page } from "playwright";
import { inspection, invite, snapshot, status } from "../../web/fixtures_data.ts";
import { type ApiHandler, buildPages, openBrowser, serveBuilt } from "./pages_support.ts";

const TOKEN = "k3v9-2mfa";

/** Stands at the address of peer/browser.ts: notes every call, and lets the test send snapshots. */
const PEER_MODULE = `
globalThis.calls = [];
const note = (name) => (...args) => { globalThis.calls.push([name, ...args.filter((a) => typeof a !== "function")]); };
export function openTabPeer() {
  const wish = (name) => async (...args) => note(name)(...args);
  return {
    inspect: async () => { note("inspect")(); return ${JSON.stringify(inspection)}; },
    start: async (options, show) => { note("start")(options); globalThis.show = show; },
    pause: wish("pause"), resume: wish("resume"), finishAndLeave: wish("finishAndLeave"),
    leaveNow: wish("leaveNow"), setHidden: wish("setHidden"), goodbye: wish("goodbye"), comeBack: wish("comeBack"),
  };
}`;

/** A coordinator that knows one token; `answers` maps "METHOD /path" to a body or a refusal. */
function scripted(answers: Record<string, () => Response>, seen: string[] = []): ApiHandler {
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

function refusal(code: number, name: string, message: string): Response {
  return Response.json({ code: name, message }, { status: code });
}

async function withPage(api: ApiHandler, test: (page: Page, origin: string) => Promise<void>): Promise<void> {
  await using site = serveBuilt(await buildPages("production"), api);
  const browser: Browser = await openBrowser();
  try {
    const page = await browser.newPage();
    await test(page, site.origin);
  } finally {
    await browser.close();
  }
}

function calls(page: Page): Promise<unknown[][]> {
  return page.evaluate(() => (globalThis as unknown as { calls: unknown[][] }).calls);
}

function send(page: Page, value: typeof snapshot): Promise<void> {
  return page.evaluate(
    (next) => (globalThis as unknown as { show: (value: unknown) => void }).show(next),
    value,
  );
}

const inviteOnly = { "GET /api/invite": () => Response.json(invite) };

Deno.test("contributor's page: nothing runs before the click, then every wish reaches the peer", async function test() {
  await withPage(scripted(inviteOnly), async function steps(page, origin) {
    await page.goto(`${origin}/#${TOKEN}`);
    const lend = page.getByRole("button", { name: "Lend this computer" });
    await page.getByText("Apple M2").waitFor();
    assert.deepEqual((await calls(page)).map(([name]) => name), ["inspect"]);

    await lend.click();
    await page.getByRole("heading", { name: "Starting the peer" }).waitFor();
    await page.waitForFunction(() => "show" in globalThis);
    assert.deepEqual((await calls(page)).at(-1), ["start", { origin, token: TOKEN, engine: "auto" }]);

    await send(page, snapshot);
    await page.getByRole("heading", { name: "This computer holds stage 2 of 4 (layers 3 to 4)." }).waitFor();
    await page.getByRole("button", { name: "Pause" }).click();
    await send(page, { ...snapshot, phase: "paused" });
    await page.getByRole("button", { name: "Resume" }).click();
    await page.getByRole("button", { name: "Finish this step and leave" }).click();
    await page.getByRole("button", { name: "Leave now" }).click();
    assert.deepEqual((await calls(page)).slice(-4).map(([name]) => name), [
      "pause",
      "resume",
      "finishAndLeave",
      "leaveNow",
    ]);

    await page.evaluate(() => dispatchEvent(new PageTransitionEvent("pagehide")));
    await page.waitForFunction(() => (globalThis as unknown as { calls: unknown[][] }).calls.length >= 7);
    assert.deepEqual((await calls(page)).at(-1), ["goodbye"]);
    await page.evaluate(() => dispatchEvent(new PageTransitionEvent("pageshow", { persisted: true })));
    await page.waitForFunction(() => (globalThis as unknown as { calls: unknown[][] }).calls.length >= 8);
    assert.deepEqual((await calls(page)).at(-1), ["comeBack"]);

    await send(page, { ...snapshot, phase: "kicked", reason: "No heartbeat arrived for 15 seconds." });
    await page.getByRole("heading", { name: "This computer was removed from the run" }).waitFor();
    assert.equal(await page.title(), "This computer was removed from the run · Shoal");
  });
});

Deno.test("contributor's page: a link without a token, and one with a wrong token", async function test() {
  await withPage(scripted(inviteOnly), async function steps(page, origin) {
    await page.goto(`${origin}/`);
    await page.getByRole("heading", { name: "This link is incomplete" }).waitFor();
    await page.goto(`${origin}/#wrong`);
    await page.getByRole("heading", { name: "This link is not valid" }).waitFor();
    assert.equal(await page.evaluate(() => "calls" in globalThis), false, "the peer is not even loaded");
  });
});

Deno.test("contributor's page: asks again by itself when the coordinator comes back", async function test() {
  let asked = 0;
  const flaky = {
    "GET /api/invite": () =>
      ++asked === 1 ? new Response("bad gateway", { status: 502 }) : Response.json(invite),
  };
  await withPage(scripted(flaky), async function steps(page, origin) {
    await page.goto(`${origin}/#${TOKEN}`);
    await page.getByRole("heading", { name: "The coordinator does not answer" }).waitFor();
    await page.getByRole("heading", { name: invite.runName }).waitFor();
  });
});

Deno.test("admin page: follows the status, sends orders with its token, and downloads a checkpoint", async function test() {
  const seen: string[] = [];
  let paused = false;
  const handler = scripted({
    "GET /api/status": () => Response.json({ ...status, state: paused ? "paused" : "training" }),
    "POST /api/control": function control() {
      paused = true;
      return Response.json({});
    },
    "POST /api/evict": () => refusal(409, "bad-state", "the last holder of stage 2 cannot be removed"),
    "GET /api/checkpoints/step-300/config.json": () => new Response("{}"),
  }, seen);
  await withPage(handler, async function steps(page, origin) {
    await page.goto(`${origin}/admin#${TOKEN}`);
    await page.getByRole("button", { name: "Pause the run" }).click();
    await page.getByRole("button", { name: "Resume the run" }).waitFor();
    assert.ok(seen.includes('POST /api/control {"action":"pause"}'), seen.join("\n"));

    await page.getByRole("button", { name: "Remove tab-09ae" }).click();
    await page.getByRole("button", { name: "Remove it" }).click();
    await page.getByRole("status").filter({ hasText: "the last holder of stage 2 cannot be removed" })
      .waitFor();
    assert.ok(seen.includes('POST /api/evict {"peer":"tab-09ae"}'), seen.join("\n"));

    const downloading = page.waitForEvent("download");
    await page.getByRole("button", { name: "Download config.json of step-300" }).click();
    assert.equal((await downloading).suggestedFilename(), "step-300-config.json");
  });
});

Deno.test("admin page: an outage keeps the last figures and says that they are old", async function test() {
  let down = false;
  const handler = scripted({
    "GET /api/status": () => down ? new Response("", { status: 502 }) : Response.json(status),
  });
  await withPage(handler, async function steps(page, origin) {
    await page.goto(`${origin}/admin#${TOKEN}`);
    await page.getByRole("heading", { name: status.runName }).waitFor();
    down = true;
    await page.getByText("these are its last figures").waitFor();
    await page.getByRole("heading", { name: status.runName }).waitFor();
    down = false;
    await page.getByText("these are its last figures").waitFor({ state: "detached" });
  });
});
