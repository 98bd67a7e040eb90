// The admin page takes a checkpoint away: what it asks the coordinator, and the name under which the browser keeps it.
// The coordinator's side is coordinator/http/exports_test.ts.
import assert from "node:assert/strict";
import { status } from "../../web/fixtures_data.ts";
import { refusal, scripted, TOKEN, withPage } from "./bound_support.ts";

Deno.test("admin page: exports a checkpoint under the coordinator's name, and says why one fails", async function test() {
  const headers = { "content-disposition": 'attachment; filename="the-run-step-300-q8_0.gguf"' };
  const seen: string[] = [];
  const handler = scripted({
    "GET /api/status": () => Response.json(status),
    "GET /api/checkpoints/step-300/export/gguf": () => new Response("GGUF", { headers }),
    "GET /api/checkpoints/step-300/export/onnx": () =>
      refusal(422, "bad-checkpoint", "a file differs from its SHA-256"),
  }, seen);
  await withPage(handler, async function steps(page, origin) {
    await page.goto(`${origin}/admin#${TOKEN}`);
    const asked = page.waitForRequest((request) => request.url().includes("/export/gguf"));
    const downloading = page.waitForEvent("download");
    await page.getByRole("button", { name: "GGUF, 8 bits: export step-300 for llama.cpp" }).click();
    assert.equal(new URL((await asked).url()).search, "?dtype=q8_0");
    const download = await downloading;
    assert.equal(download.suggestedFilename(), "the-run-step-300-q8_0.gguf");
    assert.equal(await Deno.readTextFile((await download.path())!), "GGUF");
    await page.getByRole("button", { name: "ONNX: export step-300 for onnxruntime" }).click();
    await page.getByRole("status").filter({ hasText: "differs from its SHA-256" }).waitFor();
  });
});
