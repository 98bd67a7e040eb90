// Builds a pipeline of stage engines in one process and drives one micro-batch through it, for the engine tests.
// Not a schedule: forward through all stages, then backward and weight gradients, in the plain order.
import assert from "node:assert/strict";
import type { StageBuild, StageEngine } from "../../peer/engine/engine.ts";
import { splitLayers, stageLayout } from "../../peer/model/layout.ts";
import type { BoundaryCodecs, CodecId, Encoded, ModelSpec, StageSpec } from "../../peer/wire/run.ts";
import { testValues } from "./support.ts";

export const BATCH_SIZE = 2;

export const tinySpec: ModelSpec = {
  vocab_size: 11,
  block_size: 8,
  n_layer: 3,
  n_head: 4,
  n_kv_head: 2,
  n_embd: 16,
  n_inner: 24,
  tie_word_embeddings: false,
  rope_theta: 10_000,
  norm_eps: 1e-5,
};

/** One codec for all that crosses boundaries, or another for each of the first two boundaries and directions. */
export type TestCodec = CodecId | "mixed";

const MIXED: readonly BoundaryCodecs[] = [
  { forward: "i8b64", backward: "f16s" },
  { forward: "raw32", backward: "i8b64" },
];

export interface Options {
  codec: TestCodec;
  slots?: number;
}

export function buildsOf(spec: ModelSpec, stages: number, { codec, slots = 2 }: Options): StageBuild[] {
  const weights = new Array<number>(stages).fill(1);
  return splitLayers(spec, weights).map((stage) => ({
    ...{ spec, stage, batchSize: BATCH_SIZE, slots },
    ...codecsOf(codec, stage.index),
  }));
}

function codecsOf(codec: TestCodec, stage: number) {
  if (codec !== "mixed") return { codecForward: codec, codecBackward: codec };
  const codecsBefore = MIXED[stage - 1] ?? MIXED[0]!;
  const { forward, backward } = MIXED[stage] ?? codecsBefore;
  return { codecForward: forward, codecBackward: backward, codecsBefore };
}

/** Parameters of a plausible size: gains near 1, weights and biases small; padding stays 0. */
export function testParams(spec: ModelSpec, stage: StageSpec, seed: number): Float32Array {
  const layout = stageLayout(spec, stage);
  const params = new Float32Array(layout.size);
  for (const { name, shape, offset, size } of layout.tensors) {
    const values = testValues(size, seed + offset);
    const gain = shape.length === 1 && !name.endsWith(".bias");
    params.set(values.map((value) => gain ? 1 + value / 4 : value / 3), offset);
  }
  return params;
}

export function testIds(spec: ModelSpec, seed: number): Uint32Array {
  const values = testValues(BATCH_SIZE * spec.block_size, seed);
  return Uint32Array.from(values, (value) => Math.floor((value + 1) / 2 * spec.vocab_size));
}

/** Everything that one micro-batch makes: what crossed boundaries, the loss, each stage's weight gradient. */
export interface MicroBatch {
  activations: Encoded[];
  gradients: Encoded[];
  loss: number;
  weightGrads: Float32Array[];
}

/**
 * One micro-batch in `slot`. With `fed`, every stage gets the boundary tensors of that other run, so that
 * differences of one stage do not travel to the next.
 */
export async function runMicroBatch(
  engines: readonly StageEngine[],
  ids: { tokens: Uint32Array; targets: Uint32Array },
  { slot, fed }: { slot: number; fed?: MicroBatch },
): Promise<MicroBatch> {
  const result: MicroBatch = { activations: [], gradients: [], loss: NaN, weightGrads: [] };
  for (const [i, engine] of engines.entries()) {
    const activation = i > 0 ? (fed ?? result).activations[i - 1]! : undefined;
    const output = await engine.forward(slot, {
      ...(i === 0 ? { tokens: ids.tokens } : {}),
      ...(activation ? { activation } : {}),
      ...(i === engines.length - 1 ? { targets: ids.targets } : {}),
    });
    if (output.activation) result.activations.push(output.activation);
    if (output.loss !== undefined) result.loss = output.loss;
  }
  let gradient: Encoded | null = null;
  for (let i = engines.length - 1; i >= 0; i--) {
    const incoming: Encoded | null = fed && i < engines.length - 1 ? fed.gradients[i]! : gradient;
    gradient = await engines[i]!.backward(slot, incoming);
    assert.equal(gradient === null, i === 0, "only the first stage sends no gradient");
    if (gradient) result.gradients[i - 1] = gradient;
    result.weightGrads[i] = await engines[i]!.weightGrad(slot);
  }
  return result;
}
