// A tab that fine-tunes: the page's policy lets its worker fetch the model from the one other origin that the run names, and the
// coordinator sends it only where that origin refuses. Everything else is lora_test.ts and full_tuning_test.ts.
import assert from "node:assert/strict";
import type { Page } from "playwright";
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
  ...{ block_size: 8, batch_size: 2, gradient_accumulation_steps: 2, max_iters: 100_000 },
  ...{ checkpoint_interval: 100_000, eval_interval: 100_000, eval_iters: 1, sample_chars: 0 },
};

/** Another origin, which lets everybody have parts of the file, or only its own pages. */
function serveElsewhere(path: string, everybody: boolean) {
  const asked: string[] = [];
  const server = Deno.serve({ hostname: "127.0.0.1", port: 0, onListen: () => {} }, async (request) => {
    const headers: Record<string, string> = everybody
      ? { "access-control-allow-origin": "*", "access-control-allow-headers": "range" }
      : {};
    if (request.method === "OPTIONS") return new Response(null, { headers });
    const range = request.headers.get("range")!;
    asked.push(range);
    const [, first, last] = /^bytes=(\d+)-(\d+)$/.exec(range)!;
    const part = (await Deno.readFile(path)).subarray(Number(first), Number(last) + 1);
    return new Response(part, { status: 206, headers });
  });
  return { asked, origin: `http://127.0.0.1:${server.addr.port}`, close: () => server.shutdown() };
}

interface Trained {
  tab: Page;
  /** The other place. */
  asked: string[];
  /** What the coordinator was asked for of the model and of states. */
  here: string[];
}

/** A tab reads the terms, agrees and trains three steps; then `look`. */
async function inTab(
  { lora_rank, everybody, terms }: { lora_rank: number; everybody: boolean; terms: RegExp },
  look: (trained: Trained) => Promise<void>,
): Promise<void> {
  await inFolder(async (folder) => {
    const [model, run, text] = [join(folder, "model"), join(folder, "run"), join(folder, "text.txt")];
    const files = { shape: SHAPE, weights: drawLlama(SHAPE, 3), dtype: "BF16" as const, shards: 1 };
    await writeLlama(model, { ...files, tokenizer: charTokenizerJson(VOCAB) });
    await Deno.writeTextFile(text, "bad cab fed a bee\n".repeat(60));
    const { path, config } = await importModel({
      from: model,
      out: run,
      config: { ...TRAINING, lora_rank, dataset: text },
    });
    const elsewhere = serveElsewhere(join(model, "model.safetensors"), everybody);
    const coordinator = await startCoordinator({
      ...{ config, resumeFrom: path, outDir: run, host: "127.0.0.1", port: 0, webRoot: WEB_ROOT },
      ...{ operator: "the test", runName: "tuned", baseUrl: `${elsewhere.origin}/`, onEvent: () => {} },
    });
    const browser = await openBrowser();
    try {
      const context = await browser.newContext();
      context.setDefaultTimeout(PATIENCE_MS);
      const tab = await context.newPage(), here: string[] = [];
      // Its worker's requests are the context's, not the page's.
      context.on("request", (request) => {
        const { pathname } = new URL(request.url());
        if (/^\/api\/(base\/file|state\/)/.test(pathname)) here.push(pathname);
      });
      await tab.goto(coordinator.joinLink.replace("/#", "/?engine=cpu#"));
      assert.match(
        await tab.getByText(terms).textContent() ?? "",
        new RegExp(`from ${new URL(elsewhere.origin).host}, where your network address is seen`),
      );
      await tab.getByRole("button", { name: /lend this computer/i }).click();
      while (coordinator.shell.core.state.committed < 3) await tab.waitForTimeout(50);
      await look({ tab, here, asked: elsewhere.asked });
    } finally {
      await browser.close();
      await coordinator.stop("the test is over");
      await elsewhere.close();
    }
  });
}

Deno.test("a tab fetches a frozen model from the origin that the run names, and trains adapters beside it", async () => {
  const terms = /Once, about .* of a model that stays as it is/;
  await inTab({ lora_rank: 2, everybody: true, terms }, ({ here, asked }) => {
    assert.deepEqual(here.filter((path) => path === "/api/base/file"), []);
    assert.equal(asked.length, 1, "neighbours are one range");
    return Promise.resolve();
  });
});

Deno.test("a tab that an address does not let in says so once, and begins with the coordinator's weights", async () => {
  const terms = /When the run begins, about .* of its first weights/;
  await inTab({ lora_rank: 0, everybody: false, terms }, async ({ tab, here }) => {
    await tab.getByText(/The model's address does not serve, so the model comes from the coordinator/)
      .waitFor();
    assert.deepEqual(here, ["/api/base/file"]);
  });
});
