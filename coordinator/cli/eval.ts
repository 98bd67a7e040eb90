// `shoal eval`: what a checkpoint's model makes of a text it was not trained on. Reads a checkpoint and a text, writes nothing:
// figures go to stdout, progress and notes to stderr.
import { dirname, join } from "node:path";
import { type Compute, openCompute } from "../../peer/compute.ts";
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";
import { isPrepared } from "../corpora/prepared.ts";
import { corpusIdOf } from "../corpora/types.ts";
import { openCorpus, type ServedCorpus } from "../store/corpus.ts";
import { sourceOf } from "../store/token_store.ts";
import { tokenizerOf } from "../store/text_tokenizer.ts";
import { readWeights, type Weights } from "../store/weights.ts";
import { findCheckpoint } from "./checkpoint_path.ts";
import { type EvalSplit, evaluate } from "./evaluation.ts";
import { engineFlag, integerFlag, positional, requiredFlag, type VerbOptions } from "./options.ts";
import { progressBar } from "./report.ts";

const SPLITS: readonly EvalSplit[] = ["val", "train", "whole"];
const ITERS_MAX = 1_000_000;
/** A progress line is redrawn at most so often. */
const REDRAW_MS = 200;

export interface EvalOutput {
  data(text: string): void;
  note(text: string): void;
  /** Shows a line in place of the one before; null where there is no terminal. */
  progress: ((text: string) => void) | null;
}

export interface EvalResult {
  checkpoint: string;
  step: number;
  dataset: string;
  split: EvalSplit;
  engine: string;
  /** Nats per token. */
  loss: number;
  perplexity: number;
  bits_per_byte: number;
  tokens: number;
  bytes: number;
  micro_batches: number;
  seconds: number;
}

/** @throws {ShoalError} usage, bad-checkpoint, bad-corpus, or what the engine that was asked for says. */
export async function runEval(options: VerbOptions, output: EvalOutput): Promise<void> {
  positional(options, 0);
  const { split, iters } = rangeOf(options);
  const engine = engineFlag(options) ?? "auto";
  const checkpoint = await findCheckpoint(requiredFlag(options, "checkpoint"));
  const weights = await readWeights(checkpoint);
  const { manifest: { config, step } } = weights;
  const dataset = options.flags.dataset ?? config.dataset;
  const corpus = await textOf(dataset, weights, { checkpoint, named: options.flags.dataset !== undefined });
  const compute = await openCompute(engine, {
    // Loaded here only: a native add-on stands behind it.
    openGpu: async () => await (await import("../../peer/gpu/provider_deno.ts")).openDenoDevice(),
  });
  try {
    output.note(`step ${step} of ${checkpoint} on ${compute.engine}`);
    const count = iters ?? config.eval_iters;
    const figures = await measure({ weights, corpus, split, iters: count, compute, output });
    const result = { checkpoint, step, dataset, split, engine: compute.engine, ...figures };
    tell(result, options.flags.json !== undefined, output);
  } finally {
    compute.destroy();
  }
}

interface Measure {
  weights: Weights;
  corpus: ServedCorpus;
  split: EvalSplit;
  iters: number | "all";
  compute: Compute;
  output: EvalOutput;
}

async function measure({ weights, corpus, split, iters, compute, output }: Measure) {
  const { manifest: { config }, spec, params } = weights;
  const tokenizer = tokenizerOf(weights.manifest, weights.tokenizer);
  const begun = performance.now();
  let drawn = 0;
  const sums = await evaluate({
    ...{ spec, params, config, corpus: sourceOf(corpus.tokens, corpus.bytesPerToken), split, iters },
    bytes: (tokens) => tokenizer.bytes(tokens),
    createEngine: (build) => compute.createEngine(build),
    onProgress: (done, of) => {
      const now = performance.now();
      if (now - drawn < REDRAW_MS && done < of) return;
      drawn = now;
      output.progress?.(done < of ? `${progressBar(done, of)} ${done} of ${of} micro-batches` : "");
    },
  });
  const { loss, tokens, bytes, microBatches: micro_batches } = sums;
  const seconds = (performance.now() - begun) / 1000;
  const bits_per_byte = loss * tokens / bytes / Math.LN2;
  return { loss, perplexity: Math.exp(loss), bits_per_byte, tokens, bytes, micro_batches, seconds };
}

/** undefined iters: as many as the run's own evaluations read. */
function rangeOf(options: VerbOptions): { split: EvalSplit; iters: number | "all" | undefined } {
  const { split = "val", all, iters } = options.flags;
  const known = SPLITS.find((it) => it === split);
  if (known === undefined) {
    throw new ShoalError("usage", `--split is "${split}"; use ${SPLITS.join(", ")}`);
  }
  if (iters === undefined) return { split: known, iters: all || known === "whole" ? "all" : undefined };
  if (all) throw new ShoalError("usage", "--iters and --all exclude each other; leave one out");
  if (known === "whole") {
    throw new ShoalError("usage", "--iters draws from val or train; leave it out for whole");
  }
  return { split: known, iters: integerFlag(options, "iters", { absent: 1, min: 1, max: ITERS_MAX }) };
}

/** The text may lie elsewhere than where the run was trained, or be out of reach of this verb's permissions. */
async function textOf(
  dataset: string,
  { manifest, tokenizer }: Weights,
  { checkpoint, named }: { checkpoint: string; named: boolean },
): Promise<ServedCorpus> {
  try {
    const { column } = manifest.config, folder = await preparedFolder(dataset, checkpoint);
    return await openCorpus(dataset, manifest.vocab, tokenizer, { column, ...folder });
  } catch (error) {
    if (named || !(error instanceof ShoalError)) throw error;
    const remedy = "name the text with --dataset";
    throw new ShoalError(error.code, `${messageOf(error)}; ${remedy}`, { cause: error });
  }
}

/** Where a text that was prepared lies: beside the run's folder, or in it. Nothing is written there. */
async function preparedFolder(dataset: string, checkpoint: string): Promise<{ folder?: string }> {
  const id = corpusIdOf(dataset);
  if (id === null) return {};
  const run = dirname(dirname(checkpoint));
  for (const folder of [join(dirname(run), "corpora"), join(run, "corpora")]) {
    // A folder that may not be read is as good as none.
    if (await isPrepared(folder, id).catch(() => false)) return { folder };
  }
  return {};
}

function tell(result: EvalResult, json: boolean, output: EvalOutput): void {
  if (json) return output.data(`${JSON.stringify(result)}\n`);
  const { loss, perplexity, bits_per_byte, tokens, bytes, seconds, split, dataset } = result;
  output.data(
    [
      `${dataset}, ${split}: ${tokens} tokens, ${bytes} bytes, ${seconds.toFixed(1)} s`,
      `loss           ${loss.toFixed(4)} nats per token`,
      `perplexity     ${perplexity.toFixed(2)}`,
      `bits per byte  ${bits_per_byte.toFixed(4)}`,
      "",
    ].join("\n"),
  );
}
