// A tab that fine-tunes with adapters: the page's policy lets its worker fetch the frozen model from the one other origin that the run
// names, and the coordinator need not send it. Everything else about adapters is lora_test.ts.
import assert from "node:assert/strict";
import { join } from "node:path";
import { importModel } from "../../coordinator/import/import_model.ts";
import { startCoordinator } from "../../coordinator/main.ts";
import { inFolder } from "../support/cli_support.ts";
import { charTokenizerJson, drawLlama, writeLlama } from "../support/llama.ts";
import { openBrowser } from "./pages_support.ts";

const WEB_ROOT = new URL("../../web/dist", import.meta.url).pathname;
/** Only a hang reaches it. */
const PATIENCE_MS = 180_000;

const VOCAB = [..."\n abcdefgh"];
const SHAPE = {
  ...{ vocab_size: VOCAB.length, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 2 },
  ...{ num_attention_heads: 2, num_key_value_heads: 1, max_position_embeddings: 16 },
  ...{ rms_norm_eps: 1e-5, rope_theta: 10_000, tie_word_embeddings: false },
};
const TRAINING = {
  ...{ block_size: 8, batch_size: 2, gradient_accumulation_steps: 2, lora_rank: 2, max_iters: 100_000 },
  ...{ checkpoint_interval: 100_000, eval_interval: 100_000, eval_iters: 1, sample_chars: 0 },
};

/** Another origin, which lets everybody have parts of the file. */
function serveElsewhere(path: string) {
  const asked: string[] = [];
  const server = Deno.serve({ hostname: "127.0.0.1", port: 0, onListen: () => {} }, async (request) => {
    const headers = { "access-control-allow-origin": "*", "access-control-allow-headers": "range" };
    if (request.method === "OPTIONS") return new Response(null, { headers });
    const range = request.headers.get("range")!;
    asked.push(range);
    const [, first, last] = /^bytes=(\d+)-(\d+)$/.exec(range)!;
    const part = (await Deno.readFile(path)).subarray(Number(first), Number(last) + 1);
    return new Response(part, { status: 206, headers });
  });
  return { asked, origin: `http://127.0.0.1:${server.addr.port}`, close: () => server.shutdown() };
}

Deno.test("a tab fetches a frozen model from the origin that the run names, and trains adapters beside it", () =>
  inFolder(async (folder) => {
    const [model, run, text] = [join(folder, "model"), join(folder, "run"), join(folder, "text.txt")];
    const files = { shape: SHAPE, weights: drawLlama(SHAPE, 3), dtype: "BF16" as const, shards: 1 };
    await writeLlama(model, { ...files, tokenizer: charTokenizerJson(VOCAB) });
    await Deno.writeTextFile(text, "bad cab fed a bee\n".repeat(60));
    const { path, config } = await importModel({
      from: model,
      out: run,
      config: { ...TRAINING, dataset: text },
    });
    const elsewhere = serveElsewhere(join(model, "model.safetensors"));
    const coordinator = await startCoordinator({
      ...{ config, resumeFrom: path, outDir: run, host: "127.0.0.1", port: 0, webRoot: WEB_ROOT },
      ...{ operator: "the test", runName: "adapters", baseUrl: `${elsewhere.origin}/`, onEvent: () => {} },
    });
    const browser = await openBrowser();
    try {
      const context = await browser.newContext();
      context.setDefaultTimeout(PATIENCE_MS);
      const tab = await context.newPage(), here: string[] = [];
      // Its worker's requests are the context's, not the page's.
      context.on(
        "request",
        (request) => void (/\/api\/base\/file/.test(request.url()) && here.push(request.url())),
      );
      await tab.goto(coordinator.joinLink.replace("/#", "/?engine=cpu#"));
      const terms = await tab.getByText(/Once, about .* of a model that stays as it is/).textContent();
      assert.match(
        terms ?? "",
        new RegExp(`from ${new URL(elsewhere.origin).host}, where your network address is seen`),
      );
      await tab.getByRole("button", { name: /lend this computer/i }).click();
      while (coordinator.shell.core.state.committed < 3) await tab.waitForTimeout(50);
      assert.deepEqual(here, []);
      assert.equal(elsewhere.asked.length, 1, "neighbours are one range");
    } finally {
      await browser.close();
      await coordinator.stop("the test is over");
      await elsewhere.close();
    }
  }));
