// `shoal corpus`: brings a text to a runs folder or to a running coordinator, lists the texts there, deletes one. Reads flags and writes
// lines; what a text becomes is decided in coordinator/corpora.
import { resolve } from "node:path";
import { ShoalError } from "../../peer/wire/errors.ts";
import { type CorpusDesk, type CorpusWish, FolderDesk } from "../corpora/desk.ts";
import type { PrepareProgress } from "../corpora/prepare.ts";
import { formatOf } from "../corpora/sources.ts";
import { chooseTokenizer } from "../corpora/tokenizer.ts";
import { CORPUS_PREFIX, type CorpusInfo } from "../corpora/types.ts";
import { HubDesk } from "./corpus_hub.ts";
import { integerFlag, type VerbOptions } from "./options.ts";
import { compact } from "./report.ts";
import { unknownMessage } from "./usage.mjs";

const ORDERS = ["add", "list", "remove"] as const;
/** As the upload page has it. */
const MULTIPLE_MAX = 1024;
/** Of a column that a text's name may fill. */
const NAME_CHARS_MAX = 40;

export interface CorpusOutput {
  /** A line for programs. */
  data(text: string): void;
  /** A line for people. */
  note(text: string): void;
  progress(at: PrepareProgress): void;
}

/** @throws {ShoalError} usage, bad-corpus with the line or row, storage-full, offline */
export async function runCorpus(options: VerbOptions, output: CorpusOutput): Promise<void> {
  const [order, ...rest] = options.positionals;
  const known = ORDERS.find((it) => it === order);
  if (known === undefined) {
    const what = order === undefined ? "an order is missing" : unknownMessage("order", order, [...ORDERS]);
    throw new ShoalError("usage", `${what}; use ${ORDERS.join(", ")}`);
  }
  const desk = deskOf(options), json = options.flags.json !== undefined;
  if (known === "list") {
    atMost(rest, 0);
    return list(await desk.list(), json, output);
  }
  const [named] = atMost(rest, 1);
  if (named === undefined) {
    throw new ShoalError("usage", `shoal corpus ${known} wants ${known === "add" ? "a file" : "an id"}`);
  }
  if (known === "remove") {
    const id = named.startsWith(CORPUS_PREFIX) ? named.slice(CORPUS_PREFIX.length) : named;
    await desk.remove(id);
    return output.data(json ? JSON.stringify({ removed: id }) : `removed ${CORPUS_PREFIX}${id}`);
  }
  const info = await desk.add(await wishOf(named, options), output.progress);
  if (json) return output.data(JSON.stringify(info));
  output.note(sentence(info));
  output.data(CORPUS_PREFIX + info.id);
}

function deskOf({ flags }: VerbOptions): CorpusDesk {
  if (flags.hub === undefined) return new FolderDesk(resolve(flags.runs_dir ?? "runs"));
  if (flags.runs_dir === undefined) return new HubDesk(flags.hub);
  throw new ShoalError("usage", "--hub and --runs_dir name two places; use one of them");
}

async function wishOf(path: string, options: VerbOptions): Promise<CorpusWish> {
  const { flags: { tokenizer = "char", column = "text", name = path } } = options;
  return {
    source: { path, name, format: formatOf(path), column },
    choice: await chooseTokenizer(tokenizer),
    multiple: integerFlag(options, "vocab_multiple", { absent: 1, min: 1, max: MULTIPLE_MAX }),
  };
}

function atMost(given: readonly string[], most: number): readonly string[] {
  if (given.length <= most) return given;
  throw new ShoalError("usage", `"${given[most]}" is not expected here; flags start with --`);
}

function sentence({ tokens, vocabulary, documents, name, id }: CorpusInfo): string {
  const parts = documents > 1 ? ` of ${compact(documents)} documents` : "";
  return `${name}: ${
    compact(tokens)
  } tokens${parts}, ${vocabulary} kinds; train with --dataset=${CORPUS_PREFIX}${id}`;
}

function list(infos: readonly CorpusInfo[], json: boolean, { data, note }: CorpusOutput): void {
  if (json) return infos.forEach((info) => data(JSON.stringify(info)));
  if (infos.length === 0) return note("there are no texts yet; shoal corpus add FILE brings one");
  const rows = infos.map((it) => [
    it.id,
    it.name.slice(-NAME_CHARS_MAX),
    it.tokenizer,
    it.state === "ready" ? `${compact(it.tokens)} tokens` : it.state,
    it.error?.message ?? (it.usedBy.length > 0 ? `used by ${it.usedBy.join(", ")}` : ""),
  ]);
  const widths = [0, 1, 2, 3].map((at) => Math.max(...rows.map((row) => row[at]!.length)));
  for (const row of rows) data(row.map((cell, at) => cell.padEnd(widths[at] ?? 0)).join("  ").trimEnd());
}
