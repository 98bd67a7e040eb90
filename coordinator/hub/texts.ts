// The text of a run under a name that another run of the coordinator can learn it by: one that comes with the packages or was brought has
// one already; of a file the prepared tokens are taken over. What must stay true: what is taken over are the very tokens that the run
// learned, and no path comes from whoever asks.
import { basename, join } from "node:path";
import { newestOf } from "../cli/checkpoint_path.ts";
import { idsIn } from "../corpora/kept.ts";
import { describeCorpus, tokenizerHash, writePrepared } from "../corpora/prepared.ts";
import { CORPUS_PREFIX, corpusIdOf } from "../corpora/types.ts";
import { readCheckpoint, readTokenizer } from "../store/checkpoints.ts";
import {
  isKnownDataset,
  loadCorpus,
  type LoadedCorpus,
  type ServedCorpus,
  vocabularyHash,
} from "../store/corpus.ts";
import { TokenFile } from "../store/token_store.ts";
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";
import type { RunConfig } from "../../peer/wire/run.ts";

export interface TextOf {
  /** Of the run. */
  folder: string;
  config: RunConfig;
  /** What its log says of its tokens, and of what they stand for; the latter is not in old logs. */
  corpusHash: string;
  vocabHash: string | undefined;
  /** While it is open. */
  corpus: ServedCorpus | null;
}

/**
 * The data set's name for another run; its tokens are prepared in `corporaDir` if they have to be.
 * @throws {ShoalError} bad-corpus if the file is gone or has changed, storage-full
 */
export async function takeText(run: TextOf, corporaDir: string): Promise<string> {
  const { dataset, tokenizer } = run.config;
  if (corpusIdOf(dataset) !== null || (isKnownDataset(dataset) && tokenizer === "char")) return dataset;
  const own = join(run.folder, "corpora");
  const id = await preparedAs(run, corporaDir) ?? await moved(own, await preparedAs(run, own), corporaDir) ??
    await written(run, corporaDir);
  return CORPUS_PREFIX + id;
}

/** A text in the folder with the run's tokens, whatever it is called; null: there is none. */
async function preparedAs({ corpusHash, vocabHash }: TextOf, folder: string): Promise<string | null> {
  for (const id of await idsIn(folder)) {
    const found = await describeCorpus(folder, id).catch(() => null);
    if (found?.hash !== corpusHash) continue;
    const tokenizer = found.tokenizer
      ? await Deno.readTextFile(join(folder, id, "tokenizer.json"))
      : undefined;
    if (vocabHash === undefined || vocabularyHash({ vocab: found.vocab, tokenizer }) === vocabHash) return id;
  }
  return null;
}

/** A run that began elsewhere has its text in its own folder. */
async function moved(from: string, id: string | null, to: string): Promise<string | null> {
  if (id === null) return null;
  const temporary = join(to, `.writing-${id}-${crypto.randomUUID()}`);
  try {
    await Deno.mkdir(temporary, { recursive: true });
    for await (const { name } of Deno.readDir(join(from, id))) {
      await Deno.copyFile(join(from, id, name), join(temporary, name));
    }
    await Deno.rename(temporary, join(to, id));
    return id;
  } catch (error) {
    throw new ShoalError("storage-full", `the text cannot be taken over: ${messageOf(error)}`, {
      cause: error,
    });
  } finally {
    await Deno.remove(temporary, { recursive: true }).catch(() => {});
  }
}

/** From memory, or from the run's file once more, if it still gives the same tokens. */
async function written(run: TextOf, folder: string): Promise<string> {
  const { dataset } = run.config;
  const corpus = run.corpus ?? await reloaded(run);
  const { vocab, tokens, hash, tokenizer = null } = corpus;
  if (tokens instanceof TokenFile) throw new ShoalError("bad-corpus", `the tokens of "${dataset}" are gone`);
  const vocabHash = vocabularyHash(corpus);
  if (hash !== run.corpusHash || (run.vocabHash !== undefined && vocabHash !== run.vocabHash)) {
    const remedy = "bring the text as it is now and choose it in the form";
    throw new ShoalError("bad-corpus", `"${basename(dataset)}" has changed since the run began; ${remedy}`);
  }
  const prepared = { vocab, blocks: [tokens], tokens: tokens.length, documents: 1 };
  return await writePrepared(folder, prepared, {
    name: basename(dataset),
    making: {
      ...{ source: hash, format: "text", column: null },
      ...{ tokenizer: tokenizerHash(tokenizer, vocab), vocabulary: vocab.length },
    },
    label: tokenizer === null ? "char" : basename(run.config.tokenizer),
    sourceBytes: tokens.byteLength,
    json: tokenizer,
  });
}

async function reloaded({ folder, config }: TextOf): Promise<LoadedCorpus> {
  const { dataset, tokenizer, column, vocab_multiple: multiple } = config;
  const checkpoint = await newestOf(folder);
  if (checkpoint === null) return await loadCorpus(dataset, undefined, null, { tokenizer, column, multiple });
  const { manifest } = await readCheckpoint(checkpoint);
  const json = await readTokenizer(checkpoint, manifest);
  return await loadCorpus(dataset, manifest.vocab, json, { column });
}
