// A worker that assembles the whole model from a snapshot's files and writes a sample on the CPU, beside the coordinator.
import { createSampler, type Sampler } from "../../peer/engine/sampler.ts";
import { baseSpec, wholeModel } from "../../peer/model/layout.ts";
import { mergeLora } from "../../peer/model/lora.ts";
import { decodeSafetensors } from "../../peer/model/safetensors.ts";
import { mergeStates } from "../../peer/model/state_file.ts";
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";
import type { ModelSpec } from "../../peer/wire/run.ts";
import { readBase } from "../store/base.ts";

export interface SampleRequest {
  files: Uint8Array[];
  spec: ModelSpec;
  /** Where adapters have their base. */
  runDir: string;
  prompt: number[];
  count: number;
  seed: number;
  /** Tokens of which each ends the text; they are not part of it. */
  ends: number[];
}

/** Tokens, or why there are none. */
export type SampleAnswer = number[] | string;

/** Lively but mostly words; what nanoGPT's sample script uses. */
const TEMPERATURE = 0.8;

async function write({ files, spec, runDir, ...wish }: SampleRequest): Promise<number[]> {
  const maps = files.map((bytes) => {
    const decoded = decodeSafetensors(bytes);
    if (!decoded.ok) throw new ShoalError(decoded.code, decoded.reason);
    return decoded.value;
  });
  const merged = mergeStates(spec, maps, wholeModel(spec));
  if (!merged.ok) throw new ShoalError(merged.code, merged.reason);
  const { params } = merged.value;
  if (spec.lora === undefined) return upToEnd(createSampler(spec, params), wish);
  const base = await readBase(runDir, spec);
  const weights = mergeLora(spec, wholeModel(spec), { base, adapters: params, out: base });
  return upToEnd(createSampler(baseSpec(spec), weights), wish);
}

/** What follows the end of a text would be another text. */
function upToEnd(
  sampler: Sampler,
  { prompt, count, seed, ends }: Pick<SampleRequest, "prompt" | "count" | "seed" | "ends">,
): number[] {
  const tokens: number[] = [];
  for (const token of sampler.write(prompt, { count, temperature: TEMPERATURE, topK: 0, seed })) {
    if (ends.includes(token)) break;
    tokens.push(token);
  }
  return tokens;
}

// Deno types a worker's global like a window's; the worker's own has postMessage(value) alone.
const scope = self as unknown as {
  onmessage: ((event: MessageEvent<SampleRequest>) => void) | null;
  postMessage(value: SampleAnswer): void;
};
scope.onmessage = ({ data }) => {
  // Uncaught, it would be printed with a stack beside what the coordinator says.
  write(data).catch(messageOf).then((answer) => scope.postMessage(answer));
};
