// Text in parts -> tokens. Reads a source twice for characters (which are there, then which is where), once for anything else; holds one
// part, and the tokens unless somebody takes them block by block; never the text. It lets others run between pieces, so heartbeats go on beside it.
import { bytesPerToken, type Corpus, corpusOf } from "../../peer/model/data.ts";
import { messageOf } from "../../peer/wire/errors.ts";
import type { TextPart } from "./sources.ts";
import { Pieces, piecesOf } from "./pieces.ts";
import { characterCorpusTokenizer, type CorpusTokenizer } from "./tokenizer.ts";
import { badCorpus, quoted } from "./utf8.ts";

/** Bytes of a text's tokens on the disk: a billion words. Peers fetch the pages they need. */
export const TOKEN_BYTES_MAX = 4 * 2 ** 30;
/** The same where nobody takes the blocks, so that all are in memory. */
export const HELD_BYTES_MAX = 256 << 20;
/** Others run after so long at the latest, ms. */
const TURN_MS = 20;
/** Tokens that are kept together. */
const BLOCK_TOKENS = 1 << 20;
const LINE_FEED = 0x0a;

export interface PrepareProgress {
  /** Bytes of the source that are done; looking for the characters first counts for half. */
  bytes: number;
  /** Bytes of the source; 0 if nobody said. */
  of: number;
  tokens: number;
  documents: number;
}

export interface PrepareOptions {
  /** What errors call the text. */
  name: string;
  /** Bytes of the source, where progress is to be told. */
  bytesTotal?: number;
  onProgress?(progress: PrepareProgress): void;
  /** Takes each block of tokens once it is full, in order; absent: they are kept and returned. */
  take?(block: Corpus): Promise<void>;
  signal?: AbortSignal;
  /** A clock in ms and a break; tests bring their own. */
  now?: () => number;
  turn?: () => Promise<void>;
}

export interface Prepared {
  vocab: string[];
  /** Neighbouring pieces of the tokens; none where they were taken. */
  blocks: Corpus[];
  tokens: number;
  documents: number;
}

/** What opens the text from its beginning. */
export type OpenText = () => AsyncIterable<TextPart>;

/** @throws {ShoalError} bad-corpus for a text without a character, too many tokens, or what the reader says. */
export async function prepareCharacters(open: OpenText, options: PrepareOptions): Promise<Prepared> {
  const breath = new Breath(options);
  const seen = new Set<number>(), { bytesTotal: of = 0 } = options;
  let documents = 0;
  for await (const part of open()) {
    for (const piece of piecesOf(part.text)) {
      for (const char of piece) seen.add(char.codePointAt(0)!);
      await breath.ifDue();
    }
    if (part.ends) documents++;
    options.onProgress?.({ bytes: part.done / 2, of, tokens: 0, documents: 0 });
  }
  if (seen.size === 0) throw badCorpus(`${quoted(options.name)} has no text`);
  // Between documents lies a line's end, which therefore must be a character of the model.
  if (documents > 1) seen.add(LINE_FEED);
  const vocab = [...seen].sort((a, b) => a - b).map((code) => String.fromCodePoint(code));
  const onProgress = (progress: PrepareProgress) => {
    options.onProgress?.({ ...progress, bytes: (of + progress.bytes) / 2 });
  };
  return await prepareTokens(open, characterCorpusTokenizer(vocab), { ...options, onProgress });
}

/** @throws {ShoalError} bad-corpus if it has no tokens, too many, or what the reader or the tokenizer says. */
export async function prepareTokens(
  open: OpenText,
  tokenizer: CorpusTokenizer,
  options: PrepareOptions,
): Promise<Prepared> {
  const { name, onProgress, bytesTotal: of = 0 } = options;
  const sink = new Sink(options, tokenizer.vocab.length);
  const breath = new Breath(options), pieces = new Pieces();
  let documents = 0;
  async function take(text: string, ends: boolean): Promise<void> {
    for (const piece of pieces.push(text, ends)) {
      sink.push(encoded(tokenizer, piece, { name, before: sink.length }));
      await sink.handOver();
      await breath.ifDue();
    }
  }
  for await (const { text, ends, done } of open()) {
    await take(text, ends);
    if (ends) {
      sink.push(tokenizer.separator);
      documents++;
    }
    onProgress?.({ bytes: done, of, tokens: sink.length, documents });
  }
  await take("", true);
  if (sink.length === 0) throw badCorpus(`${quoted(name)} has no text`);
  return {
    ...{ vocab: tokenizer.vocab, blocks: await sink.finish(), tokens: sink.length },
    documents: Math.max(1, documents),
  };
}

function encoded(
  tokenizer: CorpusTokenizer,
  piece: string,
  { name, before }: { name: string; before: number },
): number[] {
  try {
    return tokenizer.encode(piece);
  } catch (error) {
    const reason = messageOf(error).slice(0, 200);
    throw badCorpus(`${quoted(name)} cannot be cut into tokens after token ${before}: ${reason}`);
  }
}

/** Lets others run now and then, and ends the work when nobody wants it any more. */
class Breath {
  readonly #now: () => number;
  readonly #turn: () => Promise<void>;
  readonly #signal: AbortSignal | undefined;
  #last: number;

  constructor({ now = () => performance.now(), turn = nextTurn, signal }: PrepareOptions) {
    this.#now = now;
    this.#turn = turn;
    this.#signal = signal;
    this.#last = now();
  }

  async ifDue(): Promise<void> {
    if (this.#now() - this.#last < TURN_MS) return;
    await this.#turn();
    this.#signal?.throwIfAborted();
    this.#last = this.#now();
  }
}

function nextTurn(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve));
}

/** Tokens as they come, in as few bytes as the vocabulary needs. */
class Sink {
  readonly #options: Pick<PrepareOptions, "name" | "take">;
  readonly #vocabSize: number;
  readonly #tokensMax: number;
  readonly #blocks: Corpus[] = [];
  #open: number[] = [];
  length = 0;

  constructor(options: Pick<PrepareOptions, "name" | "take">, vocabSize: number) {
    this.#options = options;
    this.#vocabSize = vocabSize;
    const bytes = options.take === undefined ? HELD_BYTES_MAX : TOKEN_BYTES_MAX;
    this.#tokensMax = bytes / bytesPerToken(vocabSize);
  }

  push(ids: readonly number[]): void {
    for (const id of ids) this.#open.push(id);
    this.length += ids.length;
    if (this.#open.length >= BLOCK_TOKENS) this.#close();
    if (this.length > this.#tokensMax) {
      const most = `${this.#tokensMax} tokens, the most that are kept of a text`;
      throw badCorpus(`${quoted(this.#options.name)} has more than ${most}; use a part of it`);
    }
  }

  /** Gives full blocks to whoever takes them. */
  async handOver(): Promise<void> {
    const { take } = this.#options;
    if (take === undefined) return;
    for (const block of this.#blocks.splice(0)) await take(block);
  }

  async finish(): Promise<Corpus[]> {
    this.#close();
    await this.handOver();
    return this.#blocks;
  }

  #close(): void {
    if (this.#open.length > 0) this.#blocks.push(corpusOf(this.#open, this.#vocabSize));
    this.#open = [];
  }
}

/** The blocks as one corpus. */
export function joinBlocks(blocks: readonly Corpus[], vocabSize: number): Corpus {
  if (blocks.length === 1) return blocks[0]!;
  const all = corpusOf({ length: 0 }, vocabSize).constructor as { new (length: number): Corpus };
  const joined = new all(blocks.reduce((sum, block) => sum + block.length, 0));
  let at = 0;
  for (const block of blocks) {
    joined.set(block, at);
    at += block.length;
  }
  return joined;
}
