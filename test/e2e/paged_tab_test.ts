// A tab that trains on a text that stays on the coordinator's disk: the browser asks for pages of it, and keeps less than the whole. What
// pages are is tested beside peer/token_pages.ts.
import assert from "node:assert/strict";
import { join } from "node:path";
import { FolderDesk } from "../../coordinator/corpora/desk.ts";
import { chooseTokenizer } from "../../coordinator/corpora/tokenizer.ts";
import { startCoordinator } from "../../coordinator/main.ts";
import { readConfig } from "../../peer/model/config.ts";
import { inFolder, TINY } from "../support/cli_support.ts";
import { openBrowser } from "./pages_support.ts";

const WEB_ROOT = new URL("../../web/dist", import.meta.url).pathname;
/** Only a hang reaches it. */
const PATIENCE_MS = 180_000;

Deno.test("a tab learns from a text that it fetches in parts", () =>
  inFolder(async (folder) => {
    const path = join(folder, "text.txt");
    await Deno.writeTextFile(path, Array.from({ length: 9000 }, (_, i) => `${i * i % 977} sheep\n`).join(""));
    const source = { path, name: path, format: "text" as const, column: "" };
    const wish = { source, choice: await chooseTokenizer("char"), multiple: 1 };
    const { id, tokens } = await new FolderDesk(folder).add(wish, () => {});
    const coordinator = await startCoordinator({
      config: readConfig({
        ...TINY,
        dataset: `corpus:${id}`,
        max_iters: 100_000,
        checkpoint_interval: 100_000,
      }),
      ...{ host: "127.0.0.1", port: 0, outDir: join(folder, "run"), operator: "the test", runName: "test" },
      ...{ webRoot: WEB_ROOT, corporaDir: join(folder, "corpora"), onEvent: () => {} },
      paging: { heldBytesMax: 1000, pageBytes: 512 },
    });
    const browser = await openBrowser();
    try {
      const context = await browser.newContext();
      context.setDefaultTimeout(PATIENCE_MS);
      const tab = await context.newPage(), parts: number[] = [];
      // Its worker's requests are the context's, not the page's.
      context.on("response", (response) => {
        if (!/\/api\/corpus\/pages\/[0-9,]+$/.test(response.url())) return;
        assert.equal(response.status(), 200);
        parts.push(Number(response.headers()["content-length"]));
      });
      await tab.goto(coordinator.joinLink.replace("/#", "/?engine=cpu#"));
      await tab.getByRole("button", { name: /lend this computer/i }).click();
      const { state } = coordinator.shell.core;
      while (state.committed < 3) await tab.waitForTimeout(50);
      const bytes = parts.reduce((sum, part) => sum + part, 0);
      assert.ok(parts.length > 3 && bytes < tokens, `${bytes} of ${tokens} bytes in ${parts.length} parts`);
    } finally {
      await browser.close();
      await coordinator.stop("the test is over");
    }
  }));
