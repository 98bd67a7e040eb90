// What a model card says about how a model came to be: from the checkpoint's manifest, and from the run's metrics where they
// are at hand. Reads metrics.jsonl line by line; a missing, foreign or torn one only means that less is said.
import { join } from "node:path";
import { baseParamCount, paramCount } from "../../peer/model/layout.ts";
import type { LoraSpec, RunConfig } from "../../peer/wire/run.ts";
import type { CheckpointManifest } from "../store/checkpoint_manifest.ts";

export interface ModelFacts {
  /** Of the data set's text; a file's folder is nobody's business. */
  dataset: string;
  /** An SPDX identifier or a word, if it is known. */
  license: string | null;
  step: number;
  /** Trained on so far, counting repeats. */
  tokens: number;
  params: number;
  /** Present where only adapters were trained, and the rest is the base's. */
  adapters?: LoraSpec & { params: number };
  /** Mean loss in nats: of the checkpoint's last step, and of the validation split. */
  trainLoss: number | null;
  valLoss: number | null;
  /** Peers that joined up to this checkpoint, and the most that one step had. */
  peers: { joined: number; most: number } | null;
  config: RunConfig;
  /** Present where a token is not a character. */
  subWords?: true;
}

/** Licences of the data sets that come with the program. */
const LICENSES: Readonly<Record<string, string>> = { "moby-dick": "public domain" };

/** A run of a million steps has about 200 MB; more is not read. */
const METRICS_BYTES_MAX = 512 << 20;

export function factsOf(manifest: CheckpointManifest, license: string | null): ModelFacts {
  const { step, config, spec, valLoss } = manifest;
  const perStep = config.batch_size * config.gradient_accumulation_steps * config.block_size;
  return {
    dataset: config.dataset.split(/[\\/]/).at(-1) ?? config.dataset,
    license: license ?? LICENSES[config.dataset] ?? null,
    ...{
      step,
      config,
      valLoss,
      tokens: step * perStep,
      params: baseParamCount(spec),
      trainLoss: null,
      peers: null,
    },
    ...(spec.lora === undefined ? {} : { adapters: { ...spec.lora, params: paramCount(spec) } }),
    ...(manifest.tokenizer === undefined ? {} : { subWords: true as const }),
  };
}

/** Adds what the run's folder knows. */
export async function withMetrics(facts: ModelFacts, runDir: string): Promise<ModelFacts> {
  const ids = new Set<string>();
  let most = 0, trainLoss: number | null = null, step = 0;
  for await (const line of metricsLines(runDir)) {
    const entry = parse(line);
    if (entry.event === "step" && typeof entry.step === "number") {
      ({ step } = entry as { step: number });
      if (step > facts.step) continue;
      if (typeof entry.peers === "number") most = Math.max(most, entry.peers);
      // A step that was done again has the later line.
      if (step === facts.step && typeof entry["train/loss"] === "number") trainLoss = entry["train/loss"];
    } else if (entry.event === "peer" && typeof entry.id === "string" && step < facts.step) ids.add(entry.id);
  }
  return { ...facts, trainLoss, peers: ids.size === 0 ? null : { joined: ids.size, most } };
}

function parse(line: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(line);
    return typeof value === "object" && value !== null ? value as Record<string, unknown> : {};
  } catch {
    return {};
  }
}

async function* metricsLines(runDir: string): AsyncGenerator<string> {
  const file = await openIfThere(join(runDir, "metrics.jsonl"));
  if (file === null) return;
  let rest = "", left = METRICS_BYTES_MAX;
  for await (const text of file.readable.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + text).split("\n");
    rest = lines.pop() ?? "";
    yield* lines;
    left -= text.length;
    if (left < 0) return;
  }
}

async function openIfThere(path: string): Promise<Deno.FsFile | null> {
  try {
    return await Deno.open(path, { read: true });
  } catch (error) {
    // A checkpoint may have been named whose run's folder this program may not read.
    const absent = error instanceof Deno.errors.NotFound || error instanceof Deno.errors.NotCapable;
    if (absent || error instanceof Deno.errors.PermissionDenied) return null;
    throw error;
  }
}
