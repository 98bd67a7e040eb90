// A contributor's limits in a real tab of a real run: the page says that they hold, the day's bytes end the visit cleanly, and a
// reload brings a paused tab back paused. What is measured exactly is in peer/limits_peer_test.ts.
import assert from "node:assert/strict";
import type { Page } from "playwright";
import { startSwarm, type Swarm } from "./swarm_support.ts";

const ONE = { n_stage: 1, min_peers: 1, sample_chars: 0, eval_interval: 1000 };
/** Each peer holds a stage and keeps the other's: the boundary and the sums cross the line in each step. */
const TWO = { ...ONE, n_stage: 2, min_peers: 2 };

function tabs(swarm: Swarm): string[] {
  return Object.keys(swarm.coordinator.shell.core.state.peers).filter((id) => id.startsWith("tab"));
}

/** Names of all that the page's origin keeps in this browser. */
function stored(page: Page): Promise<string[]> {
  return page.evaluate(async () => {
    const names = [...Object.keys(localStorage), ...Object.keys(sessionStorage)];
    for (const { name } of await indexedDB.databases()) names.push(`database ${name}`);
    const root = await (await navigator.storage.getDirectory()).getDirectoryHandle("shoal", { create: true });
    for await (const name of (root as unknown as { keys(): AsyncIterable<string> }).keys()) {
      names.push(`folder ${name}`);
    }
    return names;
  });
}

async function lend(page: Page): Promise<void> {
  await page.getByRole("button", { name: /lend this computer/i }).click();
}

Deno.test("limits: a tab rests as its owner wishes, and leaves cleanly when the day's bytes are spent", async () => {
  await using swarm = await startSwarm(TWO);
  const core = swarm.coordinator.shell.core.state;
  swarm.startPeer("cpu");
  const page = await swarm.openTab("cpu");
  await page.getByText("Set limits or a name first").click();
  await page.getByLabel("Share of the processor").fill("50");
  await page.getByText("More limits").click();
  await page.getByLabel("Upload per day").fill("1");
  await page.getByLabel(/A name for this computer/).fill("Ada’s laptop");
  await page.getByLabel("Upload per day").focus();
  await lend(page);
  await page.getByText(/Your limit makes this computer rest \d+% of the time/).waitFor();
  assert.ok(Object.values(core.peers).some(({ name }) => name === "Ada’s laptop"), "the name came along");
  await swarm.until("the tab's leave", () => tabs(swarm).length === 0);
  await page.getByText("Today’s upload limit of 1 MB is reached; it ends at midnight.").waitFor();
  const sent = await page.locator(".facts").getByText(/MB|kB/).first().textContent();
  assert.match(sent ?? "", /^1(\.\d+)? MB$/, "it stops at the limit, not far beyond");
  assert.equal(core.stepsRedone, 0);
  await page.reload();
  await page.getByText("Today’s upload limit of 1 MB is reached; it ends at midnight.").first().waitFor();
  assert.equal(tabs(swarm).length, 0);
});

Deno.test("limits: a paused tab comes back paused after a reload, resumes on a press, and forgets everything when withdrawn", async () => {
  await using swarm = await startSwarm(ONE);
  const core = swarm.coordinator.shell.core.state;
  swarm.startPeer("cpu");
  const page = await swarm.openTab("cpu");
  await lend(page);
  await swarm.until("2 steps", () => swarm.step() >= 2 && tabs(swarm).length === 1);
  await page.getByRole("button", { name: /^pause$/i }).click();
  const paused = () => tabs(swarm).length === 1 && core.peers[tabs(swarm)[0]!]!.paused;
  await swarm.until("the pause", paused);
  const [before] = tabs(swarm);
  await page.reload();
  await swarm.until("the return, paused", () => tabs(swarm)[0] !== before && paused());
  await page.getByRole("heading", { name: /computes nothing until you resume/ }).waitFor();
  await page.getByRole("button", { name: /^resume$/i }).click();
  await swarm.until(
    "work after the pause",
    () => core.view?.stages[0]?.replicas.some((it) => it.peer === tabs(swarm)[0]) ?? false,
  );
  assert.ok((await stored(page)).length >= 3, "there is something to forget");
  await page.getByRole("button", { name: "Withdraw" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Withdraw and delete" }).click();
  await page.getByRole("heading", { name: "Your agreement is withdrawn" }).waitFor();
  await swarm.until("the tab's leave", () => tabs(swarm).length === 0);
  const empty = async () => (await stored(page)).length === 0;
  for (let look = 0; look < 100 && !await empty(); look++) {
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  assert.deepEqual(await stored(page), []);
});
