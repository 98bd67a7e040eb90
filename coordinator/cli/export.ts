// `shoal export`: a checkpoint as files that other programs open. Reads one tensor at a time, writes whole or not at all.
// No network. The path of what was written goes to stdout, progress and notes to stderr.
import { basename, join } from "node:path";
import { factsOf, withMetrics } from "../export/facts.ts";
import { totalBytes } from "../export/pieces.ts";
import { exportedName, type ExportPlan, fileStem, planExport, readFormat } from "../export/plan.ts";
import { openWeights } from "../export/merged.ts";
import { writeExport } from "../export/write.ts";
import { recoveryDir } from "../store/checkpoints.ts";
import { latestCheckpoint } from "../store/weights.ts";
import { readTokenizer } from "../store/checkpoints.ts";
import { findCheckpoint, isCheckpoint, runFolderOf } from "./checkpoint_path.ts";
import { integerFlag, positional, requiredFlag, type VerbOptions } from "./options.ts";

/** Where an export goes that was given no place; permissions.mjs allows it. */
const EXPORTS_DIR = join("runs", "exports");
const MEGABYTE = 1_000_000;
/** Longest name of a model in the files' metadata. */
const NAME_CHARS_MAX = 100;

export interface ExportOutput {
  /** A line for people, on stderr. */
  note(text: string): void;
  /** Shows how far it is, in place of what it showed before; null where stderr is no terminal. */
  progress: ((text: string) => void) | null;
}

export interface Exported {
  checkpoint: string;
  step: number;
  format: string;
  dtype: string;
  /** Absolute path of the file or folder. */
  out: string;
  bytes: number;
  files: { name: string; bytes: number }[];
}

/** @throws {ShoalError} usage, bad-checkpoint, storage-full. */
export async function exportModel(options: VerbOptions, output: ExportOutput): Promise<Exported> {
  positional(options, 0);
  const { flags } = options;
  const wanted = requiredFlag(options, "checkpoint");
  const { format, dtype } = readFormat(requiredFlag(options, "format"), flags.dtype ?? "f32");
  const shardBytes = MEGABYTE * integerFlag(options, "shard_mb", { absent: 5000, min: 1, max: 1_000_000 });
  const path = await locate(wanted);
  using source = await openWeights(path, format);
  const { manifest } = source;
  const facts = await withMetrics(factsOf(manifest, flags.license || null), runFolderOf(path));
  const name = (flags.name || facts.dataset).slice(0, NAME_CHARS_MAX);
  const tokenizer = await readTokenizer(path, manifest);
  const plan = planExport(source, {
    ...{ format, dtype, name, facts, shardBytes, vocab: manifest.vocab, tokenizer },
    baseModel: flags.base_model || null,
  });
  for (const note of notesOn(plan, tokenizer === null ? manifest.vocab : [])) output.note(note);
  const out = flags.out || await defaultOut(plan, `${fileStem(name)}-step-${manifest.step}`);
  const written = await writeExport(plan, out, {
    force: flags.force !== undefined,
    onProgress: (bytes) =>
      output.progress?.(`${Math.floor(100 * bytes / plan.bytes)} % of ${shown(plan.bytes)}`),
  });
  output.progress?.("");
  const files = plan.files.map((file) => ({
    name: plan.kind === "file" ? basename(written) : file.name,
    bytes: totalBytes(file.pieces),
  }));
  return { checkpoint: path, step: manifest.step, format, dtype, out: written, bytes: plan.bytes, files };
}

/** As findCheckpoint, but without reading the files: openWeights verifies them, a piece at a time. */
async function locate(path: string): Promise<string> {
  if (await isCheckpoint(path)) return path;
  const found = [await latestCheckpoint(path), await latestCheckpoint(recoveryDir(path))];
  const newest = found.filter((it) => it !== null)
    .toSorted((a, b) => basename(b).localeCompare(basename(a)))[0];
  return newest ?? await findCheckpoint(path);
}

async function defaultOut(plan: ExportPlan, stem: string): Promise<string> {
  await Deno.mkdir(EXPORTS_DIR, { recursive: true });
  return join(EXPORTS_DIR, exportedName(stem, plan));
}

/** What a person should know before trying the result. */
function notesOn({ format }: ExportPlan, characters: readonly string[]): string[] {
  const wide = characters.some((char) => char.codePointAt(0)! > 0x7f);
  if (format !== "gguf" || !wide) return [];
  return [
    "note: prompts for llama.cpp may only use characters of the training text; its tokenizer does not come back from " +
    "some others, such as a curly quotation mark",
  ];
}

function shown(bytes: number): string {
  return bytes < MEGABYTE ? `${Math.ceil(bytes / 1000)} kB` : `${(bytes / MEGABYTE).toFixed(1)} MB`;
}
