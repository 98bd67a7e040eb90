// A prepared text on disk: a folder with its tokens, a description and the tokenizer, named by what it was made of. A folder with its
// final name is complete: it is filled under another name first. What is opened is checked against the hashes in the description.
import { createHash } from "node:crypto";
import { dirname, join } from "node:path";
import * as v from "valibot";
import { bytesPerToken, type Corpus, corpusView, splitRange } from "../../peer/model/data.ts";
import { VOCAB_MAX } from "../../peer/model/tokenizer.ts";
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";
import { exists } from "../store/exists.ts";
import { hashPages, pageBytesFor, TokenFile, type Tokens, WHOLE_BYTES_MAX } from "../store/token_store.ts";
import { type Prepared, TOKEN_BYTES_MAX } from "./prepare.ts";
import type { CorpusFormat } from "./types.ts";
import { badCorpus } from "./utf8.ts";

const DESCRIPTION_NAME = "corpus.json";
const TOKENS_NAME = "tokens.bin";
const TOKENIZER_NAME = "tokenizer.json";
/** Names of the largest vocabulary need some 5 MiB. */
const DESCRIPTION_BYTES_MAX = 32 << 20;
const TOKENIZER_BYTES_MAX = 64 << 20;
const FORMAT = 1;

/** What a text is made of; equal makings have equal ids. */
export interface Making {
  /** SHA-256 of the source, hex. */
  source: string;
  format: CorpusFormat;
  /** null for plain text. */
  column: string | null;
  /** SHA-256 of what decides about tokens: a tokenizer.json, a given vocabulary, or nothing for the text's own characters. */
  tokenizer: string;
  /** Tokens that the model is to know; 0: as many as the text has characters. */
  vocabulary: number;
}

export interface Described {
  name: string;
  making: Making;
  /** `char`, `gpt2`, or a file's name. */
  label: string;
  sourceBytes: number;
}

const COUNT = v.pipe(v.number(), v.integer(), v.minValue(0), v.maxValue(Number.MAX_SAFE_INTEGER));
const HASH = v.pipe(v.string(), v.regex(/^[0-9a-f]{64}$/));
const SPLIT = v.strictObject({ begin: COUNT, end: COUNT });

const DESCRIPTION = v.strictObject({
  format: v.literal(FORMAT),
  name: v.string(),
  label: v.string(),
  sourceBytes: COUNT,
  making: v.strictObject({
    source: HASH,
    format: v.picklist(["text", "jsonl", "parquet"]),
    column: v.nullable(v.string()),
    tokenizer: HASH,
    vocabulary: COUNT,
  }),
  documents: COUNT,
  tokens: COUNT,
  bytesPerToken: v.picklist([1, 2, 4]),
  /** SHA-256 of the tokens' bytes, which peers check as well. */
  hash: HASH,
  /** Whether a tokenizer.json belongs to it; without one a token is a character. */
  tokenizer: v.boolean(),
  vocab: v.pipe(v.array(v.string()), v.minLength(1), v.maxLength(VOCAB_MAX)),
  /** Tokens to train and to validate with: from the first to before the second. */
  split: v.strictObject({ train: SPLIT, val: SPLIT }),
});

export type CorpusDescription = v.InferOutput<typeof DESCRIPTION>;

export interface OpenedCorpus {
  description: CorpusDescription;
  tokens: Tokens;
  tokenizerJson: string | null;
}

export function corpusId({ source, format, column, tokenizer, vocabulary }: Making): string {
  return sha256(JSON.stringify([FORMAT, source, format, column, tokenizer, vocabulary])).slice(0, 16);
}

export function sha256(data: string | Uint8Array): string {
  return createHash("sha256").update(data).digest("hex");
}

/** What a tokenizer.json, a vocabulary of a checkpoint or the text's own characters say in {@link Making}. */
export function tokenizerHash(json: string | null, vocab: readonly string[] | null): string {
  return sha256(json ?? JSON.stringify(vocab));
}

/** Writes a text's folder and returns its id. One that is there already stays. @throws {ShoalError} storage-full */
export async function writePrepared(
  folder: string,
  { blocks, ...prepared }: Prepared,
  described: Described & { json: string | null },
): Promise<string> {
  const id = corpusId(described.making);
  if (await isPrepared(folder, id)) return id;
  await using writer = await PreparedWriter.begin(folder, described.making);
  for (const block of blocks) await writer.take(block);
  return await writer.finish(prepared, described);
}

/** Writes a text's folder while its tokens come; what is not finished is removed in the end. */
export class PreparedWriter implements AsyncDisposable {
  readonly #folder: string;
  readonly #id: string;
  readonly #temporary: string;
  readonly #file: Deno.FsFile;
  readonly #hash = createHash("sha256");
  /** Folders that were not there before, the innermost first. */
  readonly #made: string[];
  #open = true;

  private constructor(
    at: { folder: string; id: string; temporary: string; file: Deno.FsFile; made: string[] },
  ) {
    this.#folder = at.folder;
    this.#id = at.id;
    this.#temporary = at.temporary;
    this.#file = at.file;
    this.#made = at.made;
  }

  /** @throws {ShoalError} storage-full */
  static async begin(folder: string, making: Making): Promise<PreparedWriter> {
    const id = corpusId(making), temporary = join(folder, `.writing-${id}-${crypto.randomUUID()}`);
    try {
      const made: string[] = [];
      for (const path of [folder, dirname(folder)]) if (!await exists(path)) made.push(path);
      await Deno.mkdir(temporary, { recursive: true });
      const file = await Deno.open(join(temporary, TOKENS_NAME), { write: true, createNew: true });
      return new PreparedWriter({ folder, id, temporary, file, made });
    } catch (error) {
      throw unwritten(error);
    }
  }

  /** Tokens that follow those before. @throws {ShoalError} storage-full */
  async take(block: Corpus): Promise<void> {
    const bytes = new Uint8Array(block.buffer, block.byteOffset, block.byteLength);
    this.#hash.update(bytes);
    try {
      for (let at = 0; at < bytes.length;) at += await this.#file.write(bytes.subarray(at));
    } catch (error) {
      throw unwritten(error);
    }
  }

  /** Returns the text's id, under which its folder is complete. @throws {ShoalError} storage-full */
  async finish(
    { vocab, tokens, documents }: Omit<Prepared, "blocks">,
    { json, ...described }: Described & { json: string | null },
  ): Promise<string> {
    const split = { train: splitRange(tokens, "train"), val: splitRange(tokens, "val") };
    const description: CorpusDescription = {
      ...{ format: FORMAT, ...described, documents, tokens, bytesPerToken: bytesPerToken(vocab.length) },
      ...{ hash: this.#hash.digest("hex"), tokenizer: json !== null, vocab, split },
    };
    try {
      await this.#file.sync();
      this.#close();
      if (json !== null) await Deno.writeTextFile(join(this.#temporary, TOKENIZER_NAME), json);
      await Deno.writeTextFile(join(this.#temporary, DESCRIPTION_NAME), JSON.stringify(description));
      await Deno.rename(this.#temporary, join(this.#folder, this.#id)).catch(async (error) => {
        // Another process may have been quicker with the same text.
        if (!await isPrepared(this.#folder, this.#id)) throw error;
      });
      return this.#id;
    } catch (error) {
      throw unwritten(error);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#close();
    await Deno.remove(this.#temporary, { recursive: true }).catch(() => {});
    // Only what has stayed empty goes.
    for (const path of this.#made) await Deno.remove(path).catch(() => {});
  }

  #close(): void {
    if (this.#open) this.#file.close();
    this.#open = false;
  }
}

function unwritten(error: unknown): ShoalError {
  if (error instanceof ShoalError) return error;
  return new ShoalError("storage-full", `the prepared text cannot be written: ${messageOf(error)}`, {
    cause: error,
  });
}

export async function isPrepared(folder: string, id: string): Promise<boolean> {
  return await exists(join(folder, id, DESCRIPTION_NAME));
}

/** Only what the list shows; the tokens are not read. @throws {ShoalError} bad-corpus */
export async function describeCorpus(folder: string, id: string): Promise<CorpusDescription> {
  const path = join(folder, id);
  const text = new TextDecoder().decode(await readBounded(path, DESCRIPTION_NAME, DESCRIPTION_BYTES_MAX));
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch {
    throw damaged(path, `${DESCRIPTION_NAME} is not JSON`);
  }
  const parsed = v.safeParse(DESCRIPTION, json);
  if (parsed.success) return parsed.output;
  const { issues: [issue] } = parsed;
  throw damaged(path, `${v.getDotPath(issue) ?? "(root)"}: ${issue.message}`);
}

export interface OpenOptions {
  /** More bytes of tokens stay on the disk. Default {@link WHOLE_BYTES_MAX}. */
  heldBytesMax?: number;
  /** Default {@link pageBytesFor} so many. */
  pageBytes?: number;
}

/** @throws {ShoalError} bad-corpus if it is not there, or differs from what its description says. */
export async function openPrepared(
  folder: string,
  id: string,
  options: OpenOptions = {},
): Promise<OpenedCorpus> {
  const description = await describeCorpus(folder, id);
  const path = join(folder, id);
  const { bytesPerToken: width, tokens: count, hash } = description;
  if (bytesPerToken(description.vocab.length) !== width) {
    throw damaged(path, "its numbers contradict each other");
  }
  const tokens = await tokensOf(path, { bytesPerToken: width, tokens: count, hash }, options);
  const tokenizerJson = description.tokenizer
    ? new TextDecoder().decode(await readBounded(path, TOKENIZER_NAME, TOKENIZER_BYTES_MAX))
    : null;
  if (tokenizerJson !== null && tokenizerHash(tokenizerJson, null) !== description.making.tokenizer) {
    throw damaged(path, "its tokenizer was altered");
  }
  return { description, tokens, tokenizerJson };
}

async function tokensOf(
  folder: string,
  { bytesPerToken: width, tokens, hash }: Pick<CorpusDescription, "bytesPerToken" | "tokens" | "hash">,
  { heldBytesMax = WHOLE_BYTES_MAX, pageBytes = pageBytesFor(tokens * width) }: OpenOptions,
): Promise<Tokens> {
  const altered = damaged(folder, "its tokens were altered"), most = tokens * width;
  if (most > TOKEN_BYTES_MAX) throw damaged(folder, `it says that its tokens have ${most} bytes`);
  if (most <= heldBytesMax) {
    const bytes = await readBounded(folder, TOKENS_NAME, most);
    if (bytes.length !== most || sha256(bytes) !== hash) throw altered;
    return corpusView(bytes.buffer, width);
  }
  const path = join(folder, TOKENS_NAME), found = await hashPages(path, pageBytes);
  if (found.bytes !== most || found.hash !== hash) throw altered;
  return new TokenFile(path, { tokens, bytesPerToken: width, pages: found.pages });
}

async function readBounded(folder: string, name: string, most: number): Promise<Uint8Array<ArrayBuffer>> {
  const path = join(folder, name);
  try {
    const { size } = await Deno.stat(path);
    if (size > most) throw new Error(`it has ${size} bytes, more than ${most}`);
    return await Deno.readFile(path);
  } catch (error) {
    throw damaged(folder, `${name}: ${messageOf(error)}`);
  }
}

function damaged(path: string, what: string): ShoalError {
  return badCorpus(`the prepared text in ${path} cannot be used: ${what}; prepare it anew`);
}
