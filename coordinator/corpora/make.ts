// A text and a wish for a tokenizer -> tokens, and what they were made of. Binds readers, tokenizers and preparation; not where the
// result is kept (prepared.ts).
import { createHash } from "node:crypto";
import { messageOf } from "../../peer/wire/errors.ts";
import {
  type OpenText,
  prepareCharacters,
  type Prepared,
  type PrepareOptions,
  prepareTokens,
} from "./prepare.ts";
import { type Making, tokenizerHash } from "./prepared.ts";
import type { CorpusSource } from "./sources.ts";
import {
  characterCorpusTokenizer,
  jsonCorpusTokenizer,
  newTokenizer,
  type TokenizerChoice,
  vocabularyRows,
} from "./tokenizer.ts";
import { badCorpus, quoted } from "./utf8.ts";

const CHUNK_BYTES = 1 << 20;

/** What a checkpoint says about tokens. */
export interface Given {
  vocab: readonly string[];
  /** Text of its tokenizer.json; null: characters. */
  json: string | null;
}

export interface Wish {
  /** For a new run. */
  choice: TokenizerChoice;
  /** For a run that goes on from a checkpoint, which then decides. */
  given: Given | null;
  /** A new vocabulary is filled up to a multiple of this. */
  multiple: number;
}

/** A tokenizer.json is kept with what it made; one that is a mere list of characters is not needed any more. */
export type Cut = Prepared & { json: string | null };

/** Cuts a text with the checkpoint's tokenizer, or with a new one. @throws {ShoalError} bad-corpus */
export async function prepare(
  open: OpenText,
  { choice: { label, json }, given, multiple }: Wish,
  options: PrepareOptions,
): Promise<Cut> {
  if (given !== null) {
    const tokenizer = given.json === null
      ? characterCorpusTokenizer(given.vocab)
      : jsonCorpusTokenizer(given.vocab, { label, json: given.json });
    return { ...await prepareTokens(open, tokenizer, options), json: given.json };
  }
  if (json === null) return { ...await prepareCharacters(open, options), json };
  const made = newTokenizer({ label, json }, multiple);
  return { ...await prepareTokens(open, made.tokenizer, options), json: made.json };
}

/** What decides about a file's tokens; reads the file once. */
export async function makingOf(source: CorpusSource, wish: Wish): Promise<Making> {
  return makingWith(await hashFile(source.path), source, wish);
}

/** The same for a source whose hash is known. */
export function makingWith(
  hash: string,
  { format, column }: Pick<CorpusSource, "format" | "column">,
  { choice, given, multiple }: Wish,
): Making {
  const json = given === null ? choice.json : given.json;
  return {
    ...{ source: hash, format, column: format === "text" ? null : column },
    tokenizer: tokenizerHash(json, given?.vocab ?? null),
    vocabulary: given?.vocab.length ??
      (json === null ? 0 : vocabularyRows({ label: choice.label, json }, multiple)),
  };
}

async function hashFile(path: string): Promise<string> {
  const hash = createHash("sha256");
  using file = await Deno.open(path).catch((error) => {
    throw badCorpus(`${quoted(path)} cannot be read: ${messageOf(error)}`);
  });
  const chunk = new Uint8Array(CHUNK_BYTES);
  for (let count = await file.read(chunk); count !== null; count = await file.read(chunk)) {
    hash.update(chunk.subarray(0, count));
  }
  return hash.digest("hex");
}
