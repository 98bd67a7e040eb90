// The contributor's page as it ships, bound to a scripted coordinator and a scripted peer: what runs before the click (nothing),
// what a reload keeps, what limits do, and that every wish reaches the peer. The training itself is swarm_test.ts.
import assert from "node:assert/strict";
import type { BrowserContext, Page } from "playwright";
import { NO_LIMITS } from "../../peer/wire/limits.ts";
import { invite, snapshot } from "../../web/fixtures_data.ts";
import { calls, scripted, send, TOKEN, withPage } from "./bound_support.ts";

const inviteOnly = { "GET /api/invite": () => Response.json(invite) };

/** Counts whatever computes or talks, from before the page's first script on. */
const COUNT_STARTS = `
globalThis.starts = [];
for (const name of ["Worker", "SharedWorker", "WebSocket", "RTCPeerConnection", "EventSource"]) {
  const Real = globalThis[name];
  if (Real) globalThis[name] = class extends Real { constructor(...a) { super(...a); globalThis.starts.push(name); } };
}
if (navigator.gpu) {
  const ask = navigator.gpu.requestAdapter.bind(navigator.gpu);
  navigator.gpu.requestAdapter = (...a) => { globalThis.starts.push("requestAdapter"); return ask(...a); };
}
for (const name of ["serviceWorker"]) {
  const real = navigator[name];
  if (real) real.register = () => { globalThis.starts.push(name); return Promise.reject(new Error("no")); };
}`;

function global<T>(page: Page, name: string): Promise<T> {
  return page.evaluate((name) => (globalThis as unknown as Record<string, T>)[name] as T, name);
}

/** Waits until the peer has been told something, which may be a moment after the press. */
async function told(page: Page, name: string): Promise<unknown[]> {
  await page.waitForFunction(
    (name) => (globalThis as unknown as { calls?: unknown[][] }).calls?.some(([called]) => called === name),
    name,
  );
  return (await calls(page)).findLast(([called]) => called === name)!;
}

async function openPage(page: Page, origin: string): Promise<void> {
  await page.goto(`${origin}/#${TOKEN}`);
  await page.getByRole("button", { name: "Lend this computer" }).waitFor();
}

/** Presses the button and lets the peer say that it trains; the options it was started with. */
async function lend(page: Page, part: Partial<typeof snapshot> = {}): Promise<Record<string, unknown>> {
  await page.getByRole("button", { name: "Lend this computer" }).click();
  const [, options] = await told(page, "start");
  await send(page, { ...snapshot, ...part });
  await page.getByRole("heading", { name: "This computer holds stage 2 of 4 (layers 3 to 4)." }).waitFor();
  return options as Record<string, unknown>;
}

async function started(page: Page): Promise<Record<string, unknown>> {
  return (await told(page, "start"))[1] as Record<string, unknown>;
}

Deno.test("contributor: before the click there is no worker, no socket, no WebGPU and no peer, also for who says no", async () => {
  await withPage(scripted(inviteOnly), async function steps(page, origin) {
    const asked: string[] = [];
    page.on("request", (request) => asked.push(new URL(request.url()).pathname));
    await page.addInitScript(COUNT_STARTS);
    await openPage(page, origin);
    await page.getByText("Set limits or a name first").click();
    await page.getByRole("button", { name: "No, thank you" }).click();
    await page.getByRole("heading", { name: "Nothing was started" }).waitFor();
    await page.getByRole("button", { name: "Read it again" }).click();
    await page.getByRole("button", { name: "Lend this computer" }).waitFor();
    assert.deepEqual(await global(page, "starts"), []);
    assert.equal(page.workers().length, 0);
    const other = asked.filter((path) =>
      path !== "/" && path !== "/api/invite" && !path.startsWith("/assets/")
    );
    assert.deepEqual(other.filter((path) => path !== "/manifest.webmanifest" && !path.endsWith(".png")), []);
    assert.equal(await page.evaluate(() => "calls" in globalThis), false, "the peer is not even loaded");
    assert.equal(
      await page.evaluate(() => localStorage.length + sessionStorage.length),
      0,
      "nothing is kept",
    );
    await lend(page);
    assert.ok(asked.includes("/peer/browser.ts"), "the same watch sees the peer once it is wanted");
  });
});

Deno.test("contributor: every wish reaches the peer, and the page that comes back goes on", async () => {
  await withPage(scripted(inviteOnly), async function steps(page, origin) {
    await openPage(page, origin);
    const options = await lend(page);
    assert.deepEqual(options, { origin, token: TOKEN, engine: "auto", limits: NO_LIMITS, paused: false });
    await page.getByRole("button", { name: "Pause" }).click();
    await send(page, { ...snapshot, phase: "paused" });
    await page.getByRole("button", { name: "Resume" }).click();
    await page.getByRole("button", { name: "Finish this step and leave" }).click();
    await page.getByRole("button", { name: "Leave now" }).click();
    await told(page, "leaveNow");
    const wishes = ["pause", "resume", "finishAndLeave", "leaveNow"];
    assert.deepEqual((await calls(page)).slice(-4).map(([name]) => name), wishes);
    await page.evaluate(() => dispatchEvent(new PageTransitionEvent("pagehide")));
    await told(page, "goodbye");
    await page.evaluate(() => dispatchEvent(new PageTransitionEvent("pageshow", { persisted: true })));
    await told(page, "comeBack");
    await send(page, { ...snapshot, phase: "kicked", reason: "No heartbeat arrived for 15 seconds." });
    await page.getByRole("heading", { name: "This computer was removed from the run" }).waitFor();
    assert.equal(await page.title(), "This computer was removed from the run · Shoal");
    await page.getByRole("button", { name: "Join again" }).click();
    await page.waitForFunction(() => (globalThis as unknown as { calls?: unknown[][] }).calls?.length === 2);
    assert.equal((await started(page))["paused"], false, "one press joins again");
  });
});

Deno.test("contributor: limits and name are kept over a reload, given to the peer, and hold at once when changed", async () => {
  await withPage(scripted(inviteOnly), async function steps(page, origin) {
    await openPage(page, origin);
    await page.getByText("Set limits or a name first").click();
    await page.getByLabel("Share of the processor").fill("50");
    await page.getByText("More limits").click();
    await page.getByLabel("Upload", { exact: true }).fill("500");
    await page.getByLabel("From").fill("00:00");
    await page.getByLabel(/A name for this computer/).fill("Ada’s laptop");
    await page.getByLabel("From").focus();
    await page.reload();
    await page.getByText("Nothing runs before you press it. Limits: 50% of the time, 500 kB/s up.").waitFor();
    const options = await lend(page);
    const limits = { ...NO_LIMITS, duty: 0.5, upBytesPerS: 500_000, hours: { from: 0, to: 0 } };
    assert.deepEqual([options["limits"], options["name"]], [limits, "Ada’s laptop"]);

    const name = page.getByLabel(/A name for this computer/);
    await name.fill("");
    await name.pressSequentially("Grace");
    await send(page, { ...snapshot, step: 343 });
    await page.getByText("Step 343 of 2,000").waitFor();
    assert.equal(await name.inputValue(), "Grace", "what is being typed stays");
    const download = page.getByLabel("Download", { exact: true });
    await page.getByText("More limits").click();
    await download.pressSequentially("20");
    // The page is drawn again while somebody types.
    await send(page, { ...snapshot, step: 342 });
    await page.getByText("Step 342 of 2,000").waitFor();
    await download.pressSequentially("00");
    await download.press("Enter");
    assert.deepEqual(await told(page, "setLimits"), ["setLimits", { ...limits, downBytesPerS: 2_000_000 }]);
  });
});

Deno.test("contributor: a page that is reloaded comes back as it was, and does not ask again", async () => {
  await withPage(scripted(inviteOnly), async function steps(page, origin) {
    await openPage(page, origin);
    await lend(page);
    await page.reload();
    assert.equal((await started(page))["paused"], false);
    await send(page, snapshot);
    await page.getByRole("button", { name: "Pause" }).click();
    await told(page, "pause");
    await page.reload();
    assert.equal((await started(page))["paused"], true, "paused stays paused");
    await send(page, { ...snapshot, phase: "paused" });
    await page.getByRole("button", { name: "Resume" }).click();
    await told(page, "resume");
    await page.getByRole("button", { name: "Finish this step and leave" }).click();
    await told(page, "finishAndLeave");
    await page.reload();
    await page.getByText("You have agreed to this; you are asked again after").waitFor();
    assert.equal(
      await page.evaluate(() => "calls" in globalThis),
      false,
      "who wants to leave is not brought back",
    );
  });
});

Deno.test("contributor: another tab, an old agreement, and another run ask for a click", async () => {
  await withPage(scripted(inviteOnly), async function steps(page, origin, context: BrowserContext) {
    await openPage(page, origin);
    await lend(page);
    const other = await context.newPage();
    await openPage(other, origin);
    await other.getByText("You have agreed to this").waitFor();
    assert.equal(await other.evaluate(() => "calls" in globalThis), false);
    // Thirty-one days later, in the tab that was lending.
    await page.evaluate(() => {
      const name = Object.keys(localStorage).find((it) => it.startsWith("shoal.consent."))!;
      const consent = JSON.parse(localStorage.getItem(name)!);
      localStorage.setItem(name, JSON.stringify({ ...consent, at: consent.at - 31 * 24 * 3600 * 1000 }));
    });
    await page.reload();
    await page.getByText("You agreed to this a while ago. Please read it again.").waitFor();
    assert.equal(await page.evaluate(() => "calls" in globalThis), false);
  });
});

Deno.test("contributor: a day's limit ends the visit cleanly, says so, and begins no other", async () => {
  await withPage(scripted(inviteOnly), async function steps(page, origin) {
    await openPage(page, origin);
    await page.getByText("Set limits or a name first").click();
    await page.getByText("More limits").click();
    await page.getByLabel("Upload per day").fill("2");
    await page.getByLabel("Upload per day").press("Enter");
    await lend(page, { bytesUp: 1_900_000 });
    await send(page, { ...snapshot, bytesUp: 2_000_000 });
    await told(page, "finishAndLeave");
    await send(page, { ...snapshot, bytesUp: 2_000_000, phase: "left", reason: "the coordinator let it go" });
    await page.getByText("Today’s upload limit of 2 MB is reached").waitFor();
    await page.reload();
    await page.getByText("Today’s upload limit of 2 MB is reached").first().waitFor();
    assert.equal(await page.getByRole("button", { name: "Lend this computer" }).isDisabled(), true);
  });
});

/** A battery that the test charges. */
const BATTERY = `
const battery = Object.assign(new EventTarget(), { charging: true, level: 0.9 });
navigator.getBattery = async () => battery;
globalThis.setBattery = (charging, level) => {
  Object.assign(battery, { charging, level });
  battery.dispatchEvent(new Event("chargingchange"));
};`;

Deno.test("contributor: unplugged it waits and plugged in it goes on, but the owner's own pause stays", async () => {
  await withPage(scripted(inviteOnly), async function steps(page, origin) {
    await page.addInitScript(BATTERY);
    const power = (charging: boolean) => page.evaluate(`setBattery(${charging}, 0.5)`);
    await openPage(page, origin);
    await page.getByText("Set limits or a name first").click();
    await page.getByLabel("Only when plugged in").check();
    await lend(page);
    await power(false);
    await told(page, "pause");
    await send(page, { ...snapshot, phase: "paused" });
    await page.getByRole("heading", {
      name: "The computer runs on its battery; it goes on when it is plugged in.",
    })
      .waitFor();
    await power(true);
    await told(page, "resume");
    await send(page, snapshot);
    await page.getByRole("button", { name: "Pause" }).click();
    await power(false);
    await power(true);
    assert.deepEqual((await calls(page)).map(([name]) => name).slice(-1), ["pause"]);
  });
});

Deno.test("contributor: withdrawing leaves, deletes everything, and asks anew", async () => {
  await withPage(scripted(inviteOnly), async function steps(page, origin) {
    await openPage(page, origin);
    await lend(page);
    await page.getByRole("button", { name: "Withdraw" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Withdraw and delete" }).click();
    await page.getByRole("heading", { name: "Your agreement is withdrawn" }).waitFor();
    await told(page, "forget");
    assert.deepEqual((await calls(page)).map(([name]) => name).slice(-2), ["leaveNow", "forget"]);
    assert.deepEqual(
      await page.evaluate(() => [...Object.keys(localStorage), ...Object.keys(sessionStorage)]),
      [],
    );
    await page.getByRole("button", { name: "Start afresh" }).click();
    await page.getByRole("button", { name: "No, thank you" }).waitFor();
  });
});

Deno.test("contributor: diagnostics are copied without the token", async () => {
  await withPage(scripted(inviteOnly), async function steps(page, origin, context) {
    await context.grantPermissions(["clipboard-read", "clipboard-write"]);
    await openPage(page, origin);
    await lend(page, { reason: `a socket to ${origin}/#${TOKEN} was slow` });
    await page.getByRole("button", { name: "Copy diagnostics" }).click();
    await page.getByRole("status").filter({ hasText: "Copied." }).waitFor();
    const text = await page.evaluate(() => navigator.clipboard.readText());
    assert.equal(JSON.parse(text).phase, "training");
    assert.ok(!text.includes(TOKEN) && !text.includes(new URL(origin).host), text);
  });
});

Deno.test("contributor: a link without a token, one with a wrong token, and an installed page without a link", async () => {
  await withPage(scripted(inviteOnly), async function steps(page, origin) {
    await page.goto(`${origin}/`);
    await page.getByRole("heading", { name: "This link is incomplete" }).waitFor();
    await page.goto(`${origin}/#wrong`);
    await page.getByRole("heading", { name: "This link is not valid" }).waitFor();
    assert.equal(await page.evaluate(() => "calls" in globalThis), false, "the peer is not even loaded");
    await page.goto(`${origin}/#${TOKEN}`);
    await lend(page);
    await page.goto("about:blank");
    await page.goto(`${origin}/`);
    await page.getByRole("heading", { name: "Starting the peer" }).waitFor();
    const manifest = await (await fetch(`${origin}/manifest.webmanifest`)).json();
    for (const { src } of manifest.icons) assert.equal((await fetch(origin + src)).status, 200, src);
  });
});

Deno.test("contributor: asks again by itself when the coordinator comes back", async () => {
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
