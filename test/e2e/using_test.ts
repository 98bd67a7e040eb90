// What people do with a model, in real processes with the permissions that the documentation promises: measure it, have a live run write,
// bring a Llama in, fine-tune it, and serve it. CPU engine and raw32, so that figures can be compared exactly.
import assert from "node:assert/strict";
import { join } from "node:path";
import { readManifest } from "../../coordinator/store/checkpoints.ts";
import { cpuPeer, flagsOf, inFolder, serving, shoal, TINY } from "../support/cli_support.ts";
import { byteLevelTokenizerJson, drawLlama, TINY_LLAMA, writeLlama } from "../support/llama.ts";

const KEY = "the-key-of-the-test";

function ask(url: string, key: string, body: Record<string, unknown>): Promise<Response> {
  const headers = { authorization: `Bearer ${key}`, "content-type": "application/json" };
  return fetch(`${url}/completions`, { method: "POST", headers, body: JSON.stringify(body) });
}

async function complete(url: string, key: string, body: Record<string, unknown>) {
  const response = await ask(url, key, body);
  assert.equal(response.status, 200, await response.clone().text());
  return await response.json();
}

Deno.test("using: eval says what the run itself measured, and a live run completes texts", () =>
  inFolder(async (folder) => {
    const out = join(folder, "run");
    const intervals = { eval_iters: 3, checkpoint_interval: 20 };
    const flags = flagsOf({ ...TINY, ...intervals, max_iters: 100_000, min_peers: 1 });
    const args = [...flags, "--out_dir", out, "--name", "live"];
    const { cli, join: link, admin } = await serving("coordinator", args);
    await using coordinator = cli;
    await using peer = cpuPeer(link);
    await coordinator.line("a checkpoint", (line) => line.event === "checkpoint");
    const { origin, hash } = new URL(admin);
    const request = { model: "live", prompt: "Call me", max_tokens: 12, seed: 1 };
    const refused = await ask(`${origin}/v1`, new URL(link).hash.slice(1), request);
    assert.ok(
      [401, 403].includes(refused.status),
      `contributors may not, without --public_text: ${refused.status}`,
    );
    await refused.body?.cancel();
    const answer = await complete(`${origin}/v1`, hash.slice(1), request);
    assert.equal([...answer.choices[0].text].length, 12);
    assert.match(answer.system_fingerprint, /^step-\d+$/);
    coordinator.interrupt();
    assert.equal(await coordinator.ended(), 0, coordinator.err.join("\n"));
    assert.equal(await peer.ended(), 0, peer.err.join("\n"));
    const told = coordinator.json().filter((line) => line.event === "eval").at(-1)!;
    await using measured = shoal("eval", ["--checkpoint", out, "--engine", "cpu", "--json"]);
    assert.equal(await measured.ended(), 0, measured.err.join("\n"));
    const [result] = measured.json();
    assert.deepEqual([result!.step, result!.micro_batches], [told.step, 3]);
    const difference = Math.abs(Number(result!.loss) - Number(told["val/loss"]));
    assert.ok(difference < 1e-12, `${result!.loss} ${told["val/loss"]}`);
  }));

const TEXT = "the cat sat on the mat, and the café closed at 水 o'clock.\n".repeat(12);

/** Two peers train the folder's run to step 6; returns the last checkpoint. */
async function fineTune(run: string, text: string): Promise<string> {
  const { n_layer: _l, n_head: _h, n_kv_head: _k, n_embd: _e, n_inner: _i, ...training } = TINY;
  const rates = { learning_rate: 0.03, min_lr: 0.03, max_iters: 6, sample_chars: 8, min_peers: 2 };
  const flags = flagsOf({ ...training, ...rates });
  const { cli, join: link } = await serving("resume", [run, "--dataset", text, ...flags]);
  await using coordinator = cli;
  await using first = cpuPeer(link);
  await using second = cpuPeer(link);
  const done = await coordinator.line("the end", (line) => line.event === "done");
  for (const it of [coordinator, first, second]) assert.equal(await it.ended(), 0, it.err.join("\n"));
  return String(done.checkpoint);
}

async function evaluated(run: string, text: string): Promise<Record<"loss" | "bytes", number>> {
  const flags = ["--checkpoint", run, "--dataset", text, "--split=whole", "--engine=cpu", "--json"];
  await using cli = shoal("eval", flags);
  assert.equal(await cli.ended(), 0, cli.err.join("\n"));
  const { loss, bytes } = cli.json()[0]!;
  return { loss: Number(loss), bytes: Number(bytes) };
}

Deno.test("using: a Llama with a tokenizer of its own is imported, fine-tuned, measured and served", () =>
  inFolder(async (folder) => {
    const [model, run, text] = [join(folder, "model"), join(folder, "run"), join(folder, "text.txt")];
    const tokenizer = byteLevelTokenizerJson(["t h", "th e", "Ġ the"]);
    await writeLlama(model, {
      shape: TINY_LLAMA,
      weights: drawLlama(TINY_LLAMA, 3),
      dtype: "BF16",
      shards: 2,
      tokenizer,
    });
    await Deno.writeTextFile(text, TEXT);
    await using imported = shoal("import", [
      model,
      "--out",
      run,
      "--json",
      "--dataset",
      text,
      "--block_size=8",
    ]);
    assert.equal(await imported.ended(), 0, imported.err.join("\n"));
    assert.equal(imported.json()[0]!.tokenizer, "tokenizer.json");
    const before = await evaluated(run, text);
    const checkpoint = await fineTune(run, text);
    const manifest = await readManifest(checkpoint);
    assert.deepEqual([manifest.step, manifest.tokenizer], [6, "tokenizer.json"]);
    assert.equal(await Deno.readTextFile(join(checkpoint, "tokenizer.json")), JSON.stringify(tokenizer));
    const after = await evaluated(run, text);
    // Its first token is no target; "the" has three bytes.
    const bytes = new TextEncoder().encode(TEXT).length - 3;
    assert.deepEqual([before.bytes, after.bytes], [bytes, bytes]);
    assert.ok(after.loss < before.loss, `${after.loss} ${before.loss}`);
    await using server = shoal("serve", ["--checkpoint", run, "--json", "--key", KEY, "--name", "tuned"]);
    const { url } = await server.line("the address", (line) => line.event === "serving");
    const answer = await complete(String(url), KEY, { prompt: "the café", max_tokens: 5, temperature: 0 });
    assert.deepEqual([answer.usage.prompt_tokens, answer.model], [7, "tuned"]);
    server.interrupt();
    assert.equal(await server.ended(), 0, server.err.join("\n"));
  }));
