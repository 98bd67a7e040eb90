// A trained model with adapters beside it, drawn from a seed and large enough to change what it says; as a run's folder with base and
// checkpoint, and what it computes: W + (alpha / rank)·B·A in double precision, written from the formula.
import { createSampler } from "../../peer/engine/sampler.ts";
import { readConfig } from "../../peer/model/config.ts";
import {
  baseSpec,
  findTensor,
  specOf,
  splitLayers,
  stageLayout,
  wholeModel,
} from "../../peer/model/layout.ts";
import { encodeState, initialState } from "../../peer/model/state_file.ts";
import type { ModelSpec, RunConfig } from "../../peer/wire/run.ts";
import { writeBase } from "../../coordinator/store/base.ts";
import { stageFileName, writeCheckpoint } from "../../coordinator/store/checkpoints.ts";
import { logitsOf, type TrainedModel } from "./trained_model.ts";

export type Lora = Pick<RunConfig, "lora_rank" | "lora_alpha" | "lora_targets">;

export interface AdaptedModel {
  base: TrainedModel;
  lora: Lora;
  /** With adapters; without the hash of a base. */
  spec: ModelSpec;
  /** By name. */
  adapters: Map<string, Float32Array>;
  /** As the base's, of the model with its adapters. */
  logits(tokens: readonly number[]): number[][];
  greedy(prompt: string, count: number): string;
}

export function adapt(base: TrainedModel, lora: Lora): AdaptedModel {
  const spec = specOf({ ...base.config, ...lora }, base.vocab.length);
  const adapters = new Map<string, Float32Array>();
  let state = 12345;
  for (const { name, size } of stageLayout(spec, wholeModel(spec)).tensors) {
    adapters.set(
      name,
      Float32Array.from({ length: size }, () => {
        state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
        return (state / 2 ** 32 * 2 - 1) * 0.9;
      }),
    );
  }
  const params = withProducts(base, spec, adapters);
  return {
    ...{ base, lora, spec, adapters },
    logits: (tokens) => logitsOf(baseSpec(spec), params, tokens),
    greedy(prompt, count) {
      const options = { count, temperature: 0, topK: 0, seed: 1 };
      const sampler = createSampler(baseSpec(spec), Float32Array.from(params));
      return base.decode(sampler.generate(base.encode(prompt), options));
    },
  };
}

function withProducts(base: TrainedModel, spec: ModelSpec, adapters: ReadonlyMap<string, Float32Array>) {
  const params = Float64Array.from(base.state.params), { rank, alpha } = spec.lora!;
  for (const [name, a] of adapters) {
    if (!name.endsWith(".lora_A.weight")) continue;
    const module = name.slice(0, -".lora_A.weight".length), b = adapters.get(`${module}.lora_B.weight`)!;
    const { offset, shape: [out, into] } = findTensor(base.state.layout, `${module}.weight`)!;
    for (let o = 0; o < out!; o++) {
      for (let i = 0; i < into!; i++) {
        let sum = 0;
        for (let r = 0; r < rank; r++) sum += b[o * rank + r]! * a[r * into! + i]!;
        params[offset + o * into! + i]! += alpha / rank * sum;
      }
    }
  }
  return params;
}

/** Writes base and checkpoint into a run's folder, which is there; returns the checkpoint's folder. */
export async function writeAdapted(runDir: string, model: AdaptedModel, step = 9): Promise<string> {
  const { base, lora, spec: bare, adapters } = model;
  const lora_base = await writeBase(runDir, {
    spec: bare,
    read: ({ offset, size }, into) => {
      into.set(base.state.params.subarray(offset, offset + size));
      return Promise.resolve(null);
    },
  });
  const config = readConfig({ ...base.config, ...lora, lora_base });
  const spec = specOf(config, base.vocab.length), stages = splitLayers(spec, [1, 2]);
  const files = stages.map((stage) => {
    const state = { ...initialState(spec, stage, config.seed), step };
    for (const { name, offset } of state.layout.tensors) state.params.set(adapters.get(name)!, offset);
    return { name: stageFileName(stage.index, stages.length), bytes: encodeState(state) };
  });
  const own = base.tokenizer === null ? {} : { tokenizer: "tokenizer.json" };
  if (base.tokenizer !== null) {
    files.push({ name: "tokenizer.json", bytes: new TextEncoder().encode(base.tokenizer) });
  }
  const about = { valLoss: 2.25, dataCursor: step, seed: config.seed, ...own };
  return await writeCheckpoint(runDir, {
    step,
    files,
    manifest: { config, spec, vocab: base.vocab, stages, ...about },
  });
}
