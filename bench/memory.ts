// Predicted against allocated memory at the size of GPT-2 small: stages of it are built for real on this machine's adapter and
// the bytes of all their GPU buffers are added up; the whole model is predicted. Not a test, and nothing is trained.
// `deno run bench/memory.ts --help` lists the flags.
import type { StageBuild } from "../peer/engine/engine.ts";
import { createWgslEngine } from "../peer/engine/wgsl.ts";
import type { GpuDevice } from "../peer/gpu/device.ts";
import { openDenoDevice } from "../peer/gpu/provider_deno.ts";
import { readConfig } from "../peer/model/config.ts";
import { splitLayers, wholeModel } from "../peer/model/layout.ts";
import { stateBytes, wgslMemory } from "../peer/model/stage_memory.ts";
import type { ModelSpec, RecomputeId, StageSpec } from "../peer/wire/run.ts";
import { countingDevice } from "../test/kernels/counting.ts";
import { aligned, flagValues, runMain, wholeFlag } from "./support.ts";

/** Tied, as GPT-2 is: the whole model holds its 50,257 x 768 embedding once. */
const SHAPE = {
  n_layer: 12,
  n_head: 12,
  n_kv_head: 12,
  n_embd: 768,
  n_inner: 2048,
  tie_word_embeddings: true,
};
const BLOCK = { block_size: 256, batch_size: 8 };
const VOCABULARY = 50_257;
/** The whole model on one peer with one micro-batch under way: with nothing computed again, and with whole blocks. */
const WHOLE_MODEL_BYTES_MAX: Partial<Record<RecomputeId, number>> = { none: 4e9, block: 2.5e9 };
const LEVELS: readonly RecomputeId[] = ["none", "attention", "block"];

const HELP = `usage: deno run bench/memory.ts [flags]
Builds a third of GPT-2 small (4 layers and the embedding, batch 8 x 256) and compares what it allocates with the
prediction, and predicts the whole model with and without recomputation.

  --slots N    micro-batches under way (1)
  --predict    only predict, allocate nothing
  --json       print one JSON object, with a summary, as the last line
  --help       show this text`;

const OPTIONS = {
  "slots": { type: "string", default: "1" },
  "predict": { type: "boolean", default: false },
  "json": { type: "boolean", default: false },
  "help": { type: "boolean", default: false },
} as const;

export interface MemoryRow {
  stage: string;
  recompute: RecomputeId;
  params: number;
  activations: number;
  scratch: number;
  /** All three. */
  predicted: number;
  /** Beside the engine: exact state, sums, log. */
  host: number;
  /** Bytes of the buffers that were made; null if none were. */
  allocated: number | null;
}

function specOf(): ModelSpec {
  const { batch_size: _, ...block } = BLOCK;
  return { vocab_size: VOCABULARY, ...SHAPE, ...block, rope_theta: 10_000, norm_eps: 1e-5 };
}

export function buildOf(stage: StageSpec, recompute: RecomputeId, slots: number): StageBuild {
  const codecs = { codecForward: "i8b64", codecBackward: "i8b64" } as const;
  return { spec: specOf(), stage, batchSize: BLOCK.batch_size, slots, recompute, ...codecs };
}

export function predictedRow(name: string, build: StageBuild): MemoryRow {
  const { params, activations, scratch } = wgslMemory(build);
  const host = stateBytes(build, readConfig({ ...SHAPE, ...BLOCK }));
  const predicted = params + activations + scratch;
  return {
    stage: name,
    recompute: build.recompute ?? "none",
    params,
    activations,
    scratch,
    predicted,
    host,
    allocated: null,
  };
}

async function allocatedRow(gpu: GpuDevice, name: string, build: StageBuild): Promise<MemoryRow> {
  const { counted, counts } = countingDevice(gpu);
  const engine = await createWgslEngine(counted, build);
  engine.destroy();
  await gpu.device.queue.onSubmittedWorkDone();
  return { ...predictedRow(name, build), allocated: counts.bufferBytes };
}

export interface Summary {
  /** Every stage that was built took exactly what was predicted; null if none was built. */
  exact: boolean | null;
  whole_model_bytes: Record<string, number>;
  within_bounds: boolean;
}

export function summarise(rows: readonly MemoryRow[]): Summary {
  const built = rows.filter(({ allocated }) => allocated !== null);
  const whole = rows.filter(({ stage }) => stage === "whole model");
  return {
    exact: built.length === 0 ? null : built.every(({ allocated, predicted }) => allocated === predicted),
    whole_model_bytes: Object.fromEntries(whole.map(({ recompute, predicted }) => [recompute, predicted])),
    within_bounds: whole.every(({ recompute, predicted }) =>
      predicted <= (WHOLE_MODEL_BYTES_MAX[recompute] ?? Infinity)
    ),
  };
}

export function table(rows: readonly MemoryRow[]): string {
  const mb = (bytes: number | null) => bytes === null ? "-" : (bytes / 1e6).toFixed(1);
  const header = ["stage", "recompute", "params", "activations", "scratch", "predicted", "allocated", "host"];
  const lines = rows.map((row) => [
    ...[row.stage, row.recompute, mb(row.params), mb(row.activations), mb(row.scratch)],
    ...[mb(row.predicted), mb(row.allocated), mb(row.host)],
  ]);
  return aligned([header, ...lines]).join("\n");
}

async function main(args: string[]): Promise<number> {
  const flags = flagValues(args, OPTIONS);
  if (flags.help) {
    console.log(HELP);
    return 0;
  }
  const slots = wholeFlag("slots", flags.slots, [1, 64]);
  const spec = specOf();
  const rows = LEVELS.map((level) => predictedRow("whole model", buildOf(wholeModel(spec), level, slots)));
  const thirds = splitLayers(spec, [1, 1, 1]);
  for (const [i, name] of ["first third", "middle third", "last third"].entries()) {
    rows.push(...LEVELS.map((level) => predictedRow(name, buildOf(thirds[i]!, level, slots))));
  }
  if (!flags.predict) await allocate(rows, { first: thirds[0]!, slots });
  const summary = summarise(rows);
  console.log(`MB (10^6 bytes); batch ${BLOCK.batch_size} x ${BLOCK.block_size}, slots ${slots}`);
  console.log(table(rows));
  if (flags.json) console.log(JSON.stringify({ rows, summary }));
  return summary.exact === false || (slots === 1 && !summary.within_bounds) ? 1 : 0;
}

/** Builds the first third in each way, and puts what it took into the rows. */
async function allocate(
  rows: MemoryRow[],
  { first, slots }: { first: StageSpec; slots: number },
): Promise<void> {
  const gpu = await openDenoDevice();
  console.error(`building on ${gpu.adapterName} (${gpu.provider})`);
  for (const level of LEVELS) {
    const row = await allocatedRow(gpu, "first third", buildOf(first, level, slots));
    rows[rows.findIndex(({ stage, recompute }) => stage === row.stage && recompute === level)] = row;
  }
}

if (import.meta.main) await runMain(main);
