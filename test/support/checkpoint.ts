// Small checkpoints for tests of what reads them: written by the real writer, in several shards, with weights drawn from a seed
// that are large enough for texts to vary. No training behind them.
import { stageFileName, writeCheckpoint } from "../../coordinator/store/checkpoints.ts";
import { readConfig } from "../../peer/model/config.ts";
import { findTensor, specOf, splitLayers, stageLayout } from "../../peer/model/layout.ts";
import { encodeState, initialState, type StageState } from "../../peer/model/state_file.ts";
import { randomArray } from "../../shaders/reference/check.ts";

export const TINY_VOCAB = [..."\n abcdefg"];

export interface TinyCheckpoint {
  step?: number;
  vocab?: string[];
  /** Keys over those of a model with 2 layers, 16 channels and a window of 8. */
  config?: Record<string, unknown>;
}

/** Writes <runDir>/checkpoints/step-<step>; returns its path. */
export function writeTiny(runDir: string, options: TinyCheckpoint = {}): Promise<string> {
  const { step = 7, vocab = TINY_VOCAB } = options;
  const config = readConfig({
    ...{ n_layer: 2, n_head: 2, n_kv_head: 1, n_embd: 16, n_inner: 24, block_size: 8, batch_size: 2 },
    ...options.config,
  });
  const spec = specOf(config, vocab.length);
  const stages = splitLayers(spec, Array<number>(config.n_layer).fill(1));
  const files = stages.map((stage) => {
    const state = initialState(spec, stage, config.seed);
    for (const { name } of stageLayout(spec, stage).tensors) enlarge(state, name);
    const bytes = encodeState({ ...state, step });
    return { name: stageFileName(stage.index, stages.length), bytes };
  });
  const manifest = { config, spec, vocab, stages, valLoss: null, dataCursor: step, seed: config.seed };
  return writeCheckpoint(runDir, { step, files, manifest });
}

/** Fresh weights are so small that every token would be equally likely. */
function enlarge({ params, layout }: StageState, name: string): void {
  const { offset, size, shape } = findTensor(layout, name)!;
  if (shape.length < 2) return;
  const salt = [...name].reduce((sum, char) => sum * 31 + char.codePointAt(0)! & 0xffff, 7);
  params.set(randomArray(salt, size, 0.7), offset);
}

/** A folder of the test's own, removed in the end. */
export async function inTempFolder(body: (folder: string) => Promise<void>): Promise<void> {
  const folder = await Deno.makeTempDir({ prefix: "shoal-test-" });
  try {
    await body(folder);
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
}
