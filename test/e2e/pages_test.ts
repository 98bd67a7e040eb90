// Every state of both pages in a real browser: accessible, within the width of a phone, free of errors, and small.
// States come from web/fixtures.ts; pages_states.ts walks through them and leaves a picture of each in test/screenshots/.
import assert from "node:assert/strict";
import { gzipSync } from "node:zlib";
import { buildPages, type Built, openBrowser, serveBuilt } from "./pages_support.ts";
import { openPage, violations, walkStates } from "./pages_states.ts";

/** The first load of a page on a slow line, everything that is needed to show the first screen. */
const FIRST_LOAD_BYTES_MAX = 120_000;
Deno.test("every page state is accessible in both themes, fits a phone, and logs no error", async function test() {
  await using site = serveBuilt(await buildPages("fixtures"));
  const browser = await openBrowser();
  try {
    assert.deepEqual(await walkStates(browser, site.origin), []);
  } finally {
    await browser.close();
  }
});

Deno.test("orders that end something ask first, and the keyboard can answer", async function test() {
  await using site = serveBuilt(await buildPages("fixtures"));
  const browser = await openBrowser();
  try {
    const { page } = await openPage(browser);
    await page.goto(`${site.origin}/fixtures?fixture=admin-training`);
    const pressed = () => page.evaluate(() => document.documentElement.dataset["pressed"] ?? "");

    const stop = page.getByRole("button", { name: "Stop the run" });
    await stop.press("Enter");
    await page.getByRole("dialog", { name: "Stop this run?" }).waitFor();
    await page.keyboard.press("Escape");
    assert.equal(await page.getByRole("dialog").count(), 0);
    assert.equal(await pressed(), "");
    assert.equal(await stop.evaluate((button) => button === document.activeElement), true, "focus returns");

    await stop.press("Enter");
    await page.getByRole("dialog").getByRole("button", { name: "Stop the run" }).press("Enter");
    assert.equal(await pressed(), "stop");

    await page.getByRole("button", { name: "Remove tab-09ae" }).press("Enter");
    assert.deepEqual(await violations(page), []);
    await page.getByRole("dialog").getByRole("button", { name: "Remove it" }).press("Enter");
    assert.equal(await pressed(), "evict tab-09ae");

    await page.getByRole("button", { name: "Remove tab-4f21" }).press("Enter");
    await page.getByRole("dialog").getByLabel("It may come back").selectOption("never");
    await page.getByRole("dialog").getByRole("button", { name: "Remove it" }).press("Enter");
    assert.equal(await pressed(), "evict tab-4f21, never");

    await page.goto(`${site.origin}/fixtures?fixture=admin-plan-previewed`);
    await page.getByRole("button", { name: "Apply it: the new plan" }).press("Enter");
    await page.getByRole("dialog", { name: "Apply the new plan?" }).getByText("after 30 steps").waitFor();
    await page.getByRole("dialog").getByRole("button", { name: "Apply it" }).press("Enter");
    assert.equal(await pressed(), "apply the plan");
  } finally {
    await browser.close();
  }
});

Deno.test("the picture of a step is read with the keyboard, row by row, and as a table", async function test() {
  await using site = serveBuilt(await buildPages("fixtures"));
  const browser = await openBrowser();
  try {
    const { page } = await openPage(browser);
    await page.goto(`${site.origin}/fixtures?fixture=admin-training`);
    const rows = page.getByRole("listbox", { name: "Stages over time" }).getByRole("option");
    assert.equal(await rows.count(), 5);
    const focused = () => page.evaluate(() => document.activeElement?.getAttribute("aria-label") ?? "");
    await page.getByRole("button", { name: "Hold this step" }).press("Tab");
    assert.match(await focused(), /^Stage 1 on tab-4f21: 8 micro-batches, F 22 ms/);
    for (const key of ["ArrowDown", "ArrowDown"]) await page.keyboard.press(key);
    const text = await focused();
    assert.match(text, /^Stage 2 on tab-09ae: 16 micro-batches/);
    await page.locator(".gantt-text").getByText(text).waitFor();
    await page.keyboard.press("End");
    await page.keyboard.press("ArrowDown");
    assert.match(await focused(), /^Stage 4 on deno-1d5b/);
    assert.equal(await rows.nth(4).getAttribute("aria-selected"), "true");
    await page.keyboard.press("Tab");
    await page.keyboard.press("Enter");
    await page.getByRole("region", { name: "Table of the newest step" }).getByRole("row").nth(5).waitFor();
    await page.locator(".peers summary").first().press("Enter");
    await page.getByText("tab-09ae: 45 ms, 2.1 MB/s up, 1.1 MB/s down, direct").first().waitFor();
    assert.deepEqual(await violations(page), []);
    await page.getByRole("button", { name: "Hold this step" }).press("Enter");
    assert.equal(await page.evaluate(() => document.documentElement.dataset["pressed"]), "hold");
  } finally {
    await browser.close();
  }
});

/** Bytes over the line, gzipped, of a page, its style sheets and everything its script imports statically. */
function firstLoadBytes(built: Built, html: string): number {
  const text = new TextDecoder().decode(built.files.get(html));
  const wanted = new Set([html]);
  for (const [, path] of text.matchAll(/(?:src|href)="\/([^"]+)"/g)) if (path) collect(built, path, wanted);
  let total = 0;
  for (const name of wanted) total += gzipSync(built.files.get(name) ?? new Uint8Array()).length;
  return total;
}

function collect(built: Built, name: string, wanted: Set<string>): void {
  if (wanted.has(name)) return;
  wanted.add(name);
  const chunk = built.chunks.find((candidate) => candidate.fileName === name);
  for (const next of [...chunk?.imports ?? [], ...chunk?.css ?? []]) {
    if (built.files.has(next)) collect(built, next, wanted);
  }
}

Deno.test("before a peer is removed the page says what that costs", async function test() {
  await using site = serveBuilt(await buildPages("fixtures"));
  const browser = await openBrowser();
  try {
    const { page } = await openPage(browser);
    await page.goto(`${site.origin}/fixtures?fixture=admin-at-risk`);
    await page.getByText("3 committed steps at risk: if tab-c377 vanishes now, they are done again.")
      .waitFor();
    await page.getByText("If tab-c377 vanishes: 3 steps are done again, from the snapshot of step 338.")
      .waitFor();
    await page.getByRole("button", { name: "Remove tab-c377" }).press("Enter");
    await page.getByRole("dialog").getByText("Nobody else holds its layers: 3 steps would be done again.")
      .waitFor();
    await page.keyboard.press("Escape");
    await page.getByRole("button", { name: "Remove tab-09ae" }).press("Enter");
    await page.getByRole("dialog").getByText("Its work goes to other computers").waitFor();
  } finally {
    await browser.close();
  }
});

Deno.test("the first load of each page stays small, and needs no fixture and no inline script", async function test() {
  const built = await buildPages("production");
  for (const html of ["index.html", "admin.html", "runs.html"]) {
    const total = firstLoadBytes(built, html);
    assert.ok(total > 5_000, `${html}: ${total} bytes cannot be the whole page`);
    assert.ok(total <= FIRST_LOAD_BYTES_MAX, `${html}: ${total} bytes of first load`);
    const text = new TextDecoder().decode(built.files.get(html));
    assert.doesNotMatch(text, /<script(?![^>]*\bsrc=)/);
  }
  assert.deepEqual([...built.files.keys()].filter((name) => name.includes("fixtures")), []);
});
