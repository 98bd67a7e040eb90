// Fine-tuning all weights of a model that lies at an address: it is imported from there, and the peers, real processes, fetch from there
// what their stages begin with, each its own tensors and nothing twice. The coordinator serves none of it, or what the address fails
// to; either way the weights are those that one process trains. CPU engine and raw32, so that figures can be compared exactly.
import assert from "node:assert/strict";
import { join } from "node:path";
import { openRun } from "../../coordinator/main.ts";
import { readCheckpoint, readTokenizer, stageStateOf } from "../../coordinator/store/checkpoints.ts";
import { readSource, SOURCE_NAME } from "../../coordinator/store/base_source.ts";
import { loadCorpus } from "../../coordinator/store/corpus.ts";
import { stateHash } from "../../peer/exact/hash.ts";
import { readConfig } from "../../peer/model/config.ts";
import { EMBEDDING_NAME, paramCount, wholeModel } from "../../peer/model/layout.ts";
import { inFolder, shoal, TINY } from "../support/cli_support.ts";
import { drawGpt2, writeGpt2 } from "../support/gpt2.ts";
import { byteLevelTokenizerJson, drawLlama, TINY_LLAMA, writeLlama } from "../support/llama.ts";
import { type ModelServer, serveModel } from "../support/model_server.ts";
import { trainOn } from "../support/one_process.ts";

const GPT2 = {
  ...{ vocab_size: 264, n_positions: 32, n_embd: 16, n_layer: 2, n_head: 2, n_inner: null },
  ...{ layer_norm_epsilon: 1e-5, tie_word_embeddings: true },
};
const TEXT = "the cat sat on the mat, and the café closed at 水 o'clock.\n".repeat(12);
const { n_layer: _l, n_head: _h, n_kv_head: _k, n_embd: _e, n_inner: _i, ...TRAINING } = TINY;
const RUN = {
  ...TRAINING,
  ...{ learning_rate: 0.01, min_lr: 0.01, max_iters: 4, min_peers: 2, n_stage: 2, shadows: false },
};
const tokenizer = byteLevelTokenizerJson(["t h", "th e", "Ġ the"]);

/** Imports what the server has; the run's folder and its first checkpoint. */
async function imported(folder: string, { url }: ModelServer): Promise<{ run: string; first: string }> {
  const run = join(folder, "run");
  await using cli = shoal("import", [url, "--out", run, "--json", "--block_size=8"]);
  assert.equal(await cli.ended(), 0, cli.err.join("\n"));
  return { run, first: String(cli.json()[0]!.checkpoint) };
}

/** Trains to the end with two peers; what the coordinator was asked for, and the peers' notes. */
async function train(run: string, first: string, from: ModelServer | null) {
  const config = await configOf(run, first), address = from === null ? {} : { baseUrl: from.url };
  await Deno.writeTextFile(config.dataset, TEXT);
  const fetched: string[] = [];
  let place = "";
  const opened = await openRun(
    {
      ...{ config, outDir: run, resumeFrom: first, ...address, operator: "a test", runName: "tuned" },
      ...{ webRoot: run, onEvent: () => {} },
    },
    { base: () => place },
  );
  const server = Deno.serve({ hostname: "127.0.0.1", port: 0, onListen: () => {} }, (request) => {
    const { pathname } = new URL(request.url), range = request.headers.get("range") ?? "";
    if (request.method === "GET" && /^\/api\/(base\/file|state\/)/.test(pathname)) {
      fetched.push(pathname + range.replace("bytes=", " "));
    }
    return opened.fetch(request);
  });
  place = `http://127.0.0.1:${server.addr.port}`;
  try {
    const args = ["--join", opened.joinLink(), "--engine=cpu", "--json"];
    if (from !== null) args.push("--model_host", from.host);
    await using one = shoal("peer", args);
    await using two = shoal("peer", args);
    for (const peer of [one, two]) assert.equal(await peer.ended(), 0, peer.err.join("\n"));
    const notes = [one, two].map((peer) => peer.json().filter((line) => line.event === "note").length);
    return { fetched, notes };
  } finally {
    await opened.close("the test is over");
    await server.shutdown();
  }
}

async function configOf(run: string, first: string) {
  const { manifest } = await readCheckpoint(first);
  return readConfig({ ...manifest.config, ...RUN, dataset: join(run, "text.txt") });
}

/** The same steps in one process, from the imported weights. */
async function assertOneProcess(run: string, first: string): Promise<void> {
  const begun = await readCheckpoint(first), config = await configOf(run, first);
  const { spec, vocab } = begun.manifest;
  const { tokens } = await loadCorpus(config.dataset, vocab, await readTokenizer(first, begun.manifest));
  const state = stageStateOf(begun, wholeModel(spec)), before = stateHash(state);
  await trainOn({ config, spec, corpus: tokens, state, until: RUN.max_iters });
  assert.equal(await hashAfter(run), stateHash(state));
  assert.notEqual(stateHash(state), before);
}

/** Of the whole state at the end. */
async function hashAfter(run: string): Promise<string> {
  const name = `step-${String(RUN.max_iters).padStart(9, "0")}`;
  const last = await readCheckpoint(join(run, "checkpoints", name));
  return stateHash(stageStateOf(last, wholeModel(last.manifest.spec)));
}

async function copy(from: string, to: string): Promise<void> {
  await Deno.mkdir(to);
  for await (const { name, isDirectory } of Deno.readDir(from)) {
    if (isDirectory) await copy(join(from, name), join(to, name));
    else await Deno.copyFile(join(from, name), join(to, name));
  }
}

/** Every byte goes to one of the two stages, those of a tied table to both. */
async function assertEachOnce(
  { model, first, tied }: { model: string; first: string; tied: boolean },
  { asked }: ModelServer,
): Promise<void> {
  const source = readSource(await Deno.readTextFile(join(first, SOURCE_NAME)));
  assert.ok(source.ok);
  for (const [file, name] of source.value.files.entries()) {
    const { size } = await Deno.stat(join(model, name));
    const wanted = new Uint8Array(size), found = new Uint8Array(size);
    for (const it of source.value.tensors.filter((tensor) => tensor.file === file)) {
      wanted.fill(tied && it.name === EMBEDDING_NAME ? 2 : 1, it.begin, it.end);
    }
    for (const { range } of asked.filter((it) => it.name === name)) {
      for (let at = range!.begin; at < range!.end; at++) found[at]!++;
    }
    assert.deepEqual(found, wanted, name);
  }
}

/** Untied, since a tied table's two ends are rounded each by itself, which one process does not. */
function writeUntied(model: string): Promise<void> {
  const shape = { ...TINY_LLAMA, tie_word_embeddings: false };
  return writeLlama(model, { shape, weights: drawLlama(shape, 3), dtype: "BF16", shards: 2, tokenizer });
}

Deno.test("full fine-tuning: a Llama comes from its address, to each peer what its stage is", () =>
  inFolder(async (folder) => {
    const model = join(folder, "model");
    await writeUntied(model);
    await using server = serveModel(model);
    const { run, first } = await imported(folder, server);
    server.asked.length = 0;
    const { fetched, notes } = await train(run, first, server);
    assert.deepEqual([fetched, notes], [[], [0, 0]]);
    await assertEachOnce({ model, first, tied: false }, server);
    await assertOneProcess(run, first);
  }));

Deno.test("full fine-tuning: a GPT-2 from its address trains to the bits of one from the coordinator", () =>
  inFolder(async (folder) => {
    const model = join(folder, "model");
    await writeGpt2(model, { shape: GPT2, weights: drawGpt2(GPT2, 3), dtype: "F16", tokenizer });
    await using server = serveModel(model);
    const { run, first } = await imported(folder, server);
    server.asked.length = 0;
    const other = join(folder, "other");
    await copy(run, other);
    assert.deepEqual(await train(run, first, server), { fetched: [], notes: [0, 0] });
    await assertEachOnce({ model, first, tied: true }, server);
    server.asked.length = 0;
    const { fetched } = await train(other, first, null);
    assert.deepEqual(server.asked, []);
    // Without moments: f32 weights, of the table two halves' worth.
    const bytes = fetched.map((it) => /^\/api\/base\/file (\d+)-(\d+)$/.exec(it)!)
      .reduce((sum, [, begin, end]) => sum + Number(end) + 1 - Number(begin), 0);
    const { spec } = (await readCheckpoint(first)).manifest;
    assert.equal(bytes, 4 * (paramCount(spec) + spec.vocab_size * spec.n_embd));
    assert.equal(await hashAfter(other), await hashAfter(run));
  }));

Deno.test("full fine-tuning: an address that dies half-way leaves the rest to the coordinator", () =>
  inFolder(async (folder) => {
    const model = join(folder, "model");
    await writeUntied(model);
    let left = Infinity;
    await using server = serveModel(
      model,
      () => left-- > 0 ? null : Promise.resolve(new Response("gone", { status: 503 })),
    );
    const { run, first } = await imported(folder, server);
    left = 1;
    const { fetched, notes } = await train(run, first, server);
    assert.deepEqual(notes, [1, 1]);
    assert.ok(fetched.length > 0 && fetched.every((it) => it.startsWith("/api/base/file ")), fetched.join());
    await assertOneProcess(run, first);
  }));
