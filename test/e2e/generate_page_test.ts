// A person tries the model on the page: the pages as they are built, and a real checkpoint behind a real writer. The form is opened,
// a text streams in, another is stopped, a wrong number and a character that the model does not know are told, for the
// organizer and, where everybody may, for a contributor; by keyboard alone.
import assert from "node:assert/strict";
import type { Page } from "playwright";
import { startServing } from "../../coordinator/cli/serve.ts";
import { invite, status } from "../../web/fixtures_data.ts";
import { inTempFolder, writeTiny } from "../support/checkpoint.ts";
import { scripted, TOKEN, withPage } from "./bound_support.ts";
import type { ApiHandler } from "./pages_support.ts";
import { violations } from "./pages_states.ts";

/** The page of a run whose text is written by a real server. */
async function withWriter(test: (page: Page, origin: string) => Promise<void>): Promise<void> {
  await inTempFolder(async (folder) => {
    await writeTiny(folder, { step: 7 });
    const served = await startServing({
      ...{ checkpoint: folder, host: "127.0.0.1", port: 0, name: "tiny", key: TOKEN },
    });
    const answers = scripted({
      "GET /api/status": () => Response.json(status),
      "GET /api/invite": () => Response.json({ ...invite, text: true, state: "finished" }),
    });
    const handler: ApiHandler = (request) => {
      const { pathname } = new URL(request.url);
      if (!pathname.startsWith("/v1/")) return answers(request);
      const { method, headers, body } = request;
      return fetch(new URL(pathname, served.url), { method, headers, body });
    };
    try {
      await withPage(handler, (page, origin) => test(page, origin));
    } finally {
      await served.stop();
    }
  });
}

Deno.test("try the model: a text streams in, another is stopped, and mistakes are told", () =>
  withWriter(async (page, origin) => {
    await page.goto(`${origin}/admin#${TOKEN}`);
    const panel = page.getByRole("region", { name: "Try the model" });
    const scripts = () =>
      page.evaluate(() => performance.getEntriesByType("resource").map(({ name }) => name));
    const loaded = async () => (await scripts()).some((name) => name.includes("generate_panel"));
    await panel.getByRole("button", { name: "Write a text with it" }).waitFor();
    assert.equal(await loaded(), false, "it is a part of the first load");
    await panel.getByRole("button", { name: "Write a text with it" }).press("Enter");
    const write = panel.getByRole("button", { name: "Write", exact: true });
    await write.waitFor();
    assert.equal(await loaded(), true);
    assert.equal(await write.isDisabled(), true);

    await panel.getByLabel("Text to continue").fill("abc");
    await panel.getByLabel("Length, tokens").fill("30");
    await panel.getByLabel("Seed").fill("5");
    await panel.getByLabel("Seed").press("Enter");
    await panel.getByText("Done, with 30 tokens.").waitFor();
    const text = panel.getByRole("region", { name: "Text of the model" });
    const first = await text.innerText();
    assert.ok(first.startsWith("abc") && first.length >= 33 - 3, first);
    await panel.getByText("checkpoint of step 7, seed 5, 30 tokens").waitFor();
    await page.getByRole("status").filter({ hasText: "Done, with 30 tokens." }).waitFor();
    assert.deepEqual(await violations(page), []);

    await panel.getByLabel("Length, tokens").fill("8192");
    await write.press("Enter");
    await panel.getByRole("button", { name: "Stop" }).press("Enter");
    await panel.getByText("Stopped. What was written stays here.").waitFor();

    await panel.getByLabel("Top p").fill("0");
    await panel.getByText("A number above 0 and up to 1, please.").waitFor();
    assert.equal(await write.isDisabled(), true);
    await panel.getByLabel("Top p").fill("1");
    await panel.getByLabel("Text to continue").fill("\u00e9");
    await write.press("Enter");
    await panel.getByText(/^That failed: .*\u00e9/).waitFor();

    // A contributor has it where everybody may, also when the run is over.
    await page.goto(`${origin}/#${TOKEN}`);
    await panel.getByRole("button", { name: "Write a text with it" }).press("Enter");
    await panel.getByLabel("Text to continue").fill("abc");
    await panel.getByLabel("Text to continue").press("Tab");
    await write.press("Enter");
    await panel.getByText("Done, with 200 tokens.").waitFor();
  }));
