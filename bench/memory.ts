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
import type { DtypeId, ModelSpec, RecomputeId, StageSpec } from "../peer/wire/run.ts";
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
/** Ways of keeping what F leaves to B and W. */
const WAYS: readonly { recompute: RecomputeId; dtype: DtypeId }[] = (["f32", "f16"] as const).flatMap((
  dtype,
) => (["none", "attention", "block"] as const).map((recompute) => ({ recompute, dtype })));

const HELP = `usage: deno run bench/memory.ts [flags]
Builds a third of GPT-2 small (4 layers and the embedding, batch 8 x 256) and compares what it allocates with the
prediction, and predicts the whole model with and without recomputation, in f32 and with activations in f16.

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
  dtype: DtypeId;
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

export function buildOf(
  stage: StageSpec,
  { recompute, dtype = "f32" }: { recompute: RecomputeId; dtype?: DtypeId },
  slots: number,
): StageBuild {
  const codecs = { codecForward: "i8b64", codecBackward: "i8b64" } as const;
  return { spec: specOf(), stage, batchSize: BLOCK.batch_size, slots, recompute, dtype, ...codecs };
}

export function predictedRow(name: string, build: StageBuild): MemoryRow {
  const { params, activations, scratch } = wgslMemory(build);
  const host = stateBytes(build, readConfig({ ...SHAPE, ...BLOCK }));
  const predicted = params + activations + scratch;
  return {
    stage: name,
    recompute: build.recompute ?? "none",
    dtype: build.dtype ?? "f32",
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
  /** By recompute, with " f16" behind it for activations in halves. */
  whole_model_bytes: Record<string, number>;
  /** Of the whole model, all that one micro-batch under way keeps without recomputation; absent without such rows. */
  slot_bytes?: { f32: number; f16: number; share: number };
  within_bounds: boolean;
}

export function summarise(rows: readonly MemoryRow[]): Summary {
  const built = rows.filter(({ allocated }) => allocated !== null);
  const whole = rows.filter(({ stage }) => stage === "whole model");
  return {
    exact: built.length === 0 ? null : built.every(({ allocated, predicted }) => allocated === predicted),
    whole_model_bytes: Object.fromEntries(whole.map((row) => [wayOf(row), row.predicted])),
    ...slotBytes(whole),
    within_bounds: whole.every(({ recompute, predicted }) =>
      predicted <= (WHOLE_MODEL_BYTES_MAX[recompute] ?? Infinity)
    ),
  };
}

function wayOf({ recompute, dtype }: MemoryRow): string {
  return dtype === "f32" ? recompute : `${recompute} ${dtype}`;
}

function slotBytes(whole: readonly MemoryRow[]): Pick<Summary, "slot_bytes"> {
  const of = (way: string) => whole.find((row) => wayOf(row) === way)?.activations;
  const [f32, f16] = [of("none"), of("none f16")];
  return f32 === undefined || f16 === undefined ? {} : { slot_bytes: { f32, f16, share: f16 / f32 } };
}

export function table(rows: readonly MemoryRow[]): string {
  const mb = (bytes: number | null) => bytes === null ? "-" : (bytes / 1e6).toFixed(1);
  const header = [
    "stage",
    "recompute",
    "dtype",
    "params",
    "activations",
    "scratch",
    "predicted",
    "allocated",
    "host",
  ];
  const lines = rows.map((row) => [
    ...[row.stage, row.recompute, row.dtype, mb(row.params), mb(row.activations), mb(row.scratch)],
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
  const rows = WAYS.map((way) => predictedRow("whole model", buildOf(wholeModel(spec), way, slots)));
  const thirds = splitLayers(spec, [1, 1, 1]);
  for (const [i, name] of ["first third", "middle third", "last third"].entries()) {
    rows.push(...WAYS.map((way) => predictedRow(name, buildOf(thirds[i]!, way, slots))));
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
  for (const way of WAYS) {
    const row = await allocatedRow(gpu, "first third", buildOf(first, way, slots));
    rows[rows.findIndex((it) => it.stage === row.stage && wayOf(it) === wayOf(row))] = row;
  }
}

if (import.meta.main) await runMain(main);
