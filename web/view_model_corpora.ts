// The organizer's texts as data: what the coordinator says of them and what is being filled in -> what is shown. Pure; draws and fetches
// nothing. Every colour it asks for comes with a word that says the same.
import type { CorporaAnswer, CorpusFormat, CorpusInfo, TokenizerInfo } from "../peer/wire/corpora.ts";
import { bytes, count, percent, plural } from "./format.ts";
import type { Tone } from "./view_model_notice.ts";
import type { Fact } from "./view_model_tab.ts";

/** A file that was chosen, and how it is to be cut. */
export interface CorpusDraft {
  name: string;
  size: number;
  format: CorpusFormat;
  column: string;
  /** char, gpt2, `own` for a tokenizer.json that is chosen beside it, or the id of one that was brought. */
  tokenizer: string;
  /** Name of the tokenizer.json that is chosen; empty: none yet. */
  own: string;
}

export interface CorporaModel {
  /** null until the coordinator has answered. */
  answer: CorporaAnswer | null;
  draft: CorpusDraft | null;
  /** The chosen file is on its way. */
  sending: boolean;
  /** Why the last wish could not be fulfilled; empty: it could. */
  refusal: string;
}

export interface CorpusRow {
  id: string;
  name: string;
  tone: Tone;
  word: string;
  /** Of what is under way; null: nothing is. */
  progress: { value: number; max: number; text: string } | null;
  facts: Fact[];
  error: string | null;
  /** What the button that takes it away is called; null: it may not be taken away now. */
  remove: string | null;
  /** Why not, or what would be lost. */
  removeText: string;
}

export interface DraftView extends CorpusDraft {
  sizeText: string;
  tokenizers: { value: string; label: string }[];
  columnLabel: string | null;
  /** What is missing before it can be sent; null: nothing is. */
  missing: string | null;
}

export interface CorporaView {
  rows: CorpusRow[];
  empty: string | null;
  draft: DraftView | null;
  sending: boolean;
  refusal: string;
}

export const FORMATS: readonly { value: CorpusFormat; label: string }[] = [
  { value: "text", label: "Plain text (UTF-8)" },
  { value: "jsonl", label: "JSON Lines, one object a line" },
  { value: "parquet", label: "Parquet, one column of texts" },
];

const ENDINGS: readonly [RegExp, CorpusFormat][] = [[/\.(jsonl|ndjson)$/i, "jsonl"], [
  /\.parquet$/i,
  "parquet",
]];

/** What a chosen file is likely to be. */
export function draftOf(file: { name: string; size: number }): CorpusDraft {
  const format = ENDINGS.find(([ending]) => ending.test(file.name))?.[1] ?? "text";
  return { name: file.name, size: file.size, format, column: "text", tokenizer: "gpt2", own: "" };
}

export function corporaView({ answer, draft, sending, refusal }: CorporaModel): CorporaView {
  const rows = (answer?.corpora ?? []).map(rowOf);
  return {
    ...{ rows, sending, refusal },
    empty: answer !== null && rows.length === 0
      ? "No text has been brought yet; Moby Dick is always there."
      : null,
    draft: draft === null ? null : draftView(draft, answer),
  };
}

/** A sentence for those who hear the page about texts that have become ready or failed; empty: none has. */
export function newsOf(before: readonly CorpusInfo[], now: readonly CorpusInfo[]): string {
  const known = new Set(before.map(({ id, state }) => `${id} ${state}`));
  const fresh = now.filter(({ id, state }) => !known.has(`${id} ${state}`));
  const ready = fresh.filter(({ state }) => state === "ready").map(({ name }) => `${name} is ready.`);
  const failed = fresh.filter(({ state }) => state === "failed");
  return [...ready, ...failed.map(({ name }) => `${name} cannot be used.`)].join(" ");
}

function draftView(draft: CorpusDraft, answer: CorporaAnswer | null): DraftView {
  return {
    ...draft,
    sizeText: bytes(draft.size),
    tokenizers: tokenizerChoices(answer?.tokenizers ?? []),
    columnLabel: draft.format === "jsonl"
      ? "Field with the text"
      : draft.format === "parquet"
      ? "Column with the text"
      : null,
    missing: missingOf(draft, answer),
  };
}

function tokenizerChoices(brought: readonly TokenizerInfo[]): { value: string; label: string }[] {
  return [
    { value: "gpt2", label: "GPT-2's pieces of words (50,257)" },
    { value: "char", label: "Characters" },
    ...brought.map(({ id, name }) => ({ value: id, label: `${name}, brought before` })),
    { value: "own", label: "A tokenizer.json of your own" },
  ];
}

function missingOf(draft: CorpusDraft, answer: CorporaAnswer | null): string | null {
  const most = answer?.limits.bytes ?? Infinity;
  if (draft.size === 0) return "The file is empty.";
  if (draft.size > most) return `The file has ${bytes(draft.size)}; at most ${bytes(most)} are taken.`;
  if (draft.format !== "text" && draft.column.trim() === "") {
    return "Name the field or column that holds the text.";
  }
  return draft.tokenizer === "own" && draft.own === "" ? "Choose the tokenizer.json." : null;
}

const STATES: Readonly<Record<CorpusInfo["state"], { tone: Tone; word: string }>> = {
  receiving: { tone: "info", word: "arriving" },
  waiting: { tone: "info", word: "waiting for the one before" },
  preparing: { tone: "info", word: "being cut into tokens" },
  ready: { tone: "good", word: "ready" },
  failed: { tone: "bad", word: "cannot be used" },
};

function rowOf(info: CorpusInfo): CorpusRow {
  const { id, name, state, error, usedBy } = info;
  const used = usedBy.length > 0;
  return {
    ...{ id, name, ...STATES[state], progress: progressOf(info), facts: factsOf(info) },
    error: error === null ? null : error.message,
    remove: used ? null : state === "ready" ? "Delete" : state === "failed" ? "Forget" : "Cancel",
    removeText: used ? `Used by ${usedBy.join(", ")}` : "Its tokens are deleted from the coordinator's disk.",
  };
}

function progressOf({ state, bytes: arrived, bytesTotal, bytesDone }: CorpusInfo): CorpusRow["progress"] {
  if (state === "ready" || state === "failed") return null;
  const max = state === "preparing" ? arrived : bytesTotal ?? arrived;
  const value = state === "preparing" ? bytesDone : arrived;
  const what = state === "preparing" ? "cut" : "arrived";
  return {
    value,
    max: Math.max(1, max),
    text: `${percent(value, max)} ${what}, ${bytes(value)} of ${bytes(max)}`,
  };
}

function factsOf(
  { state, format, column, tokenizer, tokens, documents, vocabulary, bytes: size }: CorpusInfo,
): Fact[] {
  const cut = tokenizer === "char"
    ? "characters"
    : tokenizer === "gpt2"
    ? "GPT-2's pieces of words"
    : tokenizer;
  const facts: Fact[] = [{ label: "Size", value: bytes(size) }, { label: "Tokenizer", value: cut }];
  if (column !== null) facts.push({ label: format === "jsonl" ? "Field" : "Column", value: column });
  if (tokens > 0) facts.push({ label: "Tokens", value: count(tokens) });
  if (state === "ready") facts.push({ label: "Vocabulary", value: count(vocabulary) });
  if (documents > 1) facts.push({ label: "Documents", value: plural(documents, "document") });
  return facts;
}
