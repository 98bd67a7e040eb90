// Checkpoints to export, and exports on disk, for tests; folders are removed when their body is done.
import { factsOf } from "../../coordinator/export/facts.ts";
import type { Piece } from "../../coordinator/export/pieces.ts";
import { readPieces, totalBytes } from "../../coordinator/export/pieces.ts";
import { type ExportPlan, type ExportRequest, planExport } from "../../coordinator/export/plan.ts";
import { openWeights } from "../../coordinator/export/merged.ts";
import type { CheckpointSource } from "../../coordinator/export/source.ts";
import { writeExport } from "../../coordinator/export/write.ts";
import { readTokenizer, stageFileName, writeCheckpoint } from "../../coordinator/store/checkpoints.ts";
import { readConfig } from "../../peer/model/config.ts";
import { specOf, splitLayers, stageLayout } from "../../peer/model/layout.ts";
import { encodeState, initialState } from "../../peer/model/state_file.ts";
import type { RunConfig } from "../../peer/wire/run.ts";

/** Characters that formats escape, or write in one to four bytes. */
export const AWKWARD_VOCAB = [..."\0\t\n\r\x7f \"'\\<x09|azé—▁漢🐋"];

export async function inTempFolder<T>(body: (folder: string) => Promise<T>): Promise<T> {
  const folder = await Deno.makeTempDir({ prefix: "shoal-export-" });
  try {
    return await body(folder);
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
}

export const TINY_SHAPE = { n_layer: 2, n_head: 2, n_kv_head: 1, n_embd: 12, n_inner: 10, block_size: 8 };

/** An untrained model's checkpoint, cut in two; the norms are not all ones, as training would leave them. */
export async function writeTiny(
  runDir: string,
  { vocab = AWKWARD_VOCAB, step = 7, tokenizerJson, ...overrides }: Partial<RunConfig> & {
    vocab?: string[];
    step?: number;
    /** Text of a tokenizer.json; absent: characters. */
    tokenizerJson?: string;
  } = {},
): Promise<string> {
  const config = readConfig({ ...TINY_SHAPE, ...overrides });
  const spec = specOf(config, vocab.length);
  const stages = splitLayers(spec, [1, 1]);
  const files = stages.map((stage) => {
    const state = { ...initialState(spec, stage, config.seed), step };
    for (const { name, offset, size } of stageLayout(spec, stage).tensors) {
      if (!name.endsWith("norm.weight")) continue;
      for (let i = 0; i < size; i++) state.params[offset + i] = 1 + i / 16;
    }
    return { name: stageFileName(stage.index, stages.length), bytes: encodeState(state) };
  });
  const own = tokenizerJson === undefined ? {} : { tokenizer: "tokenizer.json" };
  if (tokenizerJson !== undefined) {
    files.push({ name: "tokenizer.json", bytes: new TextEncoder().encode(tokenizerJson) });
  }
  const manifest = {
    config,
    spec,
    vocab,
    stages,
    valLoss: 2.25,
    dataCursor: step,
    seed: config.seed,
    ...own,
  };
  return await writeCheckpoint(runDir, { step, files, manifest });
}

export type Wish = Pick<ExportRequest, "format" | "dtype"> & Partial<ExportRequest>;

export function planOf(source: CheckpointSource, wish: Wish): ExportPlan {
  const facts = factsOf(source.manifest, null);
  return planExport(source, { name: "A model", vocab: source.manifest.vocab, facts, ...wish });
}

/** Exports a checkpoint to a path inside `folder`, which it returns. */
export async function exportTo(folder: string, checkpoint: string, wish: Wish): Promise<string> {
  using source = await openWeights(checkpoint, wish.format);
  const tokenizer = await readTokenizer(checkpoint, source.manifest);
  return await writeExport(planOf(source, { tokenizer, ...wish }), `${folder}/exported`);
}

export async function bytesOf(pieces: readonly Piece[]): Promise<Uint8Array> {
  const out = new Uint8Array(totalBytes(pieces));
  let at = 0;
  for await (const piece of readPieces(pieces)) {
    out.set(piece, at);
    at += piece.length;
  }
  return out;
}
