// tokenizer.json of Hugging Face's tokenizers -> the vocabulary of a checkpoint. Pure. A plain character vocabulary, which is what
// our own export writes, becomes a character tokenizer again; any other stays what it is, and the checkpoint keeps its file.
import { refuse, type Result } from "../../peer/wire/errors.ts";
import { VOCAB_MAX } from "../../peer/model/tokenizer.ts";

export interface ImportedTokenizer {
  /** Names of the tokens by number: characters, or the names that the file gives them. */
  vocab: string[];
  /** The tokenizer is a character tokenizer over `vocab`. */
  characters: boolean;
}

/** Characters of private use stand for rows of the embedding that the tokenizer never gives out. */
const PRIVATE_USE = 0xf_0000;

/** @param rows Rows of the model's embedding: each needs a name, and no token may lie beyond. Refuses with bad-model. */
export function readTokenizerJson(text: string, rows: number): Result<ImportedTokenizer> {
  if (rows > VOCAB_MAX) {
    return refuse(
      "bad-model",
      `vocab_size is ${rows}; at most ${VOCAB_MAX} are possible`,
    );
  }
  const json = parse(text);
  const model = isRecord(json) ? json.model : undefined;
  const entries = isRecord(model) ? vocabEntries(model.vocab) : null;
  if (!isRecord(json) || !isRecord(model) || entries === null) {
    return refuse("bad-model", "tokenizer.json has no model with a vocabulary");
  }
  const names = new Map<number, string>();
  const problem = collect(names, entries, rows) ??
    collect(names, addedTokens(json), rows);
  if (problem !== null) return refuse("bad-model", `tokenizer.json: ${problem}`);
  const characters = isPlain(json, model) && [...names.values()].every((name) => [...name].length === 1);
  const vocab = Array.from({ length: rows }, (_, id) => names.get(id) ?? unusedName(id, characters));
  if (new Set(vocab).size !== rows) return refuse("bad-model", "tokenizer.json gives two tokens one name");
  return { ok: true, value: { vocab, characters } };
}

/** BPE and WordPiece number their names; Unigram has a list of [name, score]. */
function vocabEntries(vocab: unknown): [string, unknown][] | null {
  if (isRecord(vocab)) return Object.entries(vocab);
  if (!Array.isArray(vocab)) return null;
  return vocab.map((entry, id) => Array.isArray(entry) ? [String(entry[0]), id] : ["", null]);
}

/** Adds names by number, or says which does not fit. */
function collect(names: Map<number, string>, entries: [string, unknown][], rows: number): string | null {
  for (const [name, id] of entries) {
    const shown = JSON.stringify(name).slice(0, 60);
    if (typeof id !== "number" || !Number.isSafeInteger(id) || id < 0) return `token ${shown} has no number`;
    if (id >= rows) return `token ${shown} is number ${id}, but the model has ${rows}`;
    const other = names.get(id);
    if (other !== undefined && other !== name) {
      return `number ${id} is ${shown} and ${JSON.stringify(other).slice(0, 60)}`;
    }
    names.set(id, name);
  }
  return names.size > 0 ? null : "the vocabulary is empty";
}

function addedTokens(json: Record<string, unknown>): [string, unknown][] {
  const list: unknown[] = Array.isArray(json.added_tokens) ? json.added_tokens : [];
  return list.map((token) => isRecord(token) ? [String(token.content), token.id] : ["", null]);
}

/** A byte-pair model without merges and without anything before or after it gives one token per code point. */
function isPlain(json: Record<string, unknown>, model: Record<string, unknown>): boolean {
  const bare = ["normalizer", "pre_tokenizer", "post_processor"].every((name) =>
    (json[name] ?? null) === null
  );
  const merges = Array.isArray(model.merges) && model.merges.length === 0;
  return bare && merges && model.type === "BPE" && model.byte_fallback !== true &&
    addedTokens(json).length === 0;
}

function unusedName(id: number, characters: boolean): string {
  return characters ? String.fromCodePoint(PRIVATE_USE + id) : `<unused ${id}>`;
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
