// An organizer brings a text on the page: what is wrong with it is said with the line, the right field makes it ready, a run is made that
// learns it, and then it cannot be deleted any more.
import assert from "node:assert/strict";
import { join } from "node:path";
import { startHub } from "../../coordinator/hub/start.ts";
import { CORPUS_PREFIX } from "../../coordinator/corpora/types.ts";
import { inFolder } from "../support/cli_support.ts";
import { openBrowser } from "./pages_support.ts";
import { violations } from "./pages_states.ts";

const WEB_ROOT = new URL("../../web/dist", import.meta.url).pathname;

Deno.test("an organizer brings a text on the page, is told what is wrong with it, and starts a run that learns it", () =>
  inFolder(async (folder) => {
    const server = await startHub({
      ...{
        runsDir: join(folder, "runs"),
        host: "127.0.0.1",
        port: 0,
        operator: "Room 12",
        webRoot: WEB_ROOT,
      },
      ...{ onEvent: () => {}, onNote: () => {} },
    });
    const browser = await openBrowser();
    try {
      const path = join(folder, "stories.jsonl");
      const lines = Array.from(
        { length: 300 },
        (_, i) => JSON.stringify({ body: `Hello world, story ${i}.` }),
      );
      await Deno.writeTextFile(path, lines.join("\n"));
      const page = await browser.newPage();
      const errors: string[] = [];
      page.on("pageerror", (error) => errors.push(error.message));
      await page.goto(server.adminLink);
      const bring = async (field: string) => {
        await page.getByLabel("Bring a text: choose a file, or drop it here").setInputFiles(path);
        assert.equal(await page.getByLabel("It is").inputValue(), "jsonl");
        await page.getByLabel("Cut into").selectOption("char");
        await page.getByLabel("Field with the text").fill(field);
        await page.getByRole("button", { name: "Send it" }).click();
      };
      await bring("text");
      await page.getByText('"stories.jsonl", line 1: it has no field "text"; it has "body": name one')
        .waitFor();
      await page.getByRole("button", { name: "Forget: stories.jsonl" }).click();
      await page.getByText("No text has been brought yet").waitFor();
      await bring("body");
      await page.getByRole("button", { name: "Delete the text stories.jsonl" }).waitFor();
      assert.deepEqual(await violations(page), []);
      await page.getByRole("button", { name: "Start a run" }).click();
      await page.getByLabel("Name, as those who join read it").fill("Stories");
      const choice = page.locator("#key-dataset option", { hasText: "stories.jsonl" });
      await page.locator("#key-dataset").selectOption(await choice.getAttribute("value"));
      await page.getByRole("button", { name: "Start this run" }).click();
      await page.getByText("Used by Stories").waitFor({ timeout: 60_000 });
      const { spec, config } = server.hub.run("stories")!.shell.options;
      assert.ok(config.dataset.startsWith(CORPUS_PREFIX));
      assert.equal(spec.vocab_size, new Set(lines.map((line) => JSON.parse(line).body).join("\n")).size);
      assert.deepEqual(errors, []);
    } finally {
      await browser.close();
      await server.stop("the test is over");
    }
  }));
