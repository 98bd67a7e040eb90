// A worker that assembles the whole model from a snapshot's files and writes a sample on the CPU, beside the coordinator.
import { createSampler } from "../../peer/engine/sampler.ts";
import { wholeModel } from "../../peer/model/layout.ts";
import { decodeSafetensors } from "../../peer/model/safetensors.ts";
import { mergeStates } from "../../peer/model/state_file.ts";
import { ShoalError } from "../../peer/wire/errors.ts";
import type { ModelSpec } from "../../peer/wire/run.ts";

export interface SampleRequest {
  files: Uint8Array[];
  spec: ModelSpec;
  prompt: number[];
  count: number;
  seed: number;
}

/** Lively but mostly words; what nanoGPT's sample script uses. */
const TEMPERATURE = 0.8;

function write({ files, spec, prompt, count, seed }: SampleRequest): number[] {
  const maps = files.map((bytes) => {
    const decoded = decodeSafetensors(bytes);
    if (!decoded.ok) throw new ShoalError(decoded.code, decoded.reason);
    return decoded.value;
  });
  const merged = mergeStates(spec, maps, wholeModel(spec));
  if (!merged.ok) throw new ShoalError(merged.code, merged.reason);
  const options = { count, temperature: TEMPERATURE, topK: 0, seed };
  return createSampler(spec, merged.value.params).generate(prompt, options);
}

// Deno types a worker's global like a window's; the worker's own has postMessage(value) alone.
const scope = self as unknown as {
  onmessage: ((event: MessageEvent<SampleRequest>) => void) | null;
  postMessage(value: number[]): void;
};
scope.onmessage = (event) => scope.postMessage(write(event.data));
