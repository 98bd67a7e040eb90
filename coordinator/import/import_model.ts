// A model in Hugging Face's layout -> a checkpoint of step 0, from which a run goes on training it. One stage's tensors are in memory
// at a time, and of the files only what that stage needs is read. Either the checkpoint is complete or there is none.
import { join } from "node:path";
import { readConfig } from "../../peer/model/config.ts";
import { baseParamCount, baseSpec, paramCount, specOf, splitLayers } from "../../peer/model/layout.ts";
import { blankState, encodeState, initialState } from "../../peer/model/state_file.ts";
import type { SourceTensor } from "../../peer/wire/base.ts";
import { messageOf, type Result, ShoalError } from "../../peer/wire/errors.ts";
import type { ModelSpec, RunConfig, StageSpec } from "../../peer/wire/run.ts";
import { isLora } from "../../peer/wire/view.ts";
import { BASE_NAME, writeBase } from "../store/base.ts";
import { type BaseSource, SOURCE_NAME } from "../store/base_source.ts";
import {
  checkpointsDir,
  type NamedBytes,
  stageFileName,
  writeCheckpointStream,
} from "../store/checkpoints.ts";
import { tokenizerOf } from "../store/text_tokenizer.ts";
import { type ModelConfig, readModelConfig } from "./model_config.ts";
import { ModelSource } from "./model_source.ts";
import type { UrlOptions } from "./model_url.ts";
import { PeftAdapters } from "./peft_adapters.ts";
import { type ModelTensors, modelTensors } from "./model_tensors.ts";
import { readTokenizerJson } from "./tokenizer_json.ts";

/** Weights, moments and exponents of one stage file, unless one layer has more. Peers fetch whole files, so small ones bring little that is not theirs. */
const STAGE_BYTES_MAX = 16 << 20;
const STATE_BYTES_PER_PARAM = 12;
/** A window that most computers can train; the model may allow more. */
const BLOCK_SIZE_DEFAULT = 1024;
/** What is learned already should not be shaken: a tenth of a usual rate. */
const FINE_TUNING = { learning_rate: 1e-4, min_lr: 1e-5 };
const TOKENIZER_NAME = "tokenizer.json";

export interface ImportOptions {
  /** A model's folder, or its safetensors file; the path or the address. */
  from: string;
  /** The run's folder that is made. */
  out: string;
  /** Configuration keys of the training to come; not the model's shape. */
  config: Readonly<Record<string, unknown>>;
  /** Folder of PEFT adapters that were made for the model: training goes on with them. */
  adapter?: string;
  /** How an address is asked; tests are less patient. */
  url?: UrlOptions;
  onProgress?(done: number, of: number): void;
}

export interface Imported {
  /** The checkpoint's folder. */
  path: string;
  spec: ModelSpec;
  config: RunConfig;
  params: number;
  /** "characters", or the kind of tokenizer that the model brought. */
  tokenizer: string;
}

/** @throws {ShoalError} bad-model, bad-config, usage, or storage-full; then nothing is left behind. */
export async function importModel(options: ImportOptions): Promise<Imported> {
  await checkFree(options.out);
  const source = await ModelSource.open(options.from, options.url);
  let adapters: PeftAdapters | null = null;
  try {
    const model = valueOf(readModelConfig(await source.config()));
    const tokenizerText = await source.tokenizer();
    const tokenizer = valueOf(readTokenizerJson(tokenizerText, model.vocabSize));
    if (!tokenizer.characters) tryTokenizer(tokenizerText, tokenizer.vocab);
    const plain = runConfig(model, options.config);
    const shape = baseSpec(specOf(plain, model.vocabSize));
    if (options.adapter !== undefined) adapters = await openAdapters(options.adapter, shape, options.config);
    const asked = adapters === null ? plain : runConfig(model, { ...options.config, ...adapters.config });
    const tensors = modelTensors(source, { spec: shape, positionsMax: model.positionsMax });
    tensors.check();
    const extra = tokenizer.characters
      ? []
      : [{ name: TOKENIZER_NAME, bytes: new TextEncoder().encode(tokenizerText) }];
    return await writeOrNothing(options.out, async () => {
      const config = await withBase(options, asked, { source, tensors, vocabSize: model.vocabSize });
      const spec = specOf(config, model.vocabSize);
      const stages = cutOf(spec);
      const manifest = {
        ...{ config, spec, vocab: tokenizer.vocab, stages, valLoss: null, dataCursor: 0, seed: config.seed },
        ...(tokenizer.characters ? {} : { tokenizer: TOKENIZER_NAME }),
      };
      const files = stageFiles(tensors, spec, {
        ...{ stages, names: source.files },
        extra,
        seed: config.seed,
        adapters,
        onProgress: options.onProgress,
      });
      const path = await writeCheckpointStream(options.out, { step: 0, manifest, files });
      const kind = tokenizer.characters ? "characters" : TOKENIZER_NAME;
      return { path, spec, config, params: baseParamCount(spec), tokenizer: kind };
    });
  } finally {
    source.close();
    adapters?.close();
  }
}

/** Adapters say themselves what they are. @throws {ShoalError} bad-config, bad-model */
async function openAdapters(
  folder: string,
  shape: ModelSpec,
  asked: Readonly<Record<string, unknown>>,
): Promise<PeftAdapters> {
  const decided = Object.keys(asked).find((key) => key.startsWith("lora_"));
  if (decided === undefined) return await PeftAdapters.open(folder, shape);
  throw new ShoalError("bad-config", `${decided} is decided by the adapters that are imported; leave it out`);
}

/** Where adapters are trained, the model itself becomes their base, a file of its own. */
async function withBase(
  { out, onProgress }: ImportOptions,
  config: RunConfig,
  from: { source: ModelSource; tensors: ModelTensors; vocabSize: number },
): Promise<RunConfig> {
  if (!isLora(config)) return config;
  const { source, tensors, vocabSize } = from;
  await Deno.mkdir(out, { recursive: true });
  const lora_base = await writeBase(out, {
    spec: specOf(config, vocabSize),
    read: (tensor, into) => tensors.read(tensor, into),
    source: { files: source.files, place: (tensor) => tensors.place(tensor) },
    ...(onProgress === undefined ? {} : { onProgress }),
  });
  return { ...config, lora_base };
}

/** What cannot cut a sentence now could not cut a data set later. */
function tryTokenizer(json: string, vocab: readonly string[]): void {
  try {
    const tokenizer = tokenizerOf({ vocab: [...vocab] }, json);
    tokenizer.decode(tokenizer.encodePrompt("The quick brown fox, 12 times.\n"));
  } catch (error) {
    throw new ShoalError("bad-model", `the tokenizer cannot be used: ${messageOf(error)}`, { cause: error });
  }
}

/** A run that is there already must not be mixed with a model. */
async function checkFree(out: string): Promise<void> {
  try {
    for await (const _ of Deno.readDir(out)) {
      throw new ShoalError("usage", `"${out}" is not empty; name a new folder with --out`);
    }
  } catch (error) {
    if (!(error instanceof Deno.errors.NotFound)) throw error;
  }
}

/** Folders that were made for a checkpoint that failed are removed, if nothing else is in them. */
async function writeOrNothing<T>(out: string, write: () => Promise<T>): Promise<T> {
  try {
    return await write();
  } catch (error) {
    await Deno.remove(join(out, BASE_NAME)).catch(() => {});
    for (const folder of [checkpointsDir(out), out]) await Deno.remove(folder).catch(() => {});
    throw error;
  }
}

function valueOf<T>(result: Result<T>): T {
  if (result.ok) return result.value;
  throw new ShoalError(result.code, result.reason);
}

/** The model's shape, what was asked for, and defaults that suit fine-tuning. @throws {ShoalError} bad-config */
function runConfig(
  { shape, positionsMax }: ModelConfig,
  asked: Readonly<Record<string, unknown>>,
): RunConfig {
  const fixed = Object.keys(asked).find((key) => key === "lora_base" || Object.hasOwn(shape, key));
  if (fixed !== undefined) {
    throw new ShoalError("bad-config", `${fixed} is decided by the model that is imported; leave it out`);
  }
  const block_size = Math.min(positionsMax, BLOCK_SIZE_DEFAULT);
  const rates = "learning_rate" in asked ? {} : FINE_TUNING;
  const config = readConfig({ block_size, ...rates, ...asked, ...shape });
  if (config.block_size > positionsMax) {
    throw new ShoalError(
      "bad-config",
      `block_size ${config.block_size} exceeds the ${positionsMax} positions that the model was trained for; use at most that`,
    );
  }
  return config;
}

/** As few stages as keep each file within its limit. */
function cutOf(spec: ModelSpec): StageSpec[] {
  const bytes = paramCount(spec) * STATE_BYTES_PER_PARAM;
  const count = Math.min(spec.n_layer, Math.max(1, Math.ceil(bytes / STAGE_BYTES_MAX)));
  return splitLayers(spec, Array<number>(count).fill(1));
}

interface Files {
  stages: readonly StageSpec[];
  /** Of the model's own files. */
  names: string[];
  /** Files beside the stages'. */
  extra: readonly NamedBytes[];
  seed: number;
  /** Absent: adapters begin anew. */
  adapters: PeftAdapters | null;
  onProgress: ImportOptions["onProgress"];
}

/** From where peers may fetch what was imported, should its files lie at an address, too. */
function sourceFile(files: string[], tensors: SourceTensor[]): NamedBytes {
  const source: BaseSource = { files, tensors };
  return { name: SOURCE_NAME, bytes: new TextEncoder().encode(JSON.stringify(source)) };
}

/** One file per stage, made when it is its turn to be written. */
async function* stageFiles(
  tensors: ModelTensors,
  spec: ModelSpec,
  { stages, names, extra, seed, adapters, onProgress }: Files,
): AsyncGenerator<NamedBytes> {
  const places = new Map<string, SourceTensor>();
  for (const stage of stages) {
    // Adapters begin as the seed has them; the model is their base.
    const state = spec.lora === undefined ? blankState(spec, stage) : initialState(spec, stage, seed);
    const from = spec.lora === undefined ? tensors : adapters;
    for (const tensor of from === null ? [] : state.layout.tensors) {
      const { offset, size } = tensor;
      const sha256 = await from?.read(tensor, state.params.subarray(offset, offset + size));
      const place = spec.lora === undefined ? tensors.place(tensor) : null;
      if (place !== null && sha256) places.set(tensor.name, { name: tensor.name, ...place, sha256 });
    }
    yield { name: stageFileName(stage.index, stages.length), bytes: encodeState(state) };
    if (spec.lora === undefined) onProgress?.(stage.index + 1, stages.length);
  }
  if (spec.lora === undefined) yield sourceFile(names, [...places.values()]);
  yield* extra;
}
