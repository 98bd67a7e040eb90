// The engine's contract: gradients that finite differences confirm, bits that do not depend on the cut, the slot
// protocol, refusals of foreign tensors, and memory that equals what is really held.
import assert from "node:assert/strict";
import { stageForward, stageInputGrad, stageShape, viewParams } from "../../shaders/reference/stage.ts";
import { randomArray, randomTokens, relativeError } from "../../shaders/reference/check.ts";
import { encodeTensor } from "../codec/codec.ts";
import { cpuSlotBytes } from "../model/cpu_memory.ts";
import { findTensor, splitLayers, stageLayout, wholeModel } from "../model/layout.ts";
import type { StageLayout } from "../model/layout.ts";
import { ShoalError } from "../wire/errors.ts";
import type { CodecId, Encoded, LoraSpec, ModelSpec, StageSpec } from "../wire/run.ts";
import { createCpuEngine } from "./cpu.ts";
import type { StageEngine } from "./engine.ts";

const spec: ModelSpec = {
  vocab_size: 7,
  block_size: 5,
  n_layer: 3,
  n_head: 2,
  n_kv_head: 1,
  n_embd: 8,
  n_inner: 6,
  tie_word_embeddings: false,
  rope_theta: 10000,
  norm_eps: 1e-5,
};
const gpt2: ModelSpec = { ...spec, architecture: "gpt2", n_kv_head: spec.n_head };
const B = 2, R = B * spec.block_size;
const tokens = randomTokens(1, R, spec.vocab_size), targets = randomTokens(2, R, spec.vocab_size);

/** Every tensor's values depend on its name's place in the whole model, so each cut gets the same weights. */
function paramsOf(model: ModelSpec, stage: StageSpec): Float32Array {
  const layout = stageLayout(model, stage), whole = stageLayout(model, wholeModel(model));
  const flat = new Float32Array(layout.size);
  for (const tensor of layout.tensors) {
    const seed = findTensor(whole, tensor.name)!.offset;
    flat.set(randomArray(seed, tensor.size, 0.5), tensor.offset);
  }
  return flat;
}

interface BuildOptions {
  codec?: CodecId;
  slots?: number;
}

async function build(model: ModelSpec, stage: StageSpec, options: BuildOptions = {}): Promise<StageEngine> {
  const { codec = "raw32", slots = 1 } = options;
  const engine = createCpuEngine({
    ...{ spec: model, stage, batchSize: B, slots },
    ...{ codecForward: codec, codecBackward: codec },
  });
  await engine.load(paramsOf(model, stage));
  return engine;
}

/** F, B and W of one micro-batch through a cut; the gradient of each tensor by name. */
async function trainOnce(model: ModelSpec, stages: StageSpec[], options: BuildOptions = {}) {
  const engines = await Promise.all(stages.map((stage) => build(model, stage, options)));
  let activation: Encoded | undefined, loss: number | undefined;
  for (const engine of engines) {
    ({ activation, loss } = { loss: undefined, activation: undefined, ...await forward(engine, activation) });
  }
  let gradient: Encoded | null = null;
  for (const engine of engines.toReversed()) gradient = await engine.backward(0, gradient);
  assert.equal(gradient, null);
  const grads = new Map<string, Float32Array>();
  for (const [i, engine] of engines.entries()) {
    collect(grads, stageLayout(model, stages[i]!), await engine.weightGrad(0));
  }
  return { loss: loss!, grads };
}

function forward(engine: StageEngine, activation: Encoded | undefined) {
  return engine.forward(0, { tokens, targets, ...(activation ? { activation } : {}) });
}

function collect(grads: Map<string, Float32Array>, layout: StageLayout, flat: Float32Array): void {
  for (const { name, offset, size } of layout.tensors) {
    const own = flat.subarray(offset, offset + size), other = grads.get(name);
    grads.set(name, other ? own.map((value, i) => value + other[i]!) : own);
  }
}

Deno.test("the cpu engine's weight gradient agrees with differences of its own loss", async () => {
  const stage = wholeModel(spec), engine = await build(spec, stage), params = paramsOf(spec, stage);
  await engine.forward(0, { tokens, targets });
  await engine.backward(0, null);
  const gradient = await engine.weightGrad(0);
  // Along the gradient itself, every parameter takes part at once. The step is large because activations are f32.
  const norm = Math.hypot(...gradient), step = 1e-2;
  async function lossAt(distance: number): Promise<number> {
    await engine.load(params.map((value, i) => value + distance * gradient[i]! / norm));
    return (await engine.forward(null, { tokens, targets })).loss!;
  }
  const slope = (await lossAt(step) - await lossAt(-step)) / (2 * step);
  assert(Math.abs(slope / norm - 1) < 1e-3, `slope ${slope}, gradient norm ${norm}`);
});

Deno.test("every cut of an untied model gives the same bits with raw32", async () => {
  for (const model of [spec, gpt2]) {
    const one = await trainOnce(model, [wholeModel(model)]);
    for (const weights of [[1, 1], [2, 1], [1, 1, 1]]) {
      assert.deepEqual(await trainOnce(model, splitLayers(model, weights)), one, `cut ${weights}`);
    }
  }
});

Deno.test("a tied model's two partial gradients add up to the whole model's", async () => {
  const tied = { ...spec, tie_word_embeddings: true };
  const one = await trainOnce(tied, [wholeModel(tied)]),
    two = await trainOnce(tied, splitLayers(tied, [1, 2]));
  assert.equal(two.loss, one.loss);
  assert.deepEqual([...two.grads.keys()].sort(), [...one.grads.keys()].sort());
  for (const [name, grad] of one.grads) assert(relativeError(two.grads.get(name)!, grad) < 1e-6, name);
});

// A half is off by at most 2^-11 of each value, a code by 1/254 of its block's largest; four boundaries and the layers
// between them amplify that to 1e-3 and 3e-2 here, and the bounds are twice as wide.
for (const [codec, tolerance] of [["f16s", 2e-3], ["i8b64", 6e-2]] as const) {
  Deno.test(`three stages over ${codec} stay near the exact gradient`, async () => {
    const exact = await trainOnce(spec, [wholeModel(spec)]);
    const coded = await trainOnce(spec, splitLayers(spec, [1, 1, 1]), { codec });
    assert(Math.abs(coded.loss - exact.loss) < tolerance * exact.loss);
    for (const [name, grad] of exact.grads) {
      assert(relativeError(coded.grads.get(name)!, grad) < tolerance, name);
    }
    assert.notDeepEqual(coded.grads, exact.grads);
  });
}

Deno.test("the same micro-batch gives the same bits in any slot, in any order, on another engine", async () => {
  const stage = wholeModel(spec), first = await build(spec, stage, { slots: 2 });
  const other = { tokens: targets, targets: tokens };
  await first.forward(1, other);
  await first.forward(0, { tokens, targets });
  await first.backward(0, null);
  await first.backward(1, null);
  const before = await first.weightGrad(1), mine = await first.weightGrad(0);
  const { grads } = await trainOnce(spec, [stage]);
  const again = new Map<string, Float32Array>();
  collect(again, stageLayout(spec, stage), mine);
  assert.deepEqual(again, grads);
  assert.notDeepEqual(before, mine);
});

Deno.test("padding of the weight gradient is zero and the caller may reuse its arrays", async () => {
  const stage = wholeModel(spec), engine = await build(spec, stage);
  const own = { tokens: tokens.slice(), targets: targets.slice() };
  await engine.forward(0, own);
  own.tokens.fill(0);
  own.targets.fill(0);
  await engine.backward(0, null);
  const flat = await engine.weightGrad(0), layout = stageLayout(spec, stage);
  const grads = new Map<string, Float32Array>();
  collect(grads, layout, flat);
  assert.deepEqual(grads, (await trainOnce(spec, [stage])).grads);
  for (const { offset, size } of layout.tensors) flat.fill(0, offset, offset + size);
  assert(flat.every((value) => value === 0));
});

Deno.test("an evaluation saves nothing", async () => {
  const engine = await build(spec, wholeModel(spec));
  const { loss } = await engine.forward(null, { tokens, targets });
  assert.equal(loss, (await engine.forward(0, { tokens, targets })).loss);
});

Deno.test("operations out of order are our own mistakes", async () => {
  const engine = await build(spec, wholeModel(spec));
  await assert.rejects(engine.backward(0, null), /not ready for its backward/);
  await assert.rejects(engine.forward(3, { tokens, targets }), /no slot 3/);
  await engine.forward(0, { tokens, targets });
  await assert.rejects(engine.forward(0, { tokens, targets }), /still holds/);
  await assert.rejects(engine.weightGrad(0), /not ready for its weight gradient/);
  await engine.backward(0, null);
  await assert.rejects(engine.backward(0, null), /not ready for its backward/);
  await engine.weightGrad(0);
  engine.destroy();
  await assert.rejects(engine.forward(0, { tokens, targets }), /destroyed/);
});

Deno.test("foreign and misfit inputs are refused with a code", async () => {
  const stage = splitLayers(spec, [1, 1, 1])[1]!, engine = await build(spec, stage);
  const activation = {
    codec: "raw32",
    exponent: 0,
    rows: R,
    cols: 8,
    payload: new Uint8Array(R * 32),
  } as const;
  async function code(work: Promise<unknown>): Promise<string> {
    const error = await work.then(() => null, (reason: unknown) => reason);
    assert(error instanceof ShoalError);
    return error.code;
  }
  assert.equal(await code(engine.forward(0, { activation: { ...activation, rows: R - 1 } })), "bad-frame");
  const nan = new Uint8Array(R * 32).fill(255);
  assert.equal(await code(engine.forward(0, { activation: { ...activation, payload: nan } })), "bad-frame");
  assert.equal(await code(engine.load(new Float32Array(3))), "bad-state");
  const whole = await build(spec, wholeModel(spec));
  const wrong = tokens.map((token, i) => i === 4 ? spec.vocab_size : token);
  assert.equal(await code(whole.forward(0, { tokens: wrong, targets })), "bad-corpus");
  // A refusal leaves the slot free: the neighbour may send the tensor again.
  assert.equal((await engine.forward(0, { activation })).activation!.rows, R);
});

/** Bytes of all distinct array buffers reachable from a value. */
function heldBytes(value: unknown, seen = new Set<ArrayBufferLike>()): number {
  if (ArrayBuffer.isView(value)) {
    const known = seen.has(value.buffer);
    seen.add(value.buffer);
    return known ? 0 : value.byteLength;
  }
  if (typeof value !== "object" || value === null) return 0;
  return Object.values(value).reduce((sum: number, member) => sum + heldBytes(member, seen), 0);
}

const cuts = [wholeModel(spec), ...splitLayers(spec, [1, 1, 1])];
for (const [model, stage] of [spec, gpt2].flatMap((model) => cuts.map((cut) => [model, cut] as const))) {
  const name = `${model.architecture ?? "llama"}, stage ${stage.index} with ${
    stage.endLayer - stage.firstLayer
  } layers`;
  Deno.test(`the predicted slot holds what a slot really holds: ${name}`, () => {
    const shape = stageShape(model, stage, B);
    const params = viewParams(model, stage, Float64Array.from(paramsOf(model, stage)));
    const activation = stage.embed ? {} : { activation: randomArray(3, R * 8) };
    const { saved } = stageForward(shape, params, {
      ...(stage.embed ? { tokens } : activation),
      ...(stage.head ? { targets } : {}),
    });
    const dOutput = stage.head ? {} : { dOutput: randomArray(4, R * 8) };
    const { pending } = stageInputGrad(shape, params, { saved, ...dOutput });
    assert.equal(cpuSlotBytes(shape, stage.endLayer - stage.firstLayer), heldBytes({ saved, pending }));
  });
}

Deno.test("memory beside adapters is their stacked values and gradients, and the products of the widest group", async () => {
  const adapters: LoraSpec = { rank: 3, alpha: 3, targets: ["q_proj", "v_proj", "up_proj"] };
  const stage = { index: 1, firstLayer: 1, endLayer: 3, embed: false, head: false };
  const codecs = { codecForward: "raw32", codecBackward: "raw32" } as const;
  const engine = createCpuEngine({ spec, stage, batchSize: B, slots: 1, ...codecs, adapters });
  const { params, scratch } = engine.memory();
  // q and v are six ranks beside 16 rows and 8 columns, up three beside 12 and 8; whole fours, and places in whole 64s.
  const floats = 2 * (64 + 128 + 64 + 64);
  assert.equal(params, 8 * (stageLayout(spec, stage).size + floats));
  const trained = stageLayout({ ...spec, lora: adapters }, stage).size;
  assert.equal(scratch, 8 * (floats + 8 * (2 * R + 16 + 8)) + 4 * trained);
  await engine.load(paramsOf(spec, stage));
  await engine.loadAdapters!(new Float32Array(trained));
  await engine.forward(0, { activation: encodeTensor("raw32", randomArrayF32(R * 8), R, 8) });
  await engine.backward(0, encodeTensor("raw32", randomArrayF32(R * 8), R, 8));
  assert.equal((await engine.weightGrad(0)).length, trained);
});

function randomArrayF32(size: number): Float32Array {
  return Float32Array.from(randomArray(3, size, 1));
}

Deno.test("memory counts every slot", async () => {
  const [one, three] = [
    await build(spec, wholeModel(spec)),
    await build(spec, wholeModel(spec), { slots: 3 }),
  ];
  assert.equal(three.memory().activations, 3 * one.memory().activations);
  assert.equal(one.memory().params, stageLayout(spec, wholeModel(spec)).size * 8);
});
