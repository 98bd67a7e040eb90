// The admin page as it ships, bound to a scripted coordinator: what it asks, sends and shows. contributor_test.ts does the same
// for the contributor's page.
import assert from "node:assert/strict";
import { status } from "../../web/fixtures_data.ts";
import { refusal, scripted, TOKEN, withPage } from "./bound_support.ts";

Deno.test("admin page: follows the status, sends orders with its token, and downloads a checkpoint", async function test() {
  const seen: string[] = [];
  let paused = false;
  const handler = scripted({
    "GET /api/status": () => Response.json({ ...status, state: paused ? "paused" : "training" }),
    "POST /api/control": function control() {
      paused = true;
      return Response.json({});
    },
    "POST /api/change": () => Response.json({}),
    "GET /api/invitations": () => Response.json({ open: true, invitations: [] }),
    "POST /api/evict": () => refusal(409, "bad-state", "the last holder of stage 2 cannot be removed"),
    "GET /api/checkpoints/step-300/config.json": () => new Response("{}"),
  }, seen);
  await withPage(handler, async function steps(page, origin) {
    await page.goto(`${origin}/admin#${TOKEN}`);
    await page.getByRole("button", { name: "Pause the run" }).click();
    await page.getByRole("button", { name: "Resume the run" }).waitFor();
    assert.ok(seen.includes('POST /api/control {"action":"pause"}'), seen.join("\n"));

    await page.getByRole("button", { name: "Remove tab-09ae" }).click();
    await page.getByLabel("Reason, told to its owner").fill("it is needed elsewhere");
    await page.getByRole("button", { name: "Remove it" }).click();
    await page.getByRole("status").filter({ hasText: "the last holder of stage 2 cannot be removed" })
      .waitFor();
    const evicted = 'POST /api/evict {"peer":"tab-09ae","reason":"it is needed elsewhere"}';
    assert.ok(seen.includes(evicted), seen.join("\n"));

    await page.getByLabel("New value").fill("0.002");
    await page.getByLabel("From step").fill("500");
    await page.getByText("learning_rate 0.0006 → 0.002 from step 500 on").waitFor();
    await page.getByRole("button", { name: "Change it" }).click();
    await page.getByRole("status").filter({ hasText: "Changed from step 500 on." }).waitFor();
    assert.ok(seen.includes('POST /api/change {"step":500,"set":{"learning_rate":0.002}}'), seen.join("\n"));

    const downloading = page.waitForEvent("download");
    await page.getByRole("button", { name: "Download config.json of step-300" }).click();
    assert.equal((await downloading).suggestedFilename(), "step-300-config.json");
  });
});

Deno.test("admin page: an outage keeps the last figures and says that they are old", async function test() {
  let down = false;
  const handler = scripted({
    "GET /api/status": () => down ? new Response("", { status: 502 }) : Response.json(status),
  });
  await withPage(handler, async function steps(page, origin) {
    await page.goto(`${origin}/admin#${TOKEN}`);
    await page.getByRole("heading", { name: status.runName }).waitFor();
    down = true;
    await page.getByText("these are its last figures").waitFor();
    await page.getByRole("heading", { name: status.runName }).waitFor();
    down = false;
    await page.getByText("these are its last figures").waitFor({ state: "detached" });
  });
});
