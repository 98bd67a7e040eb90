// The tokenizer that belongs to a checkpoint, as training, generating, serving and evaluating use it: text to tokens and back. One token
// per character, or whatever a tokenizer.json says, read by Hugging Face's own library. Its file may come from anywhere.
import { Tokenizer } from "@huggingface/tokenizers";
import { charTokenizer } from "../../peer/model/tokenizer.ts";
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";
import type { CheckpointManifest } from "./checkpoint_manifest.ts";
import { tokenText } from "./token_text.ts";
import { type TextMarks, textMarks } from "./tokenizer_marks.ts";

/** Characters that an error message lists of the vocabulary. */
const SHOWN_MAX = 120;
/** Tokens before a text that decide how its first piece reads. */
const CONTEXT_TOKENS = 8;
/** What a decoder writes for bytes that are no whole character yet. */
const INCOMPLETE = "\ufffd";

export interface TextTokenizer {
  readonly vocabSize: number;
  /** Tokens of a text to learn or to measure. @throws {ShoalError} bad-corpus for text that this vocabulary cannot express. */
  encode(text: string): number[];
  /** Tokens of a text to go on from: with what the tokenizer puts at a beginning. @throws {ShoalError} like encode. */
  encodePrompt(text: string): number[];
  decode(tokens: ArrayLike<number>): string;
  /** Decodes a text that grows token by token, and goes on from `before`, which it does not repeat. */
  stream(before?: readonly number[]): TokenStream;
  /** UTF-8 bytes that the tokens stand for; special tokens stand for none. */
  bytes(tokens: ArrayLike<number>): number;
  /** Whether the token says that a text is over. */
  ends(token: number): boolean;
  /** A token by itself, as lists of tokens show it. */
  nameOf(token: number): string;
  /** All of which that is so. */
  readonly endTokens: readonly number[];
}

export interface TokenStream {
  /** The text that is certain after this token. */
  push(token: number): string;
  /** What was held back. */
  rest(): string;
}

/**
 * The tokenizer that a checkpoint's model was trained with.
 * @param json Text of the manifest's tokenizer file; null for a model of characters.
 * @throws {ShoalError} bad-checkpoint if the file is no tokenizer.
 */
export function tokenizerOf(
  { vocab }: Pick<CheckpointManifest, "vocab">,
  json: string | null,
): TextTokenizer {
  return json === null ? characterTokenizer(vocab) : wordTokenizer(json, vocab.length);
}

function characterTokenizer(vocab: readonly string[]): TextTokenizer {
  const tokenizer = charTokenizer(vocab), known = new Set(tokenizer.vocab);
  const lengths = tokenizer.vocab.map((char) => new TextEncoder().encode(char).length);
  const encode = (text: string) => {
    for (const char of text) if (!known.has(char)) throw neverSeen(char, tokenizer.vocab);
    return Array.from(tokenizer.encode(text));
  };
  return {
    ...{ vocabSize: vocab.length, encode, encodePrompt: encode },
    decode: (tokens) => tokenizer.decode(tokens),
    stream: () => ({ push: (token) => tokenizer.decode([token]), rest: () => "" }),
    bytes: (tokens) => sumOf(tokens, lengths),
    ends: () => false,
    endTokens: [],
    nameOf: (token) => vocab[token] ?? "",
  };
}

function neverSeen(char: string, vocab: readonly string[]): ShoalError {
  const shown = vocab.slice(0, SHOWN_MAX).join("");
  const more = vocab.length > SHOWN_MAX ? ` and ${vocab.length - SHOWN_MAX} more` : "";
  const knows = `it knows ${JSON.stringify(shown)}${more}`;
  return new ShoalError(
    "bad-corpus",
    `the model has never seen the character ${JSON.stringify(char)}; ${knows}`,
  );
}

function wordTokenizer(json: string, vocabSize: number): TextTokenizer {
  const { tokenizer, byteLevel, marks } = openTokenizer(json);
  const special = new Set<number>();
  for (const [id, token] of tokenizer.get_added_tokens_decoder()) if (token.special) special.add(id);
  const lengths = Array.from({ length: vocabSize }, (_, id) => {
    return special.has(id) ? 0 : byteLength(tokenizer.id_to_token(id) ?? "", byteLevel);
  });
  // Another text's beginning is this one's end, too. What stands for an unknown word or fills a row up says nothing of the kind.
  const named = [...marks.ends, ...(marks.begin === null ? [] : [marks.begin])].map(({ id }) => id);
  const ends = marks.ends.length > 0 ? new Set(named) : special;
  const encode = (text: string, add_special_tokens: boolean) => {
    const { ids } = tokenizer.encode(text, { add_special_tokens });
    const beyond = ids.find((id) => !(Number.isInteger(id) && id >= 0 && id < vocabSize));
    if (beyond === undefined) return ids;
    throw new ShoalError("bad-corpus", `the tokenizer gives token ${beyond}, but the model has ${vocabSize}`);
  };
  const decode = (tokens: ArrayLike<number>) =>
    // The library takes an empty text for a mistake.
    tokens.length === 0 ? "" : tokenizer.decode(Array.from(tokens), {
      skip_special_tokens: true,
      clean_up_tokenization_spaces: false,
    });
  return {
    ...{
      vocabSize,
      decode,
      encode: (text) => encode(text, false),
      encodePrompt: (text) => encode(text, true),
    },
    stream: (before = []) => new WordStream(decode, before.slice(-CONTEXT_TOKENS)),
    bytes: (tokens) => sumOf(tokens, lengths),
    ends: (token) => ends.has(token),
    endTokens: [...ends],
    nameOf: (token) => {
      const name = tokenizer.id_to_token(token) ?? "";
      return special.has(token) ? name : tokenText(name, byteLevel);
    },
  };
}

function openTokenizer(json: string): { tokenizer: Tokenizer; byteLevel: boolean; marks: TextMarks } {
  try {
    const parsed = JSON.parse(json);
    const tokenizer = new Tokenizer(parsed, {});
    return { tokenizer, byteLevel: hasType(parsed.decoder, "ByteLevel"), marks: textMarks(parsed) };
  } catch (error) {
    const reason = messageOf(error).slice(0, 200);
    throw new ShoalError("bad-checkpoint", `its tokenizer.json cannot be used: ${reason}`, { cause: error });
  }
}

/** Whether a decoder is of a kind, or is a sequence with one of it. */
function hasType(decoder: unknown, type: string): boolean {
  if (typeof decoder !== "object" || decoder === null) return false;
  const { type: own, decoders } = decoder as { type?: unknown; decoders?: unknown };
  return own === type || (Array.isArray(decoders) && decoders.some((it) => hasType(it, type)));
}

/** Byte-level names have one character per byte; SentencePiece's write a space as a low line, and single bytes as <0x0A>. */
function byteLength(name: string, byteLevel: boolean): number {
  if (byteLevel) return [...name].length;
  if (/^<0x[0-9A-Fa-f]{2}>$/.test(name)) return 1;
  return new TextEncoder().encode(name.replaceAll("\u2581", " ")).length;
}

/**
 * Decodes with the tokens before, since a piece's text depends on them (a leading space, half a character), and tells only what is
 * complete.
 */
class WordStream implements TokenStream {
  readonly #decode: (tokens: number[]) => string;
  #tokens: number[] = [];
  /** Tokens from here on are decoded together; up to `#read` their text was told. */
  #from = 0;
  #read = 0;

  constructor(decode: (tokens: number[]) => string, before: readonly number[]) {
    this.#decode = decode;
    this.#tokens = [...before];
    this.#read = before.length;
  }

  push(token: number): string {
    this.#tokens.push(token);
    return this.#next(false);
  }

  rest(): string {
    return this.#next(true);
  }

  #next(last: boolean): string {
    const before = this.#decode(this.#tokens.slice(this.#from, this.#read));
    const text = this.#decode(this.#tokens.slice(this.#from));
    if (text.length <= before.length || (!last && text.endsWith(INCOMPLETE))) return "";
    this.#from = this.#read;
    this.#read = this.#tokens.length;
    return text.slice(before.length);
  }
}

function sumOf(tokens: ArrayLike<number>, lengths: readonly number[]): number {
  let sum = 0;
  for (let i = 0; i < tokens.length; i++) sum += lengths[tokens[i]!]!;
  return sum;
}
