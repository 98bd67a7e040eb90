// What a tab still gets out when it goes, in real Chromium: closed, reloaded, left for another page, crashed. The coordinator
// hears of each at once and once. A page that the browser gives back joins again by itself. No wall-clock assertions.
import assert from "node:assert/strict";
import type { BrowserContext, Page } from "playwright";
import { openBrowser } from "./pages_support.ts";
import { startSwarm, type Swarm } from "./swarm_support.ts";

/** Playwright switches the back-forward cache off unless this is left out. */
const NO_CACHE_FLAG = "--disable-back-forward-cache";

/** A run that a tab and a Deno peer share; both compute on the CPU, which loads quickest. */
async function openRun(): Promise<{ swarm: Swarm; context: BrowserContext } & AsyncDisposable> {
  const swarm = await startSwarm({ n_stage: 1, min_peers: 1, sample_chars: 0, eval_interval: 1000 });
  const browser = await openBrowser([], [NO_CACHE_FLAG]);
  const context = await browser.newContext();
  context.setDefaultTimeout(120_000);
  return {
    ...{ swarm, context },
    async [Symbol.asyncDispose]() {
      await browser.close();
      await swarm[Symbol.asyncDispose]();
    },
  };
}

function tabs(swarm: Swarm): string[] {
  return Object.keys(swarm.coordinator.shell.core.state.peers).filter((id) => id.startsWith("tab"));
}

/** Opens the join link, lends, and waits until the tab trains; the tab's page and its peer's id. */
async function enter({ swarm, context }: { swarm: Swarm; context: BrowserContext }) {
  const before = tabs(swarm);
  const page = await context.newPage();
  await page.goto(swarm.coordinator.joinLink.replace("/#", "/?engine=cpu#"));
  await page.getByRole("button", { name: /lend this computer/i }).click();
  const step = swarm.step();
  const { state } = swarm.coordinator.shell.core;
  await swarm.until("the tab's training", () => {
    const [id] = tabs(swarm).filter((it) => !before.includes(it));
    return id !== undefined && state.peers[id]!.blockMs > 0 && swarm.step() > step;
  });
  return { page, id: tabs(swarm).find((it) => !before.includes(it))! };
}

function departures(swarm: Swarm, id: string): string[] {
  const { events } = swarm.coordinator.shell.core.state;
  return events.filter((event) => event.kind === "gone" && event.text.startsWith(`${id} `))
    .map((event) => event.text);
}

const WAYS: { name: string; go: (page: Page) => Promise<unknown>; word: RegExp }[] = [
  { name: "closed", go: (page) => page.close(), word: /said goodbye: its page was closed/ },
  {
    name: "closed as by its owner",
    go: (page) => page.close({ runBeforeUnload: true }),
    word: /said goodbye/,
  },
  { name: "reloaded", go: (page) => page.reload(), word: /said goodbye/ },
  { name: "left for another page", go: (page) => page.goto("about:blank"), word: /said goodbye/ },
  {
    name: "crashed",
    go: (page) => page.goto("chrome://crash").catch(() => {}),
    word: /connection closed/,
  },
];

Deno.test("a tab that goes says so at once, however it goes, and only once", async () => {
  await using run = await openRun();
  const { swarm } = run;
  swarm.startPeer("cpu");
  await swarm.until("the Deno peer", () => swarm.step() > 0);
  for (const { name, go, word } of WAYS) {
    const { page, id } = await enter(run);
    await go(page);
    await swarm.until(`word of the tab that was ${name}`, () => !tabs(swarm).includes(id));
    const step = swarm.step();
    await swarm.until("training without it", () => swarm.step() > step + 1);
    assert.equal(departures(swarm, id).length, 1, name);
    assert.match(departures(swarm, id)[0]!, word, name);
    await page.close();
  }
  const evicted = swarm.coordinator.shell.core.state.events.filter((event) => event.kind === "evict");
  assert.deepEqual(evicted.map((event) => event.text), []);
});

/** A loaded browser may drop a page that it could have kept; then the page begins anew, and another one is tried. */
const KEPT_TRIES = 5;

Deno.test("a tab that comes back out of the browser's cache joins again by itself", async () => {
  await using run = await openRun();
  let kept = false;
  for (let i = 0; i < KEPT_TRIES && !kept; i++) kept = await comesBack(run);
  assert.ok(kept, "the browser kept the page not once");
});

/** Whether it was the same document; it has joined again and trains either way. */
async function comesBack(run: Awaited<ReturnType<typeof openRun>>): Promise<boolean> {
  const { swarm } = run;
  const { page, id } = await enter(run);
  await page.evaluate(() => Object.assign(globalThis, { sameDocument: true }));
  await page.goto("about:blank");
  await swarm.until("the goodbye", () => tabs(swarm).length === 0);
  assert.match(departures(swarm, id)[0]!, /said goodbye/);
  // Coming back from the cache fires no navigation that Playwright could wait for.
  await page.evaluate(() => history.back()).catch(() => {});
  await swarm.until("the return", () => tabs(swarm).length === 1);
  const step = swarm.step();
  await swarm.until("training after the return", () => swarm.step() > step + 1);
  assert.notEqual(tabs(swarm)[0], id);
  const kept = await page.evaluate(() => "sameDocument" in globalThis);
  await page.getByRole("button", { name: /^pause$/i }).waitFor();
  await page.close();
  await swarm.until("its end", () => tabs(swarm).length === 0);
  return kept;
}
