// A small model trained for a few real steps on Moby Dick in one process, so that no two logits are alike by accident, and
// its checkpoint on disk. For tests of what a trained model becomes elsewhere; nothing here is random or timed.
import { createSampler } from "../../peer/engine/sampler.ts";
import type { StageState } from "../../peer/exact/state.ts";
import { readConfig } from "../../peer/model/config.ts";
import { specOf, splitLayers, wholeModel } from "../../peer/model/layout.ts";
import { decodeSafetensors } from "../../peer/model/safetensors.ts";
import { encodeState, mergeStates } from "../../peer/model/state_file.ts";
import { corpusOf } from "../../peer/model/data.ts";
import { charTokenizer } from "../../peer/model/tokenizer.ts";
import { assert } from "../../peer/wire/errors.ts";
import type { ModelSpec, RunConfig } from "../../peer/wire/run.ts";
import { stageFileName, writeCheckpoint } from "../../coordinator/store/checkpoints.ts";
import { loadCorpus } from "../../coordinator/store/corpus.ts";
import { newTokenizer } from "../../coordinator/corpora/tokenizer.ts";
import { tokenizerOf } from "../../coordinator/store/text_tokenizer.ts";
import { stageForward, stageShape, viewParams } from "../../shaders/reference/stage.ts";
import { runOneProcess } from "./one_process.ts";

/** Rows of 32 fit Q8_0's blocks and rows of 48 do not; eight heads share two of keys, four each. */
const SHAPE = {
  ...{ n_layer: 3, n_head: 8, n_kv_head: 2, n_embd: 32, n_inner: 48, block_size: 32, rope_theta: 500 },
  ...{ batch_size: 4, gradient_accumulation_steps: 1, max_iters: 250, warmup_iters: 5, learning_rate: 1e-2 },
};
/** The book's beginning is enough for a model that small, and keeps its vocabulary under a hundred characters. */
const TEXT_CHARS = 80_000;
/** Cutting a text into pairs takes a hundred times longer than into characters. */
const TEXT_CHARS_PAIRS = 20_000;

export interface TrainedModel {
  config: RunConfig;
  spec: ModelSpec;
  vocab: string[];
  /** Text of the tokenizer.json that cuts the text; null: characters. */
  tokenizer: string | null;
  state: StageState;
  /** Mean training loss of each step. */
  losses: number[];
  encode(text: string): number[];
  decode(tokens: readonly number[]): string;
  /** Logits [n][V] after each of n tokens, in double precision throughout. */
  logits(tokens: readonly number[]): number[][];
  /** What `shoal generate` writes after the prompt at temperature 0. */
  greedy(prompt: string, count: number): string;
}

/** @param json Text of a tokenizer.json that cuts the text; default: characters. */
export async function trainSmallModel(
  overrides: Partial<RunConfig> = {},
  json: string | null = null,
): Promise<TrainedModel> {
  const config = readConfig({ ...SHAPE, ...overrides });
  const corpus = await loadCorpus("moby-dick");
  const text = corpus.decode(corpus.tokens.subarray(0, json === null ? TEXT_CHARS : TEXT_CHARS_PAIRS));
  const tokenizer = json === null ? characters(text) : pieces(json, config.vocab_multiple);
  const { vocab, encode, decode } = tokenizer;
  const spec = specOf(config, vocab.length);
  const { state, losses } = await runOneProcess(config, spec, corpusOf(encode(text), vocab.length));
  return {
    ...{ config, spec, vocab, encode, decode, state, losses, tokenizer: json },
    logits: (tokens) => logitsOf(spec, state.params, tokens),
    greedy(prompt, count) {
      const options = { count, temperature: 0, topK: 0, seed: 1 };
      return decode(createSampler(spec, state.params).generate(encode(prompt), options));
    },
  };
}

type Cutter = Pick<TrainedModel, "vocab" | "encode" | "decode">;

function characters(text: string): Cutter {
  const { vocab, encode, decode } = charTokenizer(text);
  return { vocab, decode, encode: (text) => [...encode(text)] };
}

function pieces(json: string, multiple: number): Cutter {
  const { tokenizer: { vocab } } = newTokenizer({ label: "test", json }, multiple);
  const { encodePrompt: encode, decode } = tokenizerOf({ vocab }, json);
  return { vocab, encode, decode };
}

/** Logits [n][V] after each of n tokens, in double precision throughout. @param params Of the whole model. */
export function logitsOf(
  spec: ModelSpec,
  params: Float32Array | Float64Array,
  tokens: readonly number[],
): number[][] {
  const stage = wholeModel(spec), V = spec.vocab_size;
  assert(tokens.length <= spec.block_size, "the tokens fit the model's window");
  // Later tokens cannot be seen by earlier ones, so the window may be filled up with anything.
  const window = Uint32Array.from({ length: spec.block_size }, (_, i) => tokens[i] ?? 0);
  const views = viewParams(spec, stage, Float64Array.from(params));
  const { saved } = stageForward(stageShape(spec, stage, 1), views, { tokens: window, targets: window });
  return tokens.map((_, i) => [...saved.head!.logits.subarray(i * V, (i + 1) * V)]);
}

/** Writes the model as a run's checkpoint, cut into two stages; returns the checkpoint's folder. */
export async function writeTrained(runDir: string, model: TrainedModel): Promise<string> {
  const { config, spec, vocab, state } = model;
  const whole = decodeSafetensors(encodeState(state));
  assert(whole.ok, "the state's own file decodes");
  const stages = splitLayers(spec, [1, 2]);
  const files = stages.map((stage) => {
    const part = mergeStates(spec, [whole.value], stage);
    assert(part.ok, "a stage of the state");
    return { name: stageFileName(stage.index, stages.length), bytes: encodeState(part.value) };
  });
  const own = model.tokenizer === null ? {} : { tokenizer: "tokenizer.json" };
  if (model.tokenizer !== null) {
    files.push({ name: "tokenizer.json", bytes: new TextEncoder().encode(model.tokenizer) });
  }
  const manifest = {
    ...{ config, spec, vocab, stages, valLoss: 2.5, ...own },
    ...{ dataCursor: state.step, seed: config.seed },
  };
  return await writeCheckpoint(runDir, { step: state.step, files, manifest });
}
