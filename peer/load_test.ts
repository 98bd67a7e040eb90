// What an engine is built from, and when a view's plan needs another engine than the one that is there.
import assert from "node:assert/strict";
import { readConfig } from "./model/config.ts";
import { specOf } from "./model/layout.ts";
import { initialState, stateHash } from "./model/state_file.ts";
import { createCpuEngine } from "./engine/cpu.ts";
import { buildOf, type HolderOptions, instanceKey, loadInstance } from "./load.ts";
import type { StateFile } from "./wire/control.ts";
import type { BoundaryCodecs, StagePlan, View } from "./wire/run.ts";

const config = readConfig({ batch_size: 3 });
const options: HolderOptions = {
  ...{ self: "a", config, spec: specOf(config, 20), corpus: new Uint8Array(0) },
  createEngine: () => Promise.reject(new Error("not asked for")),
  fetchState: () => Promise.reject(new Error("not asked for")),
};
const plan: StagePlan = {
  ...{ index: 1, firstLayer: 1, endLayer: 3, embed: false, head: false, inflight: 4 },
  replicas: [{ peer: "a", microBatches: [0] }, { peer: "b", microBatches: [] }],
};
const view: View = {
  ...{ gen: 2, cut: 2, baseStep: 0, stages: [plan], schedule: "dynamic" },
  ...{ codecForward: "i8b64", codecBackward: "f16s" },
};
const PLAIN: BoundaryCodecs = { forward: "i8b64", backward: "f16s" };
const MIXED: BoundaryCodecs[] = [
  { forward: "f16s", backward: "raw32" },
  { forward: "raw32", backward: "i8b64" },
];

Deno.test("load: an engine is built as the plan says, without recomputation where the plan says nothing", () => {
  assert.deepEqual(buildOf(options, plan, view), {
    ...{ spec: options.spec, stage: { index: 1, firstLayer: 1, endLayer: 3, embed: false, head: false } },
    ...{ batchSize: 3, slots: 4, codecForward: "i8b64", codecBackward: "f16s", recompute: "none" },
    codecsBefore: { forward: "i8b64", backward: "f16s" },
    optimizer: "exact",
    dtype: "f32",
  });
  assert.equal(buildOf(options, { ...plan, recompute: "block" }, view).recompute, "block");
});

Deno.test("load: codecs of the boundaries before and after the stage are the view's own", () => {
  const { codecsBefore, codecForward, codecBackward } = buildOf(options, plan, { ...view, codecs: MIXED });
  assert.deepEqual([codecsBefore, { forward: codecForward, backward: codecBackward }], MIXED);
});

Deno.test("load: an engine is kept only for the same layers, slots, codecs, recomputation and role", () => {
  const key = instanceKey(plan, view, "a");
  assert.equal(instanceKey({ ...plan, recompute: "none" }, { ...view, gen: 3 }, "a"), key);
  const others = [
    instanceKey({ ...plan, recompute: "block" }, view, "a"),
    instanceKey({ ...plan, recompute: "attention" }, view, "a"),
    instanceKey({ ...plan, optimizer: "gpu" }, view, "a"),
    instanceKey({ ...plan, inflight: 3 }, view, "a"),
    instanceKey({ ...plan, endLayer: 2 }, view, "a"),
    instanceKey(plan, { ...view, codecBackward: "i8b64" }, "a"),
    ...[0, 1].map((s) => instanceKey(plan, { ...view, codecs: MIXED.with(s, PLAIN) }, "a")),
    instanceKey(plan, { ...view, codecs: MIXED }, "a"),
    instanceKey(plan, view, "b"),
  ];
  assert.equal(new Set([key, ...others]).size, others.length + 1);
});

Deno.test("load: a shadow has what its engine will need before it has an engine", async () => {
  const fetched: number[] = [], made: number[] = [];
  const own: HolderOptions = {
    ...options,
    prefetch: (stage) => Promise.resolve(void fetched.push(stage.index)),
    createEngine: (build) =>
      Promise.resolve(createCpuEngine(build)).finally(() => made.push(build.stage.index)),
  };
  const request = { plan, view, source: null, reuse: null, before: null };
  const shadow = await loadInstance({ ...own, self: "b" }, request);
  assert.deepEqual([shadow.engine, fetched, made], [null, [1], []]);
  const held = await loadInstance(own, request);
  assert.deepEqual([fetched, made], [[1], [1]]);
  held.engine!.destroy();
});

/** A view that begins with a model: of two files, one layer each, what stage 1 of `plan` is. */
function begun(changes: Partial<StateFile> = {}, step = 0) {
  const spec = specOf(readConfig({ batch_size: 3, n_layer: 3 }), 20);
  const whole = initialState(spec, plan, 5);
  const file = (firstLayer: number): StateFile => {
    const range = { firstLayer, endLayer: firstLayer + 1, embed: false, head: false };
    return { stage: firstLayer, ...range, bytes: 9, hash: "of another cut", base: "b", ...changes };
  };
  const asked: string[] = [];
  const own: HolderOptions = {
    ...options,
    spec,
    self: "b",
    fetchWeights: (stage, hash) => {
      asked.push(`${stage.firstLayer}-${stage.endLayer} ${hash}`);
      return Promise.resolve(whole.params.slice());
    },
    fetchState: (step, { stage }) => Promise.reject(new Error(`state ${step}/${stage}`)),
  };
  const source = { step, files: [1, 2].map(file) };
  const load = (files = source.files) =>
    loadInstance(own, { plan, view, source: { step, files }, reuse: null, before: null });
  return { whole, asked, source, load };
}

Deno.test("load: what a run begins with is fetched as weights of this stage; its moments are zero", async () => {
  const { whole, asked, load } = begun();
  assert.deepEqual((await load()).state, whole);
  assert.deepEqual(asked, ["1-3 b"]);
  const { firstLayer, endLayer, embed, head } = plan;
  const same = { stage: 1, firstLayer, endLayer, embed, head, bytes: 9, base: "b" };
  await load([{ ...same, hash: stateHash(whole) }]);
  await assert.rejects(load([{ ...same, hash: "x" }]), /stage 1 has hash .* expected x/);
});

Deno.test("load: any other state comes from its files", async () => {
  const { base: _, ...plain } = begun().source.files[0]!;
  await assert.rejects(begun({}, 1).load(), /state 1\/1/);
  await assert.rejects(begun().load([plain, begun().source.files[1]!]), /state 0\/1/);
  const [first, second] = begun().source.files;
  await assert.rejects(begun().load([first!, { ...second!, base: "c" }]), /state 0\/1/);
});
