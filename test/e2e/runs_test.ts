// A coordinator of several runs as people use it: its process is killed and started again, and every run goes on with its peers; an
// organizer makes a run on the page, somebody joins it, and it is put away.
import assert from "node:assert/strict";
import { join } from "node:path";
import type { Page } from "playwright";
import { newestCheckpoint } from "../../coordinator/store/checkpoints.ts";
import { startHub } from "../../coordinator/hub/start.ts";
import type { HubRuns } from "../../peer/wire/hub.ts";
import { cpuPeer, flagsOf, inFolder, type JsonLine, shoal, TINY } from "../support/cli_support.ts";
import { openBrowser } from "./pages_support.ts";

const WEB_ROOT = new URL("../../web/dist", import.meta.url).pathname;

async function serveRuns(folder: string) {
  const cli = shoal("coordinator", ["--runs_dir", folder, "--json"]);
  const { admin } = await cli.line("its links", (line) => line.event === "listening");
  const { origin, hash } = new URL(String(admin));
  const headers = { authorization: `Bearer ${hash.slice(1)}` };
  const ask = async (path: string, body?: unknown) => {
    const init = body === undefined ? { headers } : { headers, method: "POST", body: JSON.stringify(body) };
    const response = await fetch(origin + path, init);
    assert.ok(response.ok, await response.clone().text());
    return await response.json();
  };
  const rows = async () => (await ask("/api/hub/runs") as HubRuns).runs;
  return { cli, admin: String(admin), ask, rows };
}

function steps(lines: JsonLine[], run: string): number[] {
  return lines.flatMap((line) => line.run === run && line.event === "step" ? [Number(line.step)] : []);
}

Deno.test("a coordinator of two runs that is killed and started again goes on with both, with their peers, and does no step twice", () =>
  inFolder(async (folder) => {
    const config = { ...TINY, max_iters: 100_000, checkpoint_interval: 100_000 };
    const killed = await serveRuns(folder);
    for (const name of ["One", "Two"]) await killed.ask("/api/hub/runs", { name, config });
    const before = await killed.rows();
    const peers = before.map(({ joinLink }) => cpuPeer(joinLink!));
    try {
      for (const run of ["one", "two"]) {
        await killed.cli.line(`step 5 of ${run}`, (line) => line.run === run && Number(line.step) >= 5);
      }
      await killed.cli[Symbol.asyncDispose]();
      const again = await serveRuns(folder);
      await using cli = again.cli;
      assert.equal(again.admin, killed.admin, "the organizer's link changed");
      for (const run of ["one", "two"]) {
        const committed = steps(killed.cli.json(), run).at(-1)!;
        const next = await cli.line(`a step of ${run}`, (line) => line.run === run && line.event === "step");
        assert.ok(Number(next.step) > committed, `step ${next.step} of ${run} was done twice`);
      }
      const after = await again.rows();
      assert.deepEqual(
        after.map(({ joinLink, place }) => [joinLink, place]),
        before.map(({ joinLink }) => [joinLink, "open"]),
      );
      const came = cli.json().filter((line) => line.event === "peer" && /joined/.test(String(line.what)));
      assert.deepEqual(came, [], "a peer came back as somebody else");
      cli.interrupt();
      assert.equal(await cli.ended(), 0, cli.err.join("\n"));
      for (const peer of peers) assert.equal(await peer.ended(), 0, peer.err.join("\n"));
      // Stopped on purpose, each has a checkpoint of its last step.
      for (const run of ["one", "two"]) {
        assert.ok(await newestCheckpoint(join(folder, run)) !== null, `no checkpoint of ${run}`);
      }
    } finally {
      for (const peer of peers) await peer[Symbol.asyncDispose]();
    }
  }));

/** Longest wait for anything; only a hang reaches it. */
const PATIENCE_MS = 180_000;
const FIELDS = { n_layer: "2", n_embd: "16", block_size: "16", max_iters: "5000" };

async function fillIn(page: Page): Promise<void> {
  await page.getByRole("button", { name: "Start a run" }).click();
  await page.getByLabel("Name, as those who join read it").fill("Evening class");
  await page.getByLabel("Width n_embd").fill("17");
  const wrong = page.getByText("n_embd 17 is not a multiple of n_head 4; change one of them");
  await wrong.waitFor();
  assert.equal(await page.getByLabel("Width n_embd").getAttribute("aria-invalid"), "true");
  assert.ok(await page.getByRole("button", { name: "Start this run" }).isDisabled());
  for (const [key, value] of Object.entries(FIELDS)) await page.locator(`#key-${key}`).fill(value);
  await wrong.waitFor({ state: "detached" });
  await page.getByText("Needs 1 computer with 2 GB each.").waitFor();
  await page.getByLabel("Whoever has its join link may write text").check();
  await page.getByRole("button", { name: "Start this run" }).click();
}

/** The form for a run like it, while its computer is in, is filled in as it is and supposes what that has measured. */
async function lookAtClone(page: Page): Promise<void> {
  await page.getByText("with its join link", { exact: true }).waitFor();
  await page.getByRole("button", { name: "Start one like it: Evening class" }).click();
  await page.getByText("As measured by the computer that is connected now.").waitFor();
  assert.ok(await page.getByLabel("Whoever has its join link may write text").isChecked());
  for (const [key, value] of Object.entries(FIELDS)) {
    assert.equal(await page.locator(`#key-${key}`).inputValue(), value, key);
  }
  await page.getByRole("button", { name: "Close the form" }).click();
}

Deno.test("an organizer makes a run on the page, a tab joins it and trains, and it is put away with a checkpoint", () =>
  inFolder(async (folder) => {
    const server = await startHub({
      ...{ runsDir: folder, host: "127.0.0.1", port: 0, operator: "Room 12", webRoot: WEB_ROOT },
      ...{ onEvent: () => {}, onNote: () => {} },
    });
    const browser = await openBrowser();
    try {
      const context = await browser.newContext();
      context.setDefaultTimeout(PATIENCE_MS);
      const page = await context.newPage();
      const errors: string[] = [];
      page.on("pageerror", (error) => errors.push(error.message));
      await page.goto(server.adminLink);
      await fillIn(page);
      const link = await page.getByRole("textbox", { name: "Join link of Evening class" }).inputValue();
      assert.match(link, /\/r\/evening-class\/#/);
      const tab = await context.newPage();
      await tab.goto(link.replace("/#", "/?engine=cpu#"));
      await tab.getByRole("button", { name: /lend this computer/i }).click();
      const { shell } = server.hub.run("evening-class")!;
      await page.getByText("Training", { exact: true }).waitFor();
      while (shell.core.state.committed < 3) await page.waitForTimeout(50);
      await lookAtClone(page);
      await page.getByRole("button", { name: "Archive Evening class" }).click();
      await page.getByRole("dialog").getByText("1 computer sent home").waitFor();
      await page.getByRole("dialog").getByRole("button", { name: "Archive it" }).click();
      await page.getByRole("button", { name: "Bring it back: Evening class" }).waitFor();
      await tab.getByRole("heading", { name: "The run is finished" }).waitFor();
      assert.ok(await newestCheckpoint(join(folder, "evening-class")) !== null);
      assert.deepEqual(errors, []);
    } finally {
      await browser.close();
      await server.stop("the test is over");
    }
  }));

Deno.test("shoal run trains here with a configuration file, and ends with a checkpoint also after Ctrl-C", () =>
  inFolder(async (folder) => {
    const config = join(folder, "mine.json");
    await Deno.writeTextFile(
      config,
      JSON.stringify({ ...TINY, max_iters: 100_000, checkpoint_interval: 100_000 }),
    );
    const out = join(folder, "run");
    await using cli = shoal("run", ["--config", config, "--engine", "cpu", "--json", "--out_dir", out]);
    await cli.line("a few steps", (line) => line.event === "step" && Number(line.step) >= 3);
    cli.interrupt();
    assert.equal(await cli.ended(), 0, cli.err.join("\n"));
    const done = cli.json().at(-1)!;
    assert.equal(done.event, "done");
    assert.equal(await newestCheckpoint(out), done.checkpoint);
  }));

Deno.test("shoal corpus prepares a text with no more rights than it has, and shoal run learns it beside other runs", () =>
  inFolder(async (folder) => {
    const file = join(folder, "book.txt");
    await Deno.writeTextFile(file, "a small book to learn from, again and again. ".repeat(60));
    await using add = shoal("corpus", ["add", file, "--runs_dir", folder, "--json"]);
    assert.equal(await add.ended(), 0, add.err.join("\n"));
    const [{ id } = {}] = add.json();
    const config = { ...TINY, dataset: `corpus:${id}`, max_iters: 3 };
    const out = ["--out_dir", join(folder, "first"), "--engine", "cpu", "--json"];
    await using run = shoal("run", [...out, ...flagsOf(config)]);
    assert.equal(await run.ended(), 0, run.err.join("\n"));
    assert.equal(run.json().at(-1)!.event, "done");
    await using remove = shoal("corpus", ["remove", `corpus:${id}`, "--runs_dir", folder]);
    assert.equal(await remove.ended(), 2);
    assert.match(remove.err.join("\n"), /the text is used by "first"/);
  }));
