// How long peers may load: longer by what the fullest of them fetches of a model that is fine-tuned, whether frozen or as the run's beginning.
import assert from "node:assert/strict";
import { readConfig } from "../../peer/model/config.ts";
import { specOf, stageLayout } from "../../peer/model/layout.ts";
import type { StateFile } from "../../peer/wire/control.ts";
import type { StagePlan, View } from "../../peer/wire/run.ts";
import { LOADING_MS, loadingMs } from "./loading.ts";

const SHAPE = { n_layer: 3, n_head: 4, n_kv_head: 4, n_embd: 256, block_size: 8 };
const spec = specOf(readConfig(SHAPE), 20);
const stages: StagePlan[] = [[0, 1], [1, 3]].map(([firstLayer, endLayer], index) => ({
  ...{
    index,
    firstLayer: firstLayer!,
    endLayer: endLayer!,
    embed: index === 0,
    head: index === 1,
    inflight: 2,
  },
  replicas: [{ peer: `p${index}`, microBatches: [0] }],
}));
const view: View = {
  ...{
    gen: 1,
    cut: 1,
    baseStep: 0,
    stages,
    schedule: "dynamic",
    codecForward: "raw32",
    codecBackward: "raw32",
  },
};

Deno.test("loading: what is fetched of a model that is fine-tuned has its own time, and a plain state none", () => {
  const { replicas: _, inflight: __, index: stage, ...range } = stages[1]!;
  const file: StateFile = { stage, ...range, bytes: 9, hash: "h" };
  assert.equal(loadingMs(spec, view), LOADING_MS);
  assert.equal(loadingMs(spec, view, { step: 0, files: [file] }), LOADING_MS);
  const more = Math.ceil(4 * stageLayout(spec, stages[1]!).size / 1000);
  assert.ok(more > 1000, String(more));
  const begun = { step: 0, files: [{ ...file, base: "b" }] };
  assert.equal(loadingMs(spec, view, begun), LOADING_MS + more);
  const adapted = specOf(readConfig({ ...SHAPE, lora_rank: 2 }), 20);
  assert.equal(loadingMs(adapted, view), LOADING_MS + more);
});
