// What cuts a text into tokens while it is prepared: characters, or a tokenizer.json, which comes from anywhere. Not what a trained model
// reads and writes with (store/text_tokenizer.ts, on which this stands); words that it has met it does not cut anew.
import { basename } from "node:path";
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";
import { charTokenizer, VOCAB_MAX } from "../../peer/model/tokenizer.ts";
import { readTokenizerJson } from "../import/tokenizer_json.ts";
import { tokenizerOf } from "../store/text_tokenizer.ts";
import { ENDS_OF_TEXT } from "../store/tokenizer_marks.ts";
import { gpt2TokenizerJson } from "./gpt2.ts";
import { badCorpus, quoted } from "./utf8.ts";

/** A tokenizer.json with the largest known vocabularies has 35 MB. */
const JSON_BYTES_MAX = 64 << 20;
/** Words whose tokens are remembered; a book has some ten thousands. */
const WORDS_MAX = 1 << 17;
const WORD_CHARS_MAX = 32;
/** How GPT-2 cuts a text before it looks for pairs: contractions, words with the space before, numbers, signs, spaces. */
const GPT2_WORDS = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+/gu;

/** What a run's text is cut with; `json` null: characters. */
export interface TokenizerChoice {
  /** `char`, `gpt2`, or a file's name. */
  label: string;
  json: string | null;
}

export interface CorpusTokenizer {
  /** Names by number. */
  vocab: string[];
  encode(text: string): number[];
  /** What lies between two documents. */
  separator: number[];
}

/** Reads what `tokenizer` names: char, gpt2, or the path of a tokenizer.json. @throws {ShoalError} bad-corpus, missing-tool */
export async function chooseTokenizer(wish: string): Promise<TokenizerChoice> {
  if (wish === "char") return { label: "char", json: null };
  if (wish === "gpt2") return { label: "gpt2", json: gpt2TokenizerJson() };
  try {
    const { size, isFile } = await Deno.stat(wish);
    if (!isFile) throw new Error("it is no file");
    if (size > JSON_BYTES_MAX) throw new Error(`it has ${size} bytes, more than ${JSON_BYTES_MAX}`);
    return { label: basename(wish), json: await Deno.readTextFile(wish) };
  } catch (error) {
    const remedy = "use char, gpt2, or the path of a tokenizer.json";
    throw badCorpus(`the tokenizer ${quoted(wish)} cannot be read: ${messageOf(error)}; ${remedy}`);
  }
}

/** One token per character of `vocab`; documents are separated by a line's end, if there is one. */
export function characterCorpusTokenizer(vocab: readonly string[]): CorpusTokenizer {
  const { vocab: names } = charTokenizer(vocab), newline = vocab.indexOf("\n");
  const ids = new Map(names.map((char, id) => [char, id]));
  return {
    vocab: names,
    encode: (text) =>
      Array.from(text, (char) => {
        const id = ids.get(char);
        if (id !== undefined) return id;
        throw badCorpus(
          `the character ${JSON.stringify(char)} is none of the ${names.length} that the model knows`,
        );
      }),
    separator: newline < 0 ? [] : [newline],
  };
}

/**
 * Of a tokenizer.json that a new run is to learn with. @param multiple The vocabulary is filled up to a multiple of this.
 * @throws {ShoalError} bad-corpus if it cannot be used. A plain list of characters gives a character tokenizer: `json` is null then.
 */
export function newTokenizer(
  { label, json }: { label: string; json: string },
  multiple: number,
): { json: string | null; tokenizer: CorpusTokenizer } {
  const read = readTokenizerJson(json, vocabularyRows({ label, json }, multiple));
  if (!read.ok) throw unusable(label, read.reason);
  const { vocab, characters } = read.value;
  if (characters) return { json: null, tokenizer: characterCorpusTokenizer(vocab) };
  const tokenizer = jsonCorpusTokenizer(vocab, { label, json });
  trial(label, tokenizer.encode);
  return { json, tokenizer };
}

/** Of a tokenizer.json whose tokens' names are known, such as a checkpoint's. */
export function jsonCorpusTokenizer(
  vocab: readonly string[],
  { label, json }: { label: string; json: string },
): CorpusTokenizer {
  const { encode } = opened(label, () => tokenizerOf({ vocab: [...vocab] }, json));
  const end = ENDS_OF_TEXT.map((name) => vocab.indexOf(name)).find((id) => id >= 0);
  return {
    vocab: [...vocab],
    encode: remembering(encode, opened(label, () => JSON.parse(json))),
    separator: end === undefined ? [] : [end],
  };
}

function opened<T>(label: string, open: () => T): T {
  try {
    return open();
  } catch (error) {
    throw unusable(label, messageOf(error));
  }
}

/** What cannot cut a sentence now could not cut a text later. */
function trial(label: string, encode: (text: string) => number[]): void {
  const ids = opened(label, () => encode("The quick brown fox, 12 times.\n"));
  if (ids.length === 0) throw unusable(label, "it gives no tokens for a sentence");
}

function unusable(label: string, reason: string): ShoalError {
  return badCorpus(`the tokenizer ${quoted(label)} cannot be used: ${reason.slice(0, 200)}`);
}

/**
 * Rows of the embedding of a new run: one more than the greatest number of a token, filled up to a multiple.
 * @throws {ShoalError} bad-corpus if there is no vocabulary, or more than is possible.
 */
export function vocabularyRows(
  { label, json: text }: { label: string; json: string },
  multiple: number,
): number {
  const json = opened(label, () => JSON.parse(text)) as {
    model?: { vocab?: unknown };
    added_tokens?: unknown;
  };
  const vocab: unknown = json?.model?.vocab, added: unknown = json?.added_tokens;
  if (typeof vocab !== "object" || vocab === null) throw unusable(label, "it has no model with a vocabulary");
  let greatest = Array.isArray(vocab) ? vocab.length - 1 : -1;
  const ids = Array.isArray(vocab) ? [] : Object.values(vocab);
  for (const token of Array.isArray(added) ? added : []) ids.push((token as { id?: unknown } | null)?.id);
  for (const id of ids) if (typeof id === "number" && id > greatest) greatest = id;
  const rows = Math.ceil(Math.max(1, greatest + 1) / multiple) * multiple;
  if (rows <= VOCAB_MAX) return rows;
  throw unusable(label, `it has ${rows} tokens; at most ${VOCAB_MAX} are possible`);
}

type Encode = (text: string) => number[];

interface Description {
  normalizer?: unknown;
  pre_tokenizer?: { type?: unknown; add_prefix_space?: unknown; use_regex?: unknown } | null;
  added_tokens?: unknown;
}

/**
 * A tokenizer that cuts words like GPT-2 before anything else gives a word the same tokens wherever it stands, so they are looked up.
 * Others, and pieces with one of the tokenizer's own marks in them, go the long way.
 */
function remembering(
  encode: Encode,
  { normalizer, pre_tokenizer: split, added_tokens: added }: Description,
): Encode {
  const byWord = (normalizer ?? null) === null && split?.type === "ByteLevel" && split.use_regex !== false &&
    split.add_prefix_space === false;
  if (!byWord) return encode;
  const marks = (Array.isArray(added) ? added : []).map((it) =>
    String((it as { content?: unknown }).content)
  );
  const known = new Map<string, number[]>();
  return (text) => {
    if (marks.some((mark) => text.includes(mark))) return encode(text);
    const ids: number[] = [];
    for (const [word] of text.matchAll(GPT2_WORDS)) {
      let tokens = known.get(word);
      if (tokens === undefined) {
        tokens = encode(word);
        if (known.size < WORDS_MAX && word.length <= WORD_CHARS_MAX) known.set(word, tokens);
      }
      for (const id of tokens) ids.push(id);
    }
    return ids;
  };
}
