// A run like another one whose text was a file on the command line: the same tokens under a name of the coordinator's own, while the run
// is open and when it is not, and a refusal if the file is another one by now.
import assert from "node:assert/strict";
import { join } from "node:path";
import { make, openHub, refused, SMALL } from "../../test/support/hub_site.ts";
import { startCoordinator } from "../main.ts";
import { loadCorpus } from "../store/corpus.ts";
import { hashPages, TokenFile } from "../store/token_store.ts";
import { readConfig } from "../../peer/model/config.ts";
import { lookAtRunLog } from "../store/run_log.ts";

/** As `shoal coordinator --dataset FILE` leaves it behind. */
async function ran(folder: string, id: string, config: Record<string, unknown>): Promise<void> {
  const coordinator = await startCoordinator({
    ...{ config: readConfig({ ...SMALL, ...config }), host: "127.0.0.1", port: 0, operator: "the test" },
    ...{ outDir: join(folder, "runs", id), runName: id, webRoot: folder, onEvent: () => {} },
  });
  await coordinator.stop("the test goes on");
}

Deno.test("hub: the text of a run that was a file is taken over, with its tokenizer, and learned by a run like it", async () => {
  const folder = await Deno.makeTempDir({ prefix: "shoal-taken-" });
  const corpora = join(folder, "runs", "corpora");
  try {
    const file = join(folder, "whale.jsonl"), plain = join(folder, "plain.txt");
    const line = JSON.stringify({ body: "Call me Ishmael. Some years ago" });
    await Deno.writeTextFile(file, `${line}\n`.repeat(30));
    await Deno.writeTextFile(plain, "the cat sat\n".repeat(30));
    await ran(folder, "words", { dataset: file, column: "body", tokenizer: "gpt2" });
    await ran(folder, "letters", { dataset: plain });
    await using site = await openHub(folder);
    const ask = async (id: string) => await (await site.ask(`/api/hub/runs/${id}/text`, {})).json();
    const words = await ask("words");
    assert.match(words.dataset, /^corpus:[0-9a-f]{16}$/);
    assert.deepEqual([words.tokenizer, words.column], ["char", "text"]);
    const taken = await loadCorpus(words.dataset, undefined, null, { folder: corpora });
    const first = await loadCorpus(file, undefined, null, { column: "body", tokenizer: "gpt2" });
    assert.deepEqual([taken.hash, taken.vocab, taken.tokenizer], [first.hash, first.vocab, first.tokenizer]);
    // Open or not, and when the file is gone: it is found again by its tokens.
    await site.ask("/api/hub/runs/words/archive", {});
    await Deno.remove(file);
    assert.deepEqual(await ask("words"), words);
    const { datasets } = await (await site.ask("/api/hub/form")).json();
    assert.ok(datasets.some((it: { dataset: string }) => it.dataset === words.dataset), "not on the list");
    const config = await (await site.ask("/api/hub/runs/words/config")).json();
    const made = await site.ask("/api/hub/runs", { name: "again", config: { ...config, ...words } });
    assert.equal(made.status, 201, await made.text());
    const [again, before] = ["again", "words"].map((id) => lookAtRunLog(join(folder, "runs", id))!.run);
    assert.deepEqual([again!.corpusHash, again!.vocabHash], [before!.corpusHash, before!.vocabHash]);
    await site.ask("/api/hub/runs/letters/archive", {});
    await Deno.writeTextFile(plain, "the dog sat\n".repeat(30));
    await refused(
      await site.ask("/api/hub/runs/letters/text", {}),
      400,
      /bad-corpus: "plain.txt" has changed since the run began/,
    );
    await refused(await site.ask("/api/hub/runs/none/text", {}), 400, /there is no run/);
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
});

Deno.test("hub: a text that a run reads from the disk is used by it, also if the run knows it as a file", async () => {
  const folder = await Deno.makeTempDir({ prefix: "shoal-taken-" });
  try {
    const file = join(folder, "long.txt");
    // From a mebibyte on a file's tokens are kept.
    await Deno.writeTextFile(file, "the cat sat on the mat\n".repeat(50_000));
    await ran(folder, "reader", { dataset: file });
    await using site = await openHub(folder);
    const text = await (await site.ask("/api/hub/runs/reader/text", {})).json();
    const id = text.dataset.slice("corpus:".length);
    const { hub } = site.server;
    assert.deepEqual(hub.usersOf(id), [], "its tokens are in memory");
    const { corpus } = hub.run("reader")!.shell.options;
    const path = join(folder, "runs", "corpora", id, "tokens.bin"), { pages } = await hashPages(path, 4096);
    corpus.tokens = new TokenFile(path, { tokens: corpus.tokens.length, bytesPerToken: 1, pages });
    assert.deepEqual(hub.usersOf(id), ["reader"]);
    await refused(
      await site.ask(`/api/corpora/${id}`, undefined, { method: "DELETE" }),
      409,
      /used by "reader"/,
    );
    await make(site, "again", { config: { ...SMALL, ...text } });
    assert.deepEqual(hub.usersOf(id).sort(), ["again", "reader"]);
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
});

Deno.test("hub: a text that every coordinator has keeps its name", async () => {
  const folder = await Deno.makeTempDir({ prefix: "shoal-taken-" });
  try {
    await ran(folder, "whale", {});
    await using site = await openHub(folder);
    const text = await (await site.ask("/api/hub/runs/whale/text", {})).json();
    assert.equal(text.dataset, "moby-dick");
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
});
