// A stage's gradients by central differences through every weight, and the pipeline cut: two stages must equal one.
import assert from "node:assert/strict";
import fc from "fast-check";
import { stageLayout, wholeModel } from "../../peer/model/layout.ts";
import type { ModelSpec, StageSpec } from "../../peer/wire/run.ts";
import { checkGradient, inner, randomArray, randomTokens, relativeError } from "./check.ts";
import { stageForward, stageInputGrad, stageShape, stageWeightGrad, viewParams } from "./stage.ts";

const tiny: ModelSpec = {
  vocab_size: 5,
  block_size: 3,
  n_layer: 2,
  n_head: 2,
  n_kv_head: 1,
  n_embd: 4,
  n_inner: 3,
  tie_word_embeddings: false,
  rope_theta: 100,
  norm_eps: 1e-5,
};

/** One stage with its inputs and everything F, B and W produced. */
function runStage(spec: ModelSpec, stage: StageSpec, io: { flat: Float64Array; activation?: Float64Array }) {
  const B = 2, R = B * spec.block_size;
  const shape = stageShape(spec, stage, B), params = viewParams(spec, stage, io.flat);
  const input = {
    tokens: randomTokens(1, R, spec.vocab_size),
    targets: randomTokens(2, R, spec.vocab_size),
    ...(io.activation ? { activation: io.activation } : {}),
  };
  return { shape, params, input, forward: () => stageForward(shape, params, input) };
}

/** B then W; returns dInput and the flat gradient. */
function runBackward(
  spec: ModelSpec,
  stage: StageSpec,
  { run, dOutput }: { run: ReturnType<typeof runStage>; dOutput?: Float64Array },
) {
  const { saved } = run.forward();
  const back = stageInputGrad(run.shape, run.params, { saved, ...(dOutput ? { dOutput } : {}) });
  const flat = new Float64Array(stageLayout(spec, stage).size);
  stageWeightGrad(run.shape, viewParams(spec, stage, flat), { saved, pending: back.pending });
  return { dInput: back.dInput, flat };
}

function randomParams(spec: ModelSpec, stage: StageSpec): Float64Array {
  const layout = stageLayout(spec, stage), flat = new Float64Array(layout.size);
  layout.tensors.forEach((tensor, i) => flat.set(randomArray(10 + i, tensor.size), tensor.offset));
  return flat;
}

/** Loss of the whole model, its gradient, and the parameters that both depend on. */
function checkWhole(spec: ModelSpec): void {
  const stage = wholeModel(spec), flat = randomParams(spec, stage);
  const run = runStage(spec, stage, { flat });
  const { dInput, flat: gradient } = runBackward(spec, stage, { run });
  assert.equal(dInput, undefined);
  checkGradient(() => run.forward().loss!, flat, gradient);
}

/** Its eps is large because LayerNorm of two values is nearly a step, which differences cannot follow. */
const gpt2: ModelSpec = { ...tiny, architecture: "gpt2", n_kv_head: tiny.n_head, norm_eps: 0.1 };
const models = [tiny, gpt2].flatMap((spec) =>
  [false, true].map((tied): ModelSpec => ({ ...spec, tie_word_embeddings: tied }))
);

/** For the names of tests. */
function named({ architecture, tie_word_embeddings }: ModelSpec): string {
  return `${architecture ?? "llama"}, tied ${tie_word_embeddings}`;
}

for (const spec of models) {
  Deno.test(`a two-layer model's weight gradient agrees with central differences, ${named(spec)}`, () => {
    checkWhole(spec);
  });
}

const specs = fc.record({
  vocab_size: fc.constantFrom(1, 2, 7),
  block_size: fc.constantFrom(1, 2, 5),
  heads: fc.constantFrom([1, 1], [2, 1], [2, 2], [3, 1]),
  half: fc.constantFrom(1, 2, 3),
  n_inner: fc.constantFrom(1, 5),
  tie_word_embeddings: fc.boolean(),
  like: fc.constantFrom(tiny, gpt2),
}).map(({ heads: [n_head, n_kv_head], half, like, ...rest }): ModelSpec => ({
  ...{ ...like, ...rest, n_layer: 1 },
  ...{ n_head: n_head!, n_kv_head: like.architecture ? n_head! : n_kv_head!, n_embd: n_head! * half * 2 },
}));

Deno.test("weight gradients of random odd shapes agree with central differences", () => {
  fc.assert(fc.property(specs, checkWhole), { seed: 13, numRuns: 12 });
});

for (const spec of [tiny, gpt2]) {
  Deno.test(`a middle stage's gradients agree with central differences, ${named(spec)}`, () => {
    const stage = { index: 1, firstLayer: 1, endLayer: 2, embed: false, head: false };
    const activation = randomArray(3, 6 * 4), dOutput = randomArray(4, 6 * 4);
    const flat = randomParams(spec, stage);
    const run = runStage(spec, stage, { flat, activation });
    const { dInput, flat: gradient } = runBackward(spec, stage, { run, dOutput });
    const loss = () => inner(run.forward().output!, dOutput);
    checkGradient(loss, activation, dInput!);
    checkGradient(loss, flat, gradient);
  });
}

for (const spec of models) {
  Deno.test(`two stages give the loss and gradients of one, ${named(spec)}`, () => {
    const one = wholeModel(spec);
    const first = { index: 0, firstLayer: 0, endLayer: 1, embed: true, head: false };
    const last = { index: 1, firstLayer: 1, endLayer: 2, embed: false, head: true };
    const flat = randomParams(spec, one);
    const head = runStage(spec, first, { flat: part(spec, first, flat) });
    const activation = head.forward().output!;
    const tail = runStage(spec, last, { flat: part(spec, last, flat), activation });
    const whole = runStage(spec, one, { flat });
    assert.equal(tail.forward().loss, whole.forward().loss);

    const tailBack = runBackward(spec, last, { run: tail });
    const headBack = runBackward(spec, first, { run: head, dOutput: tailBack.dInput! });
    const sum = new Float64Array(flat.length);
    addPart(spec, first, { sum, from: headBack.flat });
    addPart(spec, last, { sum, from: tailBack.flat });
    assert(relativeError(sum, runBackward(spec, one, { run: whole }).flat) < 1e-14);
  });
}

/** A stage's own flat parameters, taken by name from the whole model's. */
function part(spec: ModelSpec, stage: StageSpec, flat: Float64Array): Float64Array {
  const out = new Float64Array(stageLayout(spec, stage).size);
  eachShared(spec, stage, (to, from, size) => out.set(flat.subarray(from, from + size), to));
  return out;
}

function addPart(
  spec: ModelSpec,
  stage: StageSpec,
  { sum, from }: Record<"sum" | "from", Float64Array>,
): void {
  eachShared(spec, stage, (own, whole, size) => {
    for (let i = 0; i < size; i++) sum[whole + i]! += from[own + i]!;
  });
}

function eachShared(
  spec: ModelSpec,
  stage: StageSpec,
  visit: (own: number, whole: number, size: number) => void,
): void {
  const whole = stageLayout(spec, wholeModel(spec)).tensors;
  for (const tensor of stageLayout(spec, stage).tensors) {
    visit(tensor.offset, whole.find(({ name }) => name === tensor.name)!.offset, tensor.size);
  }
}
