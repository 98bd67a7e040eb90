// Character tokenizer: one token per Unicode code point, numbered by the order of the vocabulary.
// Not sub-word tokenising. A vocabulary is data of the run and may come from elsewhere, so it is checked.
import { ShoalError } from "../wire/errors.ts";
import { type Corpus, corpusOf } from "./data.ts";

/** The largest known tokenizers have this many; a row of the embedding and one of the head stand behind each. */
export const VOCAB_MAX = 262_144;

export interface CharTokenizer {
  vocab: string[];
  /** In as few bytes as suffice. @throws {ShoalError} bad-corpus at a character outside the vocabulary. */
  encode(text: string): Corpus;
  /** @throws {ShoalError} bad-corpus at a token outside the vocabulary. */
  decode(tokens: ArrayLike<number>): string;
}

/**
 * From a text (vocabulary = its distinct characters by code point) or from a vocabulary list.
 * @throws {ShoalError} bad-corpus if empty, too large, not well-formed Unicode, repeated, or not single characters.
 */
export function charTokenizer(source: string | readonly string[]): CharTokenizer {
  const vocab = typeof source === "string" ? vocabOf(source) : [...source];
  checkSize(vocab);
  const ids = new Map(vocab.map((char, id) => [char, id]));
  checkVocab(vocab, ids);
  return {
    vocab,
    encode: (text) => encode(text, ids),
    decode: (tokens) => decode(tokens, vocab),
  };
}

/** Every token below the vocabulary's size. @throws {ShoalError} bad-corpus naming the first that is not. */
export function checkTokens(tokens: Corpus, vocabSize: number): void {
  const index = tokens.findIndex((token) => token >= vocabSize);
  if (index >= 0) throw unknownToken(tokens[index]!, index, vocabSize);
}

function vocabOf(text: string): string[] {
  if (!text.isWellFormed()) throw bad("the text contains half of a surrogate pair; decode it as UTF-8");
  return [...new Set(text)].sort((a, b) => a.codePointAt(0)! - b.codePointAt(0)!);
}

function checkSize(vocab: readonly string[]): void {
  if (vocab.length < 1) throw bad("the vocabulary is empty; use a corpus with at least one character");
  if (vocab.length > VOCAB_MAX) {
    throw bad(`a vocabulary of ${vocab.length} entries; at most ${VOCAB_MAX} are possible`);
  }
}

function checkVocab(vocab: readonly string[], ids: ReadonlyMap<string, number>): void {
  const wrong = vocab.findIndex((char) => !isCharacter(char));
  if (wrong >= 0) {
    throw bad(`vocabulary entry ${wrong} is ${quoted(vocab[wrong])}; each must be one Unicode character`);
  }
  if (ids.size !== vocab.length) {
    const twice = vocab.find((char, id) => ids.get(char) !== id);
    throw bad(`vocabulary entry ${quoted(twice)} occurs twice; entries must be distinct`);
  }
}

function isCharacter(char: unknown): boolean {
  return typeof char === "string" && char.isWellFormed() && [...char].length === 1;
}

function encode(text: string, ids: ReadonlyMap<string, number>): Corpus {
  const tokens: number[] = [];
  for (const char of text) {
    const id = ids.get(char);
    if (id === undefined) {
      throw bad(`character ${quoted(char)} at position ${tokens.length} is not in the vocabulary; remove it`);
    }
    tokens.push(id);
  }
  return corpusOf(tokens, ids.size);
}

function decode(tokens: ArrayLike<number>, vocab: readonly string[]): string {
  return Array.from(tokens, (token, index) => {
    const char = vocab[token];
    if (char === undefined) throw unknownToken(token, index, vocab.length);
    return char;
  }).join("");
}

function unknownToken(token: number, index: number, vocabSize: number): ShoalError {
  return bad(
    `token ${token} at position ${index} is outside the vocabulary of ${vocabSize}; re-encode the corpus`,
  );
}

function quoted(value: unknown): string {
  return JSON.stringify(value) ?? String(value);
}

function bad(message: string): ShoalError {
  return new ShoalError("bad-corpus", message);
}
