// Fine-tuning with adapters as a person does it, in real processes: a model is imported with its base frozen, peers fetch what their
// stages need of it and train, one is killed, then the coordinator. The loss falls, nothing but adapters changes, and the files of
// the base elsewhere spare the coordinator the sending. CPU engine and raw32, so that figures can be compared exactly.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { join } from "node:path";
import { BASE_NAME, readBase } from "../../coordinator/store/base.ts";
import { readCheckpoint, readTokenizer, stageStateOf } from "../../coordinator/store/checkpoints.ts";
import { loadCorpus } from "../../coordinator/store/corpus.ts";
import { createCpuEngine } from "../../peer/engine/cpu.ts";
import { stageBase, withLora } from "../../peer/engine/lora.ts";
import { stateHash } from "../../peer/exact/hash.ts";
import { wholeModel } from "../../peer/model/layout.ts";
import { type Cli, cpuPeer, flagsOf, inFolder, serving, shoal, TINY } from "../support/cli_support.ts";
import { drawGpt2, writeGpt2 } from "../support/gpt2.ts";
import { byteLevelTokenizerJson, drawLlama, TINY_LLAMA, writeLlama } from "../support/llama.ts";
import { serveModel } from "../support/model_server.ts";
import { runOneProcess } from "../support/one_process.ts";

const GPT2 = {
  ...{ vocab_size: 264, n_positions: 32, n_embd: 16, n_layer: 2, n_head: 2, n_inner: null },
  ...{ layer_norm_epsilon: 1e-5, tie_word_embeddings: true },
};
const TEXT = "the cat sat on the mat, and the café closed at 水 o'clock.\n".repeat(12);
const { n_layer: _l, n_head: _h, n_kv_head: _k, n_embd: _e, n_inner: _i, ...TRAINING } = TINY;
const STEPS = 30;
const RUN = {
  ...TRAINING,
  ...{
    learning_rate: 0.02,
    min_lr: 0.02,
    max_iters: STEPS,
    min_peers: 2,
    n_stage: 2,
    checkpoint_interval: 100,
  },
};

/** Model, run and text of a folder. */
function placesIn(folder: string) {
  return { model: join(folder, "model"), run: join(folder, "run"), text: join(folder, "run", "text.txt") };
}

async function imported(folder: string, write: (model: string) => Promise<void>): Promise<string> {
  const { model, run, text } = placesIn(folder);
  await write(model);
  const adapters = ["--lora_rank=4", "--lora_alpha=8", "--lora_targets=q_proj,v_proj,down_proj"];
  await using cli = shoal("import", [
    model,
    "--out",
    run,
    "--json",
    "--dataset",
    text,
    "--block_size=8",
    ...adapters,
  ]);
  assert.equal(await cli.ended(), 0, cli.err.join("\n"));
  // Beside the run, where a coordinator that begins anew may read it without being told.
  await Deno.writeTextFile(text, TEXT);
  return run;
}

const tokenizer = byteLevelTokenizerJson(["t h", "th e", "Ġ the"]);

function lossesOf(cli: Cli): number[] {
  return cli.json().filter((line) => line.event === "step").map((line) => Number(line["train/loss"]));
}

const mean = (values: number[]) => values.reduce((a, b) => a + b) / values.length;

async function hashOf(path: string): Promise<string> {
  return createHash("sha256").update(await Deno.readFile(path)).digest("hex");
}

/** The same steps without peers, frames or faults, beside the base that the run has. */
async function assertOneProcess(run: string, path: string): Promise<void> {
  const checkpoint = await readCheckpoint(path);
  const { config, spec, step, vocab } = checkpoint.manifest;
  const json = await readTokenizer(path, checkpoint.manifest);
  const { tokens } = await loadCorpus(config.dataset, vocab, json);
  const weights = await readBase(run, spec);
  const create = withLora(
    (build) => Promise.resolve(createCpuEngine(build)),
    (build) => stageBase(build, weights),
  );
  const codecs = { codecForward: "raw32", codecBackward: "raw32" } as const;
  const build = { spec, stage: wholeModel(spec), batchSize: config.batch_size, slots: 1, ...codecs };
  const { state } = await runOneProcess({ ...config, max_iters: step }, spec, tokens, await create(build));
  assert.equal(stateHash(stageStateOf(checkpoint, wholeModel(spec))), stateHash(state));
}

Deno.test("lora: an imported Llama's adapters are trained by two peers, whoever dies, to one process' bits", () =>
  inFolder(async (folder) => {
    const run = await imported(
      folder,
      (model) =>
        writeLlama(model, {
          shape: TINY_LLAMA,
          weights: drawLlama(TINY_LLAMA, 3),
          dtype: "BF16",
          shards: 2,
          tokenizer,
        }),
    );
    const base = await hashOf(join(run, BASE_NAME));
    const { text } = placesIn(folder);
    const first = await serving("resume", [run, "--dataset", text, ...flagsOf(RUN)]);
    await using coordinator = first.cli;
    await using one = cpuPeer(first.join);
    await using two = cpuPeer(first.join);
    await coordinator.line("step 8", (line) => line.event === "step" && Number(line.step) >= 8);
    two.signal("SIGKILL");
    await using three = cpuPeer(first.join);
    await coordinator.line("step 16", (line) => line.event === "step" && Number(line.step) >= 16);
    coordinator.signal("SIGKILL");
    await coordinator.ended();
    const second = await serving("resume", [run]);
    await using again = second.cli;
    const done = await again.line("the end", (line) => line.event === "done");
    for (const it of [again, one, three]) assert.equal(await it.ended(), 0, it.err.join("\n"));
    const losses = [...lossesOf(coordinator), ...lossesOf(again)];
    assert.ok(
      mean(losses.slice(-5)) < mean(losses.slice(0, 5)) - 0.5,
      `the loss does not fall: ${losses.join(" ")}`,
    );
    assert.equal(await hashOf(join(run, BASE_NAME)), base, "the base has changed");
    await assertOneProcess(run, String(done.checkpoint));
  }));

Deno.test("lora: a GPT-2's adapters are trained, with what its files elsewhere have fetched from there", () =>
  inFolder(async (folder) => {
    const run = await imported(
      folder,
      (model) => writeGpt2(model, { shape: GPT2, weights: drawGpt2(GPT2, 3), dtype: "F16", tokenizer }),
    );
    const { model, text } = placesIn(folder);
    await using elsewhere = serveModel(model);
    const flags = flagsOf({ ...RUN, max_iters: 12, shadows: false });
    const { cli, join: link } = await serving("resume", [
      ...[run, "--dataset", text, ...flags, "--base_url", elsewhere.url],
    ]);
    await using coordinator = cli;
    const peer = ["--join", link, "--engine=cpu", "--json", "--model_host", elsewhere.host];
    await using one = shoal("peer", peer);
    await using two = shoal("peer", peer);
    const done = await coordinator.line("the end", (line) => line.event === "done");
    for (const it of [coordinator, one, two]) assert.equal(await it.ended(), 0, it.err.join("\n"));
    const losses = lossesOf(coordinator);
    assert.ok(
      mean(losses.slice(-4)) < mean(losses.slice(0, 4)) - 0.2,
      `the loss does not fall: ${losses.join(" ")}`,
    );
    // Half of the layers for each peer, and the tied table for both, in halves.
    const bytes = elsewhere.asked.reduce((sum, { range }) => sum + range!.end - range!.begin, 0);
    assert.ok(elsewhere.asked.every(({ name }) => name === "model.safetensors"));
    const { size } = await Deno.stat(join(model, "model.safetensors"));
    assert.ok(bytes > 0.9 * size && bytes < 1.6 * size, `${bytes} of ${size}`);
    await assertOneProcess(run, String(done.checkpoint));
  }));
