// The GPU's optimizer against the exact core (peer/exact/optimizer.ts): its kernels one by one, and ten steps of all of them
// over parameters that are cut into several tensors. The exact core is the reference here, in place of a twin in doubles.
import assert from "node:assert/strict";
import { applyTotal, leastExponent, nextExponent, totalNormSq } from "../../peer/exact/optimizer.ts";
import { powerOfTwo } from "../../peer/exact/power.ts";
import { gridShift } from "../../peer/exact/quantise.ts";
import { cloneState, createState, type StageState } from "../../peer/exact/state.ts";
import { paddingOf, SPEC as EVEN, testGradient, WHOLE } from "../../peer/exact/testing_data.ts";
import { WgslOptimizer } from "../../peer/engine/wgsl_optimizer.ts";
import {
  addGradient,
  addGradientName,
  optimizerOperations,
  optimizerRequests,
} from "../../peer/engine/wgsl_optimizer_plan.ts";
import { planningOf, type StagePlanning } from "../../peer/engine/wgsl_names.ts";
import { paramTensors, partName } from "../../peer/engine/wgsl_params.ts";
import { DEFAULT_LIMITS } from "../../peer/gpu/arena.ts";
import { gradientAccumulateSpec, gradientExponentsSpec } from "../../peer/gpu/kernels/optimizer.ts";
import { Program } from "../../peer/gpu/program.ts";
import { stageLayout } from "../../peer/model/layout.ts";
import { STATS_LANES } from "../../peer/model/optimizer_tensors.ts";
import { onAdapter, runTwice, testDevice, testValues } from "./support.ts";

const gpu = await testDevice();

const N = 3;
const STEPS = 10;
const LARGEST = powerOfTwo(40);
/**
 * Largest difference of a value after ten steps, against the largest of its kind: single operations round by 6e-8, sqrt and
 * division by up to 2.5 units more, and neighbours may be contracted.
 */
const BOUND = 1e-5;

Deno.test(
  onAdapter(gpu, "gradient_accumulate adds, cuts at 2^40 and counts what is not finite"),
  async () => {
    for (const count of [1, 2, 3, 4, 5, 255, 256, 257, 1021]) {
      const gradient = testValues(4 * count, count);
      const old = testValues(4 * count, count + 1);
      gradient.set([NaN, -Infinity, 3e38, -LARGEST].slice(0, Math.min(4, count)));
      if (count > 4) gradient.set([Infinity, 2 * LARGEST], 4 * count - 2);
      const { sum, counters } = await runTwice(gpu, gradientAccumulateSpec, {
        params: { count },
        inputs: { gradient, sum: old, counters: Uint32Array.of(10, 20) },
        outputs: { sum: 4 * count, counters: 2 },
      });
      const used = gradient.map((g) => Number.isFinite(g) ? Math.max(-LARGEST, Math.min(LARGEST, g)) : 0);
      assert.deepEqual(sum, used.map((g, i) => Math.fround(old[i]! + g)), `${count} vectors`);
      const cut = gradient.filter((g) => Number.isFinite(g) && Math.abs(g) > LARGEST).length;
      const bad = gradient.filter((g) => !Number.isFinite(g)).length;
      const counted = new Uint32Array(counters!.buffer, counters!.byteOffset, 2);
      assert.deepEqual([...counted], [10 + cut, 20 + bad], `${count} vectors`);
    }
  },
);

Deno.test(onAdapter(gpu, "gradient_exponents is nextExponent to the bit"), async () => {
  const peaks = [0, 1e-40, 1.5e-38, powerOfTwo(-60), 0.5, 0.500001, 1, 1.0001, 7, powerOfTwo(57), 3e30];
  const cases = peaks.flatMap((peak) =>
    [-61, -60, -20, -3, 0, 5, 60].map((exponent) => ({ peak, exponent }))
  );
  const given = new Float32Array(cases.length * STATS_LANES);
  cases.forEach(({ peak }, i) => given.set([peak, peak / 2], i * STATS_LANES + i % (STATS_LANES - 1)));
  for (const reduce of ["int8", "raw32"] as const) {
    for (const step of [0, 1]) {
      const factors = new Float32Array(12);
      factors.set([leastExponent(reduce), reduce === "int8" && step === 0 ? 1 : 0], 10);
      const { exponents } = await runTwice(gpu, gradientExponentsSpec, {
        params: { count: cases.length },
        inputs: {
          ...{ factors, peaks: new Uint32Array(given.buffer) },
          exponents: Int32Array.from(cases, ({ exponent }) => exponent),
        },
        outputs: { exponents: cases.length },
      });
      const found = new Int32Array(exponents!.buffer, exponents!.byteOffset, cases.length);
      const wanted = cases.map(({ peak, exponent }) =>
        nextExponent(exponent, Math.fround(peak), { reduce, step })
      );
      assert.deepEqual([...found], wanted, `${reduce}, step ${step}`);
    }
  }
});

/** Widths by which tensors, and so blocks, begin inside a vector of four. */
const SPEC = { ...EVEN, n_head: 3, n_embd: 18, n_inner: 7 };

function testState(exponent: number): StageState {
  const layout = stageLayout(SPEC, WHOLE);
  const state = createState(layout, testGradient(layout, { seed: 99, scale: 1 }));
  state.exponents.fill(exponent);
  return state;
}

/** Limits below which the vocabulary's two matrices fall apart, the first in the middle of a block. */
const NARROW = { ...DEFAULT_LIMITS, bindingBytesMax: 64 * SPEC.n_embd * 4 };

function planning(limits = DEFAULT_LIMITS): StagePlanning {
  const codecs = { codecForward: "raw32" as const, codecBackward: "raw32" as const };
  const build = { spec: SPEC, stage: WHOLE, batchSize: 1, slots: 1, optimizer: "gpu" as const, ...codecs };
  return planningOf(build, { software: true, limits });
}

/** The optimizer alone, on gradients that are uploaded. */
async function optimizerOf(p: StagePlanning) {
  const operations = optimizerOperations(p);
  operations.set(addGradientName(0), addGradient(p, { dispatches: [] }));
  const tensors = [...paramTensors(p.parts, "params"), ...paramTensors(p.parts, "gradient")];
  const plan = { label: "optimizer", tensors: [...tensors, ...optimizerRequests(p)], operations };
  const program = await Program.build(gpu, plan);
  const bench = { planning: p, program, loaded: () => {}, takeSlot: () => true };
  const optimizer = new WgslOptimizer({ ...bench, alone: (operation) => operation() });
  async function add(gradient: Float32Array): Promise<void> {
    for (const part of p.parts) {
      const values = gradient.slice(part.offset, part.offset + part.size);
      program.upload(partName("gradient", part), new Uint8Array(values.buffer));
    }
    await optimizer.addGradient(0);
  }
  return { optimizer, add, destroy: () => program.destroy() };
}

/** Whole multiples of 2^-12 of at most 2^11: their sums are exact in f32 and in the exact core's integers alike. */
function exactGradient(state: StageState, seed: number, scale: number): Float32Array {
  const grad = testValues(state.layout.size, seed).map((x) => Math.round(x * scale * 4096) / 4096);
  for (const i of paddingOf(state.layout)) grad[i] = 0;
  return grad;
}

/** The total that the exact core would make of these gradients. */
function totalOf(state: StageState, gradients: readonly Float32Array[]): Int32Array {
  const { layout } = state;
  const total = new Int32Array(layout.size);
  let block = 0;
  for (const { offset, size } of layout.tensors) {
    for (let i = 0; i < size; i++) {
      const at = block + Math.floor(i / 1024);
      const grid = { microBatches: N, reduce: "raw32" as const, step: state.step };
      const scale = powerOfTwo(gridShift(state.exponents[at]!, grid));
      for (const gradient of gradients) total[offset + i]! += gradient[offset + i]! * scale;
    }
    block += Math.ceil(size / 1024);
  }
  return total;
}

function assertNear(actual: Float32Array, expected: Float32Array, what: string): void {
  const largest = expected.reduce((max, x) => Math.max(max, Math.abs(x)), 0);
  const off = actual.reduce((max, x, i) => Math.max(max, Math.abs(x - expected[i]!)), 0);
  assert.ok(off <= BOUND * largest, `${what}: off by ${off}, the largest value is ${largest}`);
}

const config = { beta1: 0.9, beta2: 0.99, weight_decay: 0.1, grad_clip: 1, reduce: "raw32" as const };

for (const [name, limits] of [["one tensor", DEFAULT_LIMITS], ["several tensors", NARROW]] as const) {
  Deno.test(onAdapter(gpu, `ten steps equal the exact core's, parameters in ${name}`), async () => {
    const p = planning(limits);
    assert.equal(p.parts.length > 1, limits === NARROW, "the limits cut the parameters");
    const { optimizer, add, destroy } = await optimizerOf(p);
    const exact = testState(3);
    await optimizer.load(cloneState(exact));
    for (let step = 0; step < STEPS; step++) {
      // Clipped at first, then not.
      const scale = step < 5 ? 1 : 2 ** -10;
      const gradients = Array.from({ length: N }, (_, m) => exactGradient(exact, 31 * step + m, scale));
      await optimizer.begin();
      for (const gradient of gradients) await add(gradient);
      const facts = await optimizer.facts(N);
      const total = totalOf(exact, gradients);
      const gradNormSq = totalNormSq(exact, total, { microBatches: N, reduce: "raw32" });
      const off = Math.abs(facts.gradNormSq - gradNormSq);
      assert.ok(off <= 1e-6 * gradNormSq, `squared norm ${facts.gradNormSq} for ${gradNormSq}`);
      assert.deepEqual([facts.saturated, facts.nonFinite], [0, 0]);
      const options = { microBatches: N, lr: 0.01, gradNormSq, config };
      const clip = applyTotal(exact, total, options);
      assert.equal(clip < 1, step < 5, "the first steps are clipped, the others are not");
      await optimizer.apply(step, options);
    }
    const { params, m, v, exponents } = await optimizer.read();
    assert.deepEqual(exponents, exact.exponents);
    for (
      const [what, a, b] of [["params", params, exact.params], ["m", m, exact.m], ["v", v, exact.v]] as const
    ) {
      assertNear(a, b, what);
      assert.ok(paddingOf(exact.layout).every((i) => Object.is(a[i], 0)), `${what}: padding stays 0`);
    }
    destroy();
  });
}

Deno.test(
  onAdapter(gpu, "a state that is loaded is read back bit for bit, and gains do not decay"),
  async () => {
    const { optimizer, add, destroy } = await optimizerOf(planning(NARROW));
    const state = testState(-7);
    state.m.set(testValues(state.layout.size, 1));
    state.v.set(testValues(state.layout.size, 2).map(Math.abs));
    for (const i of paddingOf(state.layout)) state.m[i] = state.v[i] = 0;
    state.exponents.set([60, -60, 13]);
    await optimizer.load(state);
    const { params, m, v, exponents } = await optimizer.read();
    assert.deepEqual({ params, m, v, exponents }, {
      ...{ params: state.params, m: state.m, v: state.v, exponents: state.exponents },
    });
    const zero = new Float32Array(state.layout.size);
    await optimizer.load({ ...state, m: zero, v: zero });
    await optimizer.begin();
    await add(zero);
    assert.equal((await optimizer.facts(N)).gradNormSq, 0);
    await optimizer.apply(1, { microBatches: N, lr: 0.5, gradNormSq: 0, config });
    const after = await optimizer.read();
    for (const { name, shape, offset, size } of state.layout.tensors) {
      const kept = shape.length === 2 ? Math.fround(0.05) : 0;
      for (let i = offset; i < offset + size; i++) {
        const wanted = state.params[i]! * (1 - kept);
        assert.ok(Math.abs(after.params[i]! - wanted) <= 1e-6, `${name}: ${after.params[i]} for ${wanted}`);
      }
    }
    destroy();
  },
);
