// The worker that writes samples: of adapters it writes with the merged model, up to the end of the text, and what it cannot do reaches whoever asked.
import assert from "node:assert/strict";
import { join } from "node:path";
import { createSampler } from "../../peer/engine/sampler.ts";
import { adapt, writeAdapted } from "../../test/support/adapted_model.ts";
import { inTempFolder } from "../../test/support/export_support.ts";
import { trainSmallModel } from "../../test/support/trained_model.ts";
import { readCheckpoint } from "../store/checkpoints.ts";
import { readWeights } from "../store/weights.ts";
import type { SampleAnswer, SampleRequest } from "./sample_worker.ts";

async function sampled(request: SampleRequest): Promise<number[]> {
  const worker = new Worker(new URL("./sample_worker.ts", import.meta.url), { type: "module" });
  try {
    return await new Promise((resolve, reject) => {
      worker.onmessage = ({ data }: MessageEvent<SampleAnswer>) =>
        typeof data === "string" ? reject(new Error(data)) : resolve(data);
      worker.onerror = (event) => {
        event.preventDefault();
        reject(new Error(event.message));
      };
      worker.postMessage(request);
    });
  } finally {
    worker.terminate();
  }
}

Deno.test("sample worker: a run with adapters is sampled with its base, and without it says why not", () =>
  inTempFolder(async (folder) => {
    const base = await trainSmallModel({ max_iters: 5 });
    const model = adapt(base, { lora_rank: 2, lora_alpha: 2, lora_targets: "q_proj,v_proj,up_proj" });
    const path = await writeAdapted(folder, model);
    const { manifest: { spec }, files } = await readCheckpoint(path);
    const shards = files.filter(({ name }) => name.endsWith(".safetensors")).map(({ bytes }) => bytes);
    const request = { files: shards, spec, runDir: folder, prompt: [3], count: 12, seed: 5, ends: [] };
    const { spec: dense, params } = await readWeights(path);
    const options = { count: 12, temperature: 0.8, topK: 0, seed: 5 };
    const whole = createSampler(dense, params).generate([3], options), end = whole[4]!;
    assert.deepEqual(await sampled(request), whole);
    assert.deepEqual(await sampled({ ...request, ends: [999, end] }), whole.slice(0, whole.indexOf(end)));
    await Deno.remove(join(folder, "base.safetensors"));
    await assert.rejects(sampled(request), /base\.safetensors: there is no such file/);
  }));
