// Saved states where they really lie: the store's suite on a page and in a worker of Chromium, a reload, tabs side by side, a
// quota that is used up, an insecure page, and writers that are killed in the middle: a tab and a process.
import assert from "node:assert/strict";
import { fileURLToPath } from "node:url";
import type { Page } from "playwright";
import { openDenoFolder } from "../../peer/store/folder_deno.ts";
import type { SavedState } from "../../peer/store/saved_states.ts";
import { STORE_CASES } from "../../peer/store/store_suite.ts";
import { callTab, closeBrowser, openTabs, SHARED_BROWSER, type Tabs } from "./browser_support.ts";
import type { Place, StoreSuite } from "./store_entry.ts";
import { numberIn } from "./store_tab.ts";

const ENTRY = fileURLToPath(new URL("./store_entry.ts", import.meta.url));
const WRITER = fileURLToPath(new URL("./store_writer.ts", import.meta.url));
const PLACES: Place[] = ["page", "worker"];
/** Large enough that a kill often hits the middle of a write. */
const CONTENT_BYTES = 400_000;
const KILLS = 3;
const RELOADS = 2;
const POLL_MS = 20;

Deno.test.afterAll(closeBrowser);

function tabTest(name: string, run: (tabs: Tabs, test: Deno.TestContext) => Promise<void>): void {
  Deno.test(`Chromium: ${name}`, SHARED_BROWSER, async (test) => {
    await using tabs = await openTabs(ENTRY);
    await run(tabs, test);
    assert.deepEqual(tabs.errors, [], "uncaught in a tab");
  });
}

function call<Name extends keyof StoreSuite>(page: Page, name: Name, ...args: Parameters<StoreSuite[Name]>) {
  return callTab<StoreSuite, Name>(page, name, ...args);
}

for (const place of PLACES) {
  tabTest(`the store's suite in the private file system, ${place}`, async (tabs, test) => {
    const page = await tabs.open();
    for (const { name } of STORE_CASES) await test.step(name, () => call(page, "runCase", place, name));
    await assert.rejects(call(page, "runCase", place, "no such case"), /no case/);
  });
}

tabTest("a saved state is there after a reload", async (tabs) => {
  const page = await tabs.open();
  const state: SavedState = {
    ...{ run: "r", firstLayer: 0, endLayer: 2, step: 40, stateHash: "ab".repeat(16) },
    file: new Uint8Array(100_000).fill(3),
  };
  const first = await call(page, "saved", "worker", "r", state);
  assert.deepEqual(first, { durable: true, steps: [40], told: [] });
  await page.reload();
  await page.waitForFunction(() => "suite" in globalThis);
  assert.deepEqual(await call(page, "saved", "worker", "r", null), first);
});

tabTest("a tab that is reloaded while it holds its folder finds it again", async (tabs) => {
  const page = await tabs.open();
  assert.equal(await call(page, "take", "worker", 1), -1);
  for (let reload = 0; reload < RELOADS; reload++) {
    await page.reload();
    await page.waitForFunction(() => "suite" in globalThis);
    assert.equal(await call(page, "take", "worker", 1), 1);
  }
});

/** The browser frees a closed tab's lock some time after the close. */
async function untilFree(page: Page): Promise<void> {
  await page.waitForFunction(async () => {
    const { held } = await navigator.locks.query();
    return !held?.some(({ name }) => name === "shoal-store-0");
  });
}

tabTest("tabs take a folder each, and a closed tab's folder is free again", async (tabs) => {
  const [one, two] = [await tabs.open(), await tabs.open()];
  assert.equal(await call(one, "take", "worker", 1), -1);
  assert.equal(await call(two, "take", "worker", 2), -1);
  await one.close();
  const three = await tabs.open();
  await untilFree(three);
  assert.equal(await call(three, "take", "worker", 3), 1);
});

tabTest("a quota that is used up is storage-full, and what was there stays", async (tabs) => {
  for (const place of PLACES) {
    const page = await tabs.open();
    await untilFree(page);
    await call(page, "take", place, 1);
    assert.equal(await call(page, "put", place, 1, CONTENT_BYTES), "put");
    const session = await tabs.context.newCDPSession(page);
    const { origin } = new URL(page.url());
    await session.send("Storage.overrideQuotaForOrigin", { origin, quotaSize: CONTENT_BYTES + 1_000 });
    assert.match(await call(page, "put", place, 2, CONTENT_BYTES), /^storage-full: .*training goes on/);
    assert.equal(await call(page, "number", place), 1);
    await session.send("Storage.overrideQuotaForOrigin", { origin });
    assert.equal(await call(page, "put", place, 3, CONTENT_BYTES), "put");
    assert.equal(await call(page, "number", place), 3);
    await page.close();
  }
});

tabTest("an insecure page keeps nothing and says so", async (tabs) => {
  const { origin } = new URL((await tabs.open()).url());
  const page = await tabs.context.newPage();
  // A name that is not this computer: no such request leaves it, the answers are the site's.
  await page.route("http://plain.example/**", async (route) => {
    const { pathname } = new URL(route.request().url());
    await route.fulfill({ response: await route.fetch({ url: origin + pathname }) });
  });
  await page.goto("http://plain.example/");
  await page.waitForFunction(() => "suite" in globalThis);
  assert.equal(await page.evaluate(() => isSecureContext), false);
  for (const place of PLACES) {
    const saved = await call(page, "saved", place, "r", null);
    assert.deepEqual(saved, { durable: false, steps: [], told: ["storage-denied"] });
  }
});

async function until(condition: () => Promise<boolean>): Promise<void> {
  while (!await condition()) await new Promise((resolve) => setTimeout(resolve, POLL_MS));
}

tabTest(
  "a tab that is closed while it writes leaves a whole content, none older than promised",
  async (tabs) => {
    let last = -1;
    for (let kill = 0; kill < KILLS; kill++) {
      const page = await tabs.open();
      await call(page, "take", "worker", 1);
      await call(page, "startPutting", "worker", CONTENT_BYTES);
      await until(async () => await call(page, "promised", "worker") > last + kill);
      const promised = await call(page, "promised", "worker");
      await page.close();
      const next = await tabs.open();
      assert.equal(await call(next, "take", "worker", 1), 1, "the folder is free again");
      last = await call(next, "number", "worker");
      assert.ok(last >= promised, `${last} after ${promised} was promised`);
      await next.close();
    }
  },
);

/** Runs the writer until it has promised `count` contents, kills it, and gives the last number that it has printed. */
async function writeAndKill(root: string, count: number): Promise<number> {
  const args = [
    "run",
    "--no-check",
    `--allow-read`,
    `--allow-write=${root}`,
    WRITER,
    root,
    String(CONTENT_BYTES),
  ];
  const writer = new Deno.Command(Deno.execPath(), { args, stdout: "piped" }).spawn();
  let text = "";
  for await (const piece of writer.stdout.pipeThrough(new TextDecoderStream())) {
    text += piece;
    if (text.split("\n").length > count) writer.kill("SIGKILL");
  }
  const { signal } = await writer.status;
  assert.equal(signal, "SIGKILL");
  return Number(text.split("\n").at(-2));
}

Deno.test("a process that is killed while it writes leaves a whole content, none older than promised", async () => {
  const root = await Deno.makeTempDir({ prefix: "shoal-writer-" });
  try {
    for (let kill = 1; kill <= KILLS; kill++) {
      const promised = await writeAndKill(root, kill);
      const folder = await openDenoFolder(root);
      const last = await numberIn(folder);
      assert.ok(last >= promised, `${last} after ${promised} was promised`);
      assert.equal(
        (await folder.list()).includes("data-0"),
        last === 0,
        "the killed writer's folder was taken over",
      );
      await folder.close();
    }
  } finally {
    await Deno.remove(root, { recursive: true });
  }
});
