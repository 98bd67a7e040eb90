// States survive a file, and any cut can be assembled from any other; everything else is refused.
import assert from "node:assert/strict";
import { stateHash } from "../exact/hash.ts";
import type { StageState } from "../exact/state.ts";
import type { ModelSpec } from "../wire/run.ts";
import { EMBEDDING_NAME, splitLayers, stageLayout, wholeModel } from "./layout.ts";
import { nameWord, nearNormal, randomStream } from "./random.ts";
import { decodeSafetensors, type Tensor, type TensorMap, tensorOf } from "./safetensors.ts";
import {
  decodeState,
  encodeState,
  encodeWeights,
  initialState,
  llamaConfig,
  mergeStates,
  stateTensors,
} from "./state_file.ts";

const SPEC: ModelSpec = {
  ...{ vocab_size: 83, block_size: 8, n_layer: 4, n_head: 2, n_kv_head: 1, n_embd: 20, n_inner: 30 },
  ...{ tie_word_embeddings: false, rope_theta: 10000, norm_eps: 1e-5 },
};
const TIED = { ...SPEC, tie_word_embeddings: true };

/** States as after 12 steps, whose values depend on the tensor only, not on the cut. */
function statesOf(spec: ModelSpec, weights: number[]): StageState[] {
  return splitLayers(spec, weights).map((stage) => {
    const state = { ...initialState(spec, stage, 1), step: 12 };
    const { layout } = state;
    let block = 0;
    for (const { name, offset, size } of layout.tensors) {
      const next = randomStream([nameWord(name)]);
      for (let i = offset; i < offset + size; i++) {
        state.m[i] = nearNormal(next);
        state.v[i] = Math.abs(nearNormal(next));
      }
      for (let i = 0; i < Math.ceil(size / 1024); i++) state.exponents[block++] = next() % 121 - 60;
    }
    return state;
  });
}

function filesOf(spec: ModelSpec, weights: number[]): TensorMap[] {
  return statesOf(spec, weights).map((state) => {
    const file = decodeSafetensors(encodeState(state));
    assert.ok(file.ok);
    return file.value;
  });
}

Deno.test("state file: a state survives, bit for bit", () => {
  for (const spec of [SPEC, TIED]) {
    splitLayers(spec, [1, 2, 1]).forEach((stage, index) => {
      const state = statesOf(spec, [1, 2, 1])[index]!;
      const decoded = decodeState(spec, stage, encodeState(state));
      assert.ok(decoded.ok);
      assert.deepEqual(decoded.value, state);
    });
  }
});

Deno.test("state file: any cut is assembled from files of any other", () => {
  const cuts = [[1], [1, 1], [1, 2, 1], [1, 1, 1, 1]];
  for (const spec of [SPEC, TIED]) {
    for (const from of cuts) {
      const files = filesOf(spec, from);
      for (const to of cuts) {
        const expected = statesOf(spec, to);
        splitLayers(spec, to).forEach((stage, index) => {
          const merged = mergeStates(spec, files.toReversed(), stage);
          assert.ok(merged.ok, merged.ok ? "" : merged.reason);
          assert.equal(stateHash(merged.value), stateHash(expected[index]!));
        });
      }
    }
  }
});

/** Merges the whole model after `change` has spoilt the files of two stages. */
function refusal(spec: ModelSpec, change: (files: [TensorMap, TensorMap]) => TensorMap[] | void): string {
  const files = filesOf(spec, [1, 1]) as [TensorMap, TensorMap];
  const merged = mergeStates(spec, change(files) ?? files, wholeModel(spec));
  assert.ok(!merged.ok && merged.code === "bad-state");
  return merged.reason;
}

function edit(file: TensorMap, name: string, change: (tensor: Tensor) => void): void {
  const tensor = file.tensors.get(name)!;
  const copy = { ...tensor, bytes: tensor.bytes.slice() };
  change(copy);
  file.tensors.set(name, copy);
}

function setF32(tensor: Tensor, value: number): void {
  new DataView(tensor.bytes.buffer).setFloat32(4, value, true);
}

Deno.test("state file: older weights go with a state that has them, in any cut, and are checked like the others", () => {
  const delayed = (weights: number[]) =>
    statesOf(SPEC, weights).map((state) => {
      const before = { params: state.m.slice(), exponents: state.exponents.map((exponent) => -exponent) };
      return { ...state, before };
    });
  const files = delayed([3, 1]).map((state) => {
    const file = decodeSafetensors(encodeState(state));
    assert.ok(file.ok && file.value.metadata.delay === "1");
    return file.value;
  });
  const [wanted] = delayed([1, 3]);
  const merged = mergeStates(SPEC, files, splitLayers(SPEC, [1, 3])[0]!);
  assert.ok(merged.ok);
  assert.deepEqual(merged.value, wanted);
  assert.equal(stateHash(merged.value), stateHash(wanted!));
  const name = "model.norm.weight.before";
  files[1]!.tensors.delete(name);
  const refused = mergeStates(SPEC, files, wholeModel(SPEC));
  assert.ok(!refused.ok && refused.reason === `tensor ${name} is missing`);
});

Deno.test("state file: incomplete, repeated and mis-shaped tensors are refused by name", () => {
  const norm = "model.norm.weight";
  assert.match(refusal(SPEC, () => []), /no state file/);
  assert.match(refusal(SPEC, ([a]) => [a]), /tensor model.layers.2.input_layernorm.weight is missing/);
  assert.match(refusal(SPEC, ([a, b]) => [a, b, b]), /layers.2.input_layernorm.weight occurs 2 times/);
  for (const suffix of [".exp_avg", ".exp_avg_sq", ".grad_exponent"]) {
    assert.match(
      refusal(SPEC, ([, b]) => void b.tensors.delete(norm + suffix)),
      new RegExp(`${suffix} is missing`),
    );
  }
  assert.match(
    refusal(SPEC, ([, b]) => edit(b, norm, (tensor) => tensor.shape = [1, 20])),
    /model.norm.weight is F32 \[1,20\], expected F32 \[20\]/,
  );
  const short = tensorOf(new Int16Array(20), [20]);
  assert.match(refusal(SPEC, ([, b]) => void b.tensors.set(norm, short)), /is I16 \[20\]/);
});

Deno.test("state file: values that no run produces are refused", () => {
  const norm = "model.norm.weight";
  assert.match(refusal(SPEC, ([, b]) => edit(b, norm, (t) => setF32(t, NaN))), /norm.weight contains NaN/);
  assert.match(refusal(SPEC, ([, b]) => edit(b, norm, (t) => setF32(t, Infinity))), /contains Infinity/);
  assert.match(refusal(SPEC, ([, b]) => edit(b, `${norm}.exp_avg_sq`, (t) => setF32(t, -1))), /contains -1/);
  assert.match(
    refusal(SPEC, ([, b]) => edit(b, `${norm}.grad_exponent`, (t) => t.bytes.set([61, 0]))),
    /contains 61, allowed is ±60/,
  );
});

Deno.test("state file: other steps and versions are refused", () => {
  assert.match(refusal(SPEC, ([, b]) => void (b.metadata.step = "13")), /of steps "12" and "13"/);
  assert.match(refusal(SPEC, ([, b]) => void (b.metadata.step = "-1")), /"-1" is not a step number/);
  assert.match(refusal(SPEC, ([a]) => void delete a.metadata.step), /\(absent\) is not a step number/);
  assert.match(refusal(SPEC, ([a]) => void (a.metadata.format_version = "2")), /version "2" is not 1/);
});

Deno.test("state file: the tied embedding's copies must agree", () => {
  const flip = (tensor: Tensor) => tensor.bytes[3]! ^= 1;
  assert.match(refusal(TIED, ([, b]) => edit(b, EMBEDDING_NAME, flip)), /two copies of tensor model.embed/);
  assert.match(refusal(TIED, ([, b]) => edit(b, `${EMBEDDING_NAME}.exp_avg`, flip)), /exp_avg differ/);
  assert.match(
    refusal(TIED, ([a, b]) => [a, b, { ...a, tensors: new Map([...a.tensors]) }]),
    /occurs 3 times/,
  );
});

Deno.test("state file: the weights alone are one file under Hugging Face's names", () => {
  const weights = encodeWeights(TIED, filesOf(TIED, [1, 1]));
  assert.ok(weights.ok);
  const file = decodeSafetensors(weights.value);
  assert.ok(file.ok);
  const names = stageLayout(TIED, wholeModel(TIED)).tensors.map(({ name }) => name);
  assert.deepEqual([...file.value.tensors.keys()], names);
  assert.equal(file.value.metadata.format, "pt");
  assert.equal(llamaConfig(TIED).head_dim, 10);
  const incomplete = encodeWeights(TIED, filesOf(TIED, [1, 1]).slice(1));
  assert.ok(!incomplete.ok && /input_layernorm.weight is missing/.test(incomplete.reason));
});

Deno.test("state file: the tensors of a stage carry PyTorch's names of the moments", () => {
  const [state] = statesOf(SPEC, [1, 1]);
  const { tensors } = stateTensors(state!);
  assert.equal(tensors.size, 4 * state!.layout.tensors.length);
  assert.deepEqual(tensors.get("model.embed_tokens.weight.exp_avg_sq")!.shape, [83, 20]);
  assert.deepEqual(tensors.get("model.embed_tokens.weight.grad_exponent")!.shape, [2]);
});
