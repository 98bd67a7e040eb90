// The autotune on this machine's adapter: its check refuses kernels that are really wrong, and engines that were tuned give
// the results of those that were not. How quick anything is decides no test.
import assert from "node:assert/strict";
import { TunedEngines } from "../../peer/engine/tuned.ts";
import { tuningText } from "../../peer/engine/tuning_text.ts";
import { createWgslEngine } from "../../peer/engine/wgsl.ts";
import { planStage } from "../../peer/engine/wgsl_plan.ts";
import { productsOf } from "../../peer/engine/wgsl_products.ts";
import type { KernelSpec } from "../../peer/gpu/kernel.ts";
import { matmulTraits, pickMatmul, presumedChoice, productClass } from "../../peer/gpu/kernels/matmul.ts";
import { MATMUL_FAMILY, MATMUL_LAYOUTS, memberSpec } from "../../peer/gpu/kernels/matmul_family.ts";
import {
  fusedSpec,
  fusionLayout,
  MATMUL_FUSIONS,
  type MatmulFusion,
} from "../../peer/gpu/kernels/matmul_fused.ts";
import { shaderLibrary } from "../../peer/gpu/library.ts";
import { linkShader } from "../../peer/gpu/link.ts";
import type { FusedCandidate } from "../../peer/gpu/tune_fused.ts";
import { type Candidate, type Product, type TuneTools, Tuning } from "../../peer/gpu/tune.ts";
import { tuneTools } from "../../peer/gpu/tune_device.ts";
import { MemoryNotes } from "../../peer/store/notes.ts";
import { PRODUCT_SLICES } from "../../peer/model/product_slices.ts";
import { buildsOf, runMicroBatch, testIds, testParams, tinySpec } from "./engine_support.ts";
import { onAdapter, relL2, testDevice } from "./support.ts";

const gpu = await testDevice();
const shape = { M: 64, N: 32, K: 256 };

function candidateOf(name: string, slices = 1): Candidate {
  const spec = memberSpec(MATMUL_FAMILY.find((member) => member.name === name)!, "tn", shape)!;
  return { member: name, slices, layout: "tn", shape, spec };
}

/** The kernel with one text of its linked WGSL replaced. */
function doctored(spec: KernelSpec, from: string, to: string): KernelSpec {
  const linked = linkShader(spec.wgsl, shaderLibrary);
  assert.ok(linked.includes(from), `${spec.name} does not contain ${from}`);
  return { ...spec, name: `${spec.name} with ${to}`, wgsl: linked.replace(from, to) };
}

/** Mistakes that only some shapes, places or terms show. */
const mistakes: [what: string, from: string, to: string][] = [
  ["the last k is left out", "k < fours.y", "k + 1u < fours.y"],
  ["two operands change places", "tileB * tileA[i]", "tileA[i] * tileB"],
  ["the row is off by one", "let row = id.y * 4u * ROWS4;", "let row = id.y * 4u * ROWS4 + 1u;"],
  ["the residual is forgotten", "value += wideOut(residual[at]);", "value += 0.0;"],
  ["NaN comes out", "out[at] = narrowOut(value);", "out[at] = narrowOut(value / f32(params.K - params.K));"],
];

Deno.test(onAdapter(gpu, "the check takes sound kernels and names what is wrong with others"), async () => {
  const tools = tuneTools(gpu);
  const sound = candidateOf("registers 8x4");
  assert.equal(await tools.check(sound), null);
  assert.equal(await tools.check({ ...sound, slices: PRODUCT_SLICES }), null);
  for (const [what, from, to] of mistakes) {
    const reason = await tools.check({ ...sound, spec: doctored(sound.spec, from, to) });
    assert.match(reason ?? "", /sums are wrong/, what);
  }
  const broken = {
    ...sound.spec,
    name: "broken tuning kernel",
    wgsl: `${sound.spec.wgsl}\nfn f() { let x = y; }`,
  };
  assert.match(await tools.check({ ...sound, spec: broken }) ?? "", /does not compile/);
});

Deno.test(onAdapter(gpu, "slices that overlap are found out"), async () => {
  const sliced = candidateOf("registers 8x4", PRODUCT_SLICES);
  const spec = doctored(sliced.spec, "let first = slice * params.sliceK;", "let first = 4u * slice;");
  assert.equal(
    await tuneTools(gpu).check({ ...sliced, slices: 1, spec }),
    null,
    "without slices it is sound",
  );
  assert.match(await tuneTools(gpu).check({ ...sliced, spec }) ?? "", /sums are wrong/);
});

Deno.test(onAdapter(gpu, "a really wrong kernel does not win, though it is the quickest"), async () => {
  const real = tuneTools(gpu);
  const [first] = presumedChoice(matmulTraits(gpu)).preferred;
  const tools: TuneTools = {
    check: (candidate) => {
      if (candidate.member !== first) return Promise.resolve(null);
      return real.check({
        ...candidate,
        spec: doctored(candidate.spec, "out[at] = narrowOut(value);", "out[at] = narrowOut(2.0 * value);"),
      });
    },
    time: ({ member }) => Promise.resolve(member === first ? 0.001 : 1),
    checkFused: (candidate) => real.checkFused(candidate),
    timeFused: () => Promise.resolve({ fused: 1, apart: 1 }),
    release: () => real.release(),
    nowMs: () => 0,
  };
  const tuning = new Tuning(matmulTraits(gpu), tools);
  const product: Product = { layout: "nt", ...shape, count: 1 };
  await tuning.run([product]);
  assert.equal(tuning.excluded.length, 1);
  assert.match(tuning.excluded[0]!.reason, /sums are wrong/);
  assert.notEqual(tuning.choices[0]?.member, first);
  assert.notEqual(pickMatmul("nt", shape, tuning.choice()).member.name, first);
});

/** Every fused kernel of a member, as the stage of an engine would ask for it. */
function fusedCandidate(fusion: MatmulFusion): FusedCandidate {
  const member = MATMUL_FAMILY.find(({ name }) => name === "registers 8x4")!;
  const params = { M: 132, N: 64, K: 32, T: 33, D: 16, turned: 48, residual: fusion === "bias" ? 1 : 0 };
  const plain = memberSpec(member, fusionLayout(fusion), { M: 132, N: 64, K: 32 })!;
  return {
    fusion,
    member: member.name,
    plain,
    spec: fusedSpec(member, fusion, { M: 4, N: 4, K: 4 })!,
    params,
  };
}

/** Mistakes in what a kernel does after its product. */
const fusedMistakes: [fusion: MatmulFusion, from: string, to: string][] = [
  ["rotary", "column < params.turned", "column + 4u < params.turned"],
  ["swiglu", "gate_up[at + width] = narrowTwo(up)", "gate_up[at + width] = narrowTwo(gate)"],
  ["swiglu_backward", "gate * s.opposite", "gate * s.plain"],
  ["bias", "value += wideOut(residual[at])", "value -= wideOut(residual[at])"],
  ["gelu", "up[at] = narrowOut(tile[i])", "up[at] = narrowOut(z)"],
  ["gelu_backward", "sigmoid(-argument)", "sigmoid(argument)"],
];

Deno.test(onAdapter(gpu, "fused kernels are checked, and timed beside what they stand for"), async () => {
  const tools = tuneTools(gpu);
  for (const fusion of MATMUL_FUSIONS) {
    const candidate = fusedCandidate(fusion);
    assert.equal(await tools.checkFused(candidate), null, fusion);
    const { fused, apart } = await tools.timeFused(candidate);
    assert.ok(fused > 0 && apart > 0 && Number.isFinite(fused + apart), `${fused} and ${apart} ms`);
  }
  for (const [fusion, from, to] of fusedMistakes) {
    const candidate = fusedCandidate(fusion);
    const reason = await tools.checkFused({ ...candidate, spec: doctored(candidate.spec, from, to) });
    assert.match(reason ?? "", /values are wrong/, to);
  }
});

const refusing: TuneTools = {
  check: () => Promise.reject(new Error("it was measured again")),
  time: () => Promise.reject(new Error("it was measured again")),
  checkFused: () => Promise.reject(new Error("it was measured again")),
  timeFused: () => Promise.reject(new Error("it was measured again")),
  release: () => {},
  nowMs: () => 0,
};

Deno.test(
  onAdapter(gpu, "a tuned engine computes what an untuned one does, and the next one asks its notes"),
  async () => {
    const [build] = buildsOf(tinySpec, 1, { codec: "raw32" });
    const params = testParams(tinySpec, build!.stage, 7);
    const ids = { tokens: testIds(tinySpec, 5), targets: testIds(tinySpec, 6) };
    const notes = new MemoryNotes();
    const tuned = new TunedEngines(gpu, { notes });
    const engines = [await createWgslEngine(gpu, build!), await tuned.createEngine(build!)];
    const results = [];
    for (const engine of engines) {
      await engine.load(params);
      results.push(await runMicroBatch([engine], ids, { slot: 0 }));
      engine.destroy();
    }
    assert.ok(Math.abs(results[0]!.loss - results[1]!.loss) < 2e-5);
    assert.ok(relL2(results[1]!.weightGrads[0]!, results[0]!.weightGrads[0]!) < 2e-5);
    const result = tuned.result();
    assert.deepEqual(result.excluded, [], "this adapter runs every candidate");
    assert.ok(result.choices.length > 0 && result.choices.every(({ gflops }) => gflops > 0));
    const again = new TunedEngines(gpu, { notes, tools: refusing });
    const known = result.choices.map((choice) => choice.class).sort();
    const products = productsOf(build!, { software: gpu.software });
    const all = products.map((p) => productClass(p.layout, p));
    const fusions = new Set(products.flatMap(({ fused }) => fused === undefined ? [] : [fused.fusion]));
    // A slow adapter may have run out of budget; only then is something left to measure.
    const complete = known.length === new Set(all).size && result.fusions.length === fusions.size;
    if (!complete) await assert.rejects(again.tune(build!), /measured again/);
    else assert.deepEqual((await again.tune(build!)).choices, result.choices);
  },
);

Deno.test("the products of a stage are those of its plan, in every layout", () => {
  const [build] = buildsOf(tinySpec, 1, { codec: "raw32" });
  const products = productsOf(build!, { software: true });
  const { plan } = planStage(build!, { software: true });
  const dispatches = ["forward 0", "backward 0", "weight gradient 0"].flatMap((name) =>
    plan.operations.get(name)!.dispatches.filter(({ spec }) => spec.name.startsWith("matmul_"))
  );
  assert.equal(products.reduce((sum, { count }) => sum + count, 0), dispatches.length);
  assert.deepEqual([...new Set(products.map(({ layout }) => layout))].sort(), [...MATMUL_LAYOUTS].sort());
  const gateUp = products.find(({ layout, N }) => layout === "nt" && N === 2 * tinySpec.n_inner);
  assert.equal(gateUp?.count, tinySpec.n_layer);
});

Deno.test("a choice with slices plans two dispatches that pass through the stage's scratch", () => {
  const [wide] = buildsOf({ ...tinySpec, block_size: 128 }, 1, { codec: "raw32" });
  const measured = Object.fromEntries(
    productsOf(wide!, { software: true }).filter(({ layout }) => layout === "tn")
      .map((product) => [productClass("tn", product), { member: "registers 8x4", slices: PRODUCT_SLICES }]),
  );
  const plain = planStage(wide!, { software: true });
  const sliced = planStage(wide!, { software: true, matmul: { preferred: [], measured } });
  const sums = sliced.plan.operations.get("weight gradient 0")!.dispatches
    .filter(({ spec }) => spec.name === "matmul_sum_slices");
  assert.equal(sums.length, 4 * tinySpec.n_layer, "four weight matrices of each layer");
  assert.ok(sums.every(({ params }) => params.slices === PRODUCT_SLICES));
  assert.deepEqual(sliced.memory, plain.memory, "memory is known before anything is measured");
  const bytes = sliced.plan.tensors.find(({ name }) => name === "slices")!.bytes;
  const needed = Math.max(...sums.map(({ params }) => 4 * params.count! * params.slices!));
  assert.equal(bytes, needed, "the scratch holds the largest");
});

Deno.test(onAdapter(gpu, "an engine in slices gives the gradient of one without"), async () => {
  const spec = { ...tinySpec, block_size: 128 };
  const [build] = buildsOf(spec, 1, { codec: "raw32" });
  const measured = Object.fromEntries(
    productsOf(build!, { software: true }).filter(({ layout }) => layout === "tn")
      .map((product) => [productClass("tn", product), { member: "registers 8x4", slices: PRODUCT_SLICES }]),
  );
  const ids = { tokens: testIds(spec, 5), targets: testIds(spec, 6) };
  const gradients = [];
  for (const matmul of [presumedChoice(matmulTraits(gpu)), { preferred: [], measured }]) {
    const engine = await createWgslEngine(gpu, build!, { matmul });
    await engine.load(testParams(spec, build!.stage, 7));
    gradients.push((await runMicroBatch([engine], ids, { slot: 0 })).weightGrads[0]!);
    engine.destroy();
  }
  const error = relL2(gradients[1]!, gradients[0]!);
  assert.ok(error > 0, "the sums were made in the same order");
  assert.ok(error < 2e-5, `relative error ${error}`);
});

Deno.test("winners are told per layout, the quickest class of each", () => {
  const choice = (key: string, member: string, gflops: number, slices = 1) => ({
    ...{ class: key, member, gflops, slices, shape },
  });
  const choices = [
    choice("tn fours small", "registers 8x4", 2.25, 4),
    choice("nt fours small", "shared 64x64", 900),
    choice("nt fours large", "shared 128x128", 4321.4),
  ];
  assert.equal(
    tuningText({ choices, fusions: [{ fusion: "rotary", gain: 0.98 }] }),
    "nt shared 128x128 4321 GFLOP/s, tn registers 8x4 in 4 slices 2.3 GFLOP/s",
  );
  assert.equal(tuningText({ choices: [], fusions: [] }), "");
  const slow = [{ fusion: "rotary" as const, gain: 0.9 }, { fusion: "swiglu" as const, gain: 0 }];
  assert.equal(
    tuningText({ choices: [choices[1]!], fusions: slow }),
    "nt shared 64x64 900 GFLOP/s, apart: rotary and swiglu",
  );
});
