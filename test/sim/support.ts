// Small runs for the simulation: a model of a few hundred parameters, a synthetic corpus, and the comparison with the reference.
import assert from "node:assert/strict";
import { readConfig } from "../../peer/model/config.ts";
import { specOf } from "../../peer/model/layout.ts";
import type { ModelSpec, RunConfig } from "../../peer/wire/run.ts";
import { runOneProcess } from "../support/one_process.ts";
import { seededRandom } from "../support/random.ts";
import { compareWithWhole } from "./compare.ts";
import { World } from "./world.ts";

export const VOCABULARY = 7;

export function tinyConfig(changes: Record<string, unknown> = {}): RunConfig {
  return readConfig({
    ...{ n_layer: 3, n_head: 2, n_kv_head: 1, n_embd: 8, n_inner: 12, block_size: 4, batch_size: 1 },
    ...{ gradient_accumulation_steps: 4, max_iters: 6, warmup_iters: 1, lr_decay_iters: 6, eval_interval: 4 },
    ...{ eval_iters: 2, checkpoint_interval: 100, snapshot_interval: 2, sample_chars: 0, min_peers: 3 },
    ...{ codec_forward: "raw32", codec_backward: "raw32", seed: 11, shadows: false, parity: false },
    // A stage for each peer, whatever the planner would make of a model that is so small.
    n_stage: Math.min(3, Number(changes.n_layer ?? 3)),
    ...changes,
  });
}

export function tinyCorpus(tokens = 400): Uint8Array {
  const random = seededRandom(5);
  return Uint8Array.from({ length: tokens }, () => Math.floor(random() * VOCABULARY));
}

const references = new Map<string, Float32Array>();

/** Final parameters of the one-process run, computed once per configuration. */
export async function referenceParams(config: RunConfig, spec: ModelSpec): Promise<Float32Array> {
  const key = JSON.stringify(config);
  const known = references.get(key);
  if (known !== undefined) return known;
  const { state } = await runOneProcess(config, spec, tinyCorpus());
  references.set(key, state.params);
  return state.params;
}

export function createWorld(config: RunConfig, seed: number, peers: number): World {
  return new World({ config, spec: specOf(config, VOCABULARY), corpus: tinyCorpus(), seed, peers });
}

/** Every tensor of every live holder of the last view equals the reference, bit for bit. */
export async function assertEqualsReference(world: World, config: RunConfig, label: string): Promise<void> {
  const spec = specOf(config, VOCABULARY);
  const expected = await referenceParams(config, spec);
  let compared = 0;
  for (const peer of world.alive()) compared += compareWithWhole(spec, peer.holder, expected, label);
  assert.ok(compared >= spec.n_layer, `${label}: only ${compared} tensors compared`);
}

/** Training loss of every step, the last value where a step was done again. */
export function lossesOf({ reports }: World): number[] {
  const losses: number[] = [];
  for (const it of reports) {
    if (it.do === "report" && it.line.event === "step") losses[it.line.step - 1] = it.line["train/loss"];
  }
  return losses;
}
