// Walks through every state of the pages in tabs of one browser and says what is wrong with each: what axe finds, what is wider
// than the screen. A tab loads once and is told the next state. Leaves a picture of each in test/screenshots/. No assertions.
import { mkdir } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { AxeBuilder } from "@axe-core/playwright";
import type { Browser, Page } from "playwright";
import { fixtures } from "../../web/fixtures.ts";
import type { Fixture } from "../../web/fixtures_kinds.ts";

const RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
const SCREENSHOTS = fileURLToPath(new URL("../screenshots/", import.meta.url));
/** Good enough to look at; encoding PNGs took longer than drawing them. */
const PICTURE = { type: "jpeg", quality: 80, fullPage: true } as const;
/** A tab computes while another waits for its picture; more than two would only take turns on two processors. */
const TABS = 2;

/** Longest wait for one thing; a loaded machine takes its time to load a page. */
const PATIENCE_MS = 120_000;

interface Look {
  name: string;
  width: number;
  colorScheme: "light" | "dark";
  forcedColors?: "active";
  /** What axe checks: only colours can differ between themes, and nothing between widths. */
  axe: "all rules" | "colours" | "nothing";
  /** The fixtures it is for; left out = all. */
  only?: string[];
}

/** Every kind of part: tables, lists, icons, curve, controls. */
const WITH_EVERYTHING = [
  "admin-rolled-back",
  "admin-training",
  "training-slowed",
  "welcome-again",
  "runs-organizer",
  "runs-create",
  "try-done",
];
/** What is folded away is drawn and checked, too. */
const UNFOLDED = ["training-slowed", "welcome-again", "runs-create"];

const LOOKS: Look[] = [
  { name: "light", width: 1280, colorScheme: "light", axe: "all rules" },
  { name: "dark", width: 1280, colorScheme: "dark", axe: "colours" },
  {
    name: "forced",
    width: 1280,
    colorScheme: "dark",
    forcedColors: "active",
    axe: "nothing",
    only: WITH_EVERYTHING,
  },
  { name: "phone", width: 360, colorScheme: "light", axe: "nothing" },
];

export interface Opened {
  page: Page;
  /** What the page logged as an error or did not catch. */
  errors: string[];
}

export async function openPage(browser: Browser): Promise<Opened> {
  const context = await browser.newContext({ reducedMotion: "reduce", timezoneId: "UTC" });
  context.setDefaultTimeout(PATIENCE_MS);
  const page = await context.newPage();
  const errors: string[] = [];
  page.on("pageerror", (error) => errors.push(error.message));
  page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
  return { page, errors };
}

/** Every state, in every look that it has; what is wrong with any of them, and what the pages logged. */
export async function walkStates(
  browser: Browser,
  origin: string,
  states: readonly Fixture[] = fixtures,
): Promise<string[]> {
  await mkdir(SCREENSHOTS, { recursive: true });
  const waiting = [...states];
  const found: string[] = [];
  async function walk(): Promise<void> {
    const { page, errors } = await openPage(browser);
    await page.goto(`${origin}/fixtures`);
    for (let next = waiting.shift(); next !== undefined; next = waiting.shift()) {
      found.push(...await faultsOf(page, next));
      found.push(...errors.splice(0).map((error) => `${next.name} logs: ${error}`));
    }
  }
  await Promise.all(Array.from({ length: TABS }, walk));
  return found;
}

async function faultsOf(page: Page, fixture: Fixture): Promise<string[]> {
  const { name } = fixture;
  const found: string[] = [];
  const looks = LOOKS.filter(({ only }) => only === undefined || only.includes(name));
  for (const [i, look] of looks.entries()) {
    await turnTo(page, look);
    if (i === 0) await show(page, fixture);
    await page.screenshot({ ...PICTURE, path: `${SCREENSHOTS}${name}-${look.name}.jpg` });
    const faults = await violations(page, look.axe);
    const wider = await overflow(page);
    if (wider > 0) faults.push(`${wider} px wider than the screen`);
    found.push(...faults.map((fault) => `${name}, ${look.name}: ${fault}`));
  }
  return found;
}

async function turnTo(page: Page, look: Look): Promise<void> {
  const { width, colorScheme, forcedColors = "none" } = look;
  await page.setViewportSize({ width, height: 800 });
  await page.emulateMedia({ colorScheme, forcedColors, reducedMotion: "reduce" });
}

async function show(page: Page, { name }: Fixture): Promise<void> {
  await page.evaluate((name) => void (location.hash = name), name);
  await page.locator(`html[data-drawn="${name}"] h1`).first().waitFor();
  if (UNFOLDED.includes(name)) await unfold(page);
  // The plot is drawn by a part of the bundle that loads on demand.
  if (await page.locator(".plot").count() > 0) await page.locator(".plot canvas").waitFor();
}

async function unfold(page: Page): Promise<void> {
  for (const summary of await page.locator("summary").all()) {
    if (await summary.isVisible()) await summary.click();
  }
}

/** What axe finds on the page as it is now. */
export async function violations(page: Page, scope: Look["axe"] = "all rules"): Promise<string[]> {
  if (scope === "nothing") return [];
  const loaded = await page.evaluate(() => "axe" in globalThis);
  // Half a megabyte of rules, which the builder would send and compile twice for each look; what is there already stays.
  const axe = new AxeBuilder({ page, ...loaded ? { axeSource: "0" } : {} });
  // The pages have no frames, so axe needs no second page to collect results from them.
  axe.setLegacyMode().options({ resultTypes: ["violations"] });
  if (scope === "colours") axe.withRules(["color-contrast", "link-in-text-block"]);
  else axe.withTags(RULES);
  const { violations } = await axe.analyze();
  return violations.map(({ id, nodes }) =>
    `${id}: ${nodes.map((node) => node.html.slice(0, 160)).join(" | ")}`
  );
}

function overflow(page: Page): Promise<number> {
  return page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
}
