// The autotune's decisions with invented timings, and its cache with invented contents. No device: what measures on one is
// tested in test/kernels/tune_test.ts.
import assert from "node:assert/strict";
import fc from "fast-check";
import { kernelSpecs } from "./kernels/index.ts";
import { candidateMembers, productClass, sumSlicesSpec } from "./kernels/matmul.ts";
import {
  type Candidate,
  fastest,
  type Product,
  representatives,
  SOFTWARE_BUDGET_MS,
  type TuneResult,
  type TuneTools,
  Tuning,
} from "./tune.ts";
import type { MatmulFusion } from "./kernels/matmul_fused.ts";
import type { FusedCandidate, FusedTimes } from "./tune_fused.ts";
import { decodeTuning, kernelVersion, readTuning, writeTuning } from "./tune_cache.ts";
import { cutToSize } from "./tune_device.ts";
import { MemoryNotes } from "../store/notes.ts";

const traits = { software: false, adapterName: "a GPU", subgroups: false };
const forward: Product = { layout: "nt", M: 512, N: 256, K: 64, count: 2 };
const weights: Product = { layout: "tn", M: 256, N: 64, K: 512, count: 2 };

/** Tools whose timings are a function of the candidate; the clock moves by the time measured. */
class FakeTools implements TuneTools {
  clock = 0;
  readonly timedNames: string[] = [];
  readonly checks: string[] = [];
  released = 0;

  constructor(
    readonly msOf: (candidate: Candidate) => number,
    readonly wrong: (candidate: Candidate) => string | null = () => null,
    readonly fusedTimes: (candidate: FusedCandidate) => FusedTimes = () => ({ fused: 1, apart: 1 }),
  ) {}

  check(candidate: Candidate): Promise<string | null> {
    this.checks.push(candidate.spec.name);
    return Promise.resolve(this.wrong(candidate));
  }

  time(candidate: Candidate): Promise<number> {
    const ms = this.msOf(candidate);
    this.timedNames.push(`${candidate.layout} ${candidate.member}/${candidate.slices}`);
    if (Number.isFinite(ms)) this.clock += ms;
    return Promise.resolve(ms);
  }

  checkFused({ spec }: FusedCandidate): Promise<string | null> {
    this.checks.push(spec.name);
    return Promise.resolve(spec.name.includes("_swiglu_shared") ? "its values are wrong" : null);
  }

  timeFused(candidate: FusedCandidate): Promise<FusedTimes> {
    const times = this.fusedTimes(candidate);
    this.clock += times.fused + times.apart;
    return Promise.resolve(times);
  }

  release(): void {
    this.released++;
  }

  nowMs(): number {
    return this.clock;
  }
}

function timed(...times: number[]) {
  return times.map((ms, i) => ({ candidate: { member: `member ${i}` } as Candidate, ms }));
}

Deno.test("tune: the fastest wins, an earlier one where the gain is noise, one without a time never", () => {
  const name = (...times: number[]) => fastest(timed(...times))?.candidate.member;
  assert.equal(name(5, 2, 3), "member 1");
  assert.equal(name(2, 1.99, 3), "member 0");
  assert.equal(name(2, 1.9, 3), "member 1");
  assert.equal(name(Infinity, 7, NaN), "member 1");
  assert.equal(name(Infinity), undefined);
});

Deno.test("tune: the heaviest product stands for its class, the class with most work comes first", () => {
  const small: Product = { layout: "nn", M: 64, N: 64, K: 64, count: 1 };
  const heavier = { ...small, K: 128 };
  const large: Product = { layout: "nn", M: 2048, N: 1024, K: 64, count: 1 };
  assert.deepEqual(representatives([small, heavier, large]), [large, heavier]);
  assert.deepEqual(representatives([large, heavier, small]), [large, heavier]);
  assert.equal(representatives([small, { ...small, K: 63 }]).length, 2, "other loads, another class");
});

Deno.test("tune: every class gets the candidate that its timings say, whatever the order of the products", async () => {
  const best = { nt: "shared 128x64", tn: "registers 4x4" } as Record<string, string>;
  const msOf = ({ layout, member, slices }: Candidate) => (member === best[layout] ? 1 : 4) * slices;
  for (const products of [[forward, weights], [weights, forward]]) {
    const tools = new FakeTools(msOf);
    const tuning = new Tuning(traits, tools, 1e6);
    assert.ok(await tuning.run(products));
    const { measured } = tuning.choice();
    assert.deepEqual(measured[productClass("nt", forward)], { member: "shared 128x64", slices: 1 });
    assert.deepEqual(measured[productClass("tn", weights)], { member: "registers 4x4", slices: 1 });
    assert.equal(
      tuning.choices.find((choice) => choice.class.startsWith("nt"))?.gflops,
      2 * 512 * 256 * 64 / 1e6,
    );
    assert.equal(tools.released, 2, "what measuring held is freed");
    assert.ok(!await tuning.run(products), "nothing is measured twice");
    await tuning.run([{ ...forward, layout: "nn" }]);
    assert.equal(tuning.spentMs, tools.clock, "time is counted over all runs");
  }
});

Deno.test("tune: slices are tried on weight gradients alone, and taken where they are quicker", async () => {
  const msOf = ({ slices }: Candidate) => slices > 1 ? 1 : 3;
  const tuning = new Tuning(traits, new FakeTools(msOf), 1e6);
  const long = { ...forward, M: 128, K: 512 };
  await tuning.run([long, weights, { ...long, layout: "nn" }]);
  assert.deepEqual(tuning.choices.map((choice) => choice.slices).sort(), [1, 1, 4]);
  assert.equal(tuning.choice().measured[productClass("tn", weights)]?.slices, 4);
});

Deno.test("tune: a candidate with wrong sums cannot win, is named once, and is not presumed either", async () => {
  const msOf = ({ member }: Candidate) => member === "shared 64x64" ? 0.001 : 2;
  const wrong = ({ member }: Candidate) => member === "shared 64x64" ? "its sums are wrong" : null;
  const tuning = new Tuning(traits, new FakeTools(msOf, wrong), 1e6);
  await tuning.run([forward, { ...forward, M: 8192 }, weights]);
  assert.ok(tuning.choices.every(({ member }) => member !== "shared 64x64"), JSON.stringify(tuning.choices));
  assert.deepEqual(tuning.excluded.map(({ kernel }) => kernel).sort(), [
    "matmul_nt_shared_64x64",
    "matmul_tn_shared_64x64",
  ]);
  assert.ok(!tuning.choice().preferred.includes("shared 64x64"));
});

Deno.test("tune: slices that are wrong leave the member itself alone", async () => {
  const wrong = ({ slices }: Candidate) => slices > 1 ? "its sums are wrong" : null;
  const tuning = new Tuning(traits, new FakeTools(({ slices }) => 2 / slices, wrong), 1e6);
  await tuning.run([weights]);
  assert.equal(tuning.choices[0]?.slices, 1);
  assert.match(tuning.excluded[0]?.kernel ?? "", /in 4 slices$/);
  assert.ok(tuning.choice().preferred.includes(tuning.choices[0]!.member));
});

Deno.test("tune: the budget ends it, across runs; the heaviest class has at least been started", async () => {
  const tools = new FakeTools(() => 150);
  const tuning = new Tuning(traits, tools);
  await tuning.run([forward, weights]);
  assert.deepEqual(tuning.choices.map((choice) => choice.class.slice(0, 2)), ["nt"]);
  const timings = tools.timedNames.length;
  assert.equal(timings, 2, tools.timedNames.join());
  await tuning.run([{ ...forward, layout: "nn" }]);
  assert.equal(tools.timedNames.length, timings, "a later stage does not get a budget of its own");
  assert.ok(tuning.spentMs >= 300);
  const presumed = tuning.choice();
  assert.equal(presumed.measured[productClass("tn", weights)], undefined);
  assert.deepEqual(presumed.preferred.slice(0, -1), candidateMembers(traits));
});

Deno.test("tune: a software adapter that compiles for seconds has few attempts", async () => {
  const tools = new FakeTools(() => 1500);
  const tuning = new Tuning({ software: true, adapterName: "google swiftshader", subgroups: true }, tools);
  await tuning.run([forward, weights]);
  assert.ok(tools.clock <= SOFTWARE_BUDGET_MS + 4 * 1500, `${tools.clock} ms`);
  assert.equal(tuning.choices[0]?.member, "quads 16x16");
});

Deno.test("tune: what is adopted is not measured again", async () => {
  const tools = new FakeTools(() => 1);
  const tuning = new Tuning(traits, tools, 1e6);
  const { M, N, K } = forward;
  const known = {
    class: productClass("nt", forward),
    shape: { M, N, K },
    member: "registers 8x4",
    slices: 1,
    gflops: 9,
  };
  tuning.adopt({ choices: [known] });
  assert.ok(!await tuning.run([forward]));
  assert.equal(tools.timedNames.length, 0);
  assert.equal(tuning.choice().measured[known.class]?.member, "registers 8x4");
});

const rotary: Product = {
  ...forward,
  fused: { fusion: "rotary", params: { M: 512, N: 256, K: 64, T: 64, D: 32, turned: 192 } },
};
const gated: Product = { ...forward, N: 512, fused: { fusion: "swiglu", params: { M: 512, N: 512, K: 64 } } };
const gradient: Product = {
  ...{ ...forward, layout: "nn" },
  fused: { fusion: "swiglu_backward", params: { M: 512, N: 256, K: 64 } },
};

Deno.test("tune: what follows a product stays in its kernel unless that is wrong, or measured to be slower", async () => {
  const fastest = ({ member }: Candidate) => member === "registers 8x4" ? 1 : 2;
  const seen: FusedCandidate[] = [];
  const tools = new FakeTools(fastest, () => null, (candidate) => {
    seen.push(candidate);
    const apart: Partial<Record<MatmulFusion, number>> = { rotary: 0.99, swiglu: 3, swiglu_backward: 0.9 };
    return { fused: 1, apart: apart[candidate.fusion]! };
  });
  const tuning = new Tuning(traits, tools, 1e6);
  assert.ok(await tuning.run([rotary, gated, gradient]));
  assert.deepEqual(tuning.choice().apart, ["swiglu_backward"], JSON.stringify(tuning.fusions));
  assert.deepEqual(seen.map(({ spec }) => spec.name).sort(), [
    "matmul_nn_swiglu_backward_registers_8x4",
    "matmul_nt_rotary_registers_8x4",
    "matmul_nt_swiglu_registers_8x4",
  ], "with the tiles that won");
  assert.ok(!await tuning.run([rotary, gated, gradient]), "nothing is measured twice");
  const wrong = new Tuning(traits, new FakeTools(({ member }) => member === "shared 64x64" ? 1 : 2), 1e6);
  await wrong.run([rotary, gated]);
  assert.deepEqual(wrong.choice().apart, ["swiglu"]);
  assert.deepEqual(wrong.excluded, [{
    ...{ kernel: "matmul_nt_swiglu_shared_64x64", reason: "its values are wrong" },
  }]);
  assert.ok(wrong.choice().preferred.includes("shared 64x64"), "the member itself is sound");
});

Deno.test("tune: past its budget nothing is asked of fusions, and what was kept of them is not measured again", async () => {
  const spent = new FakeTools(() => 400);
  const tuning = new Tuning(traits, spent);
  await tuning.run([rotary]);
  assert.deepEqual([tuning.fusions, tuning.choice().apart], [[], []]);
  const tools = new FakeTools(() => 1);
  const later = new Tuning(traits, tools, 1e6);
  later.adopt({ fusions: [{ fusion: "rotary", gain: 0.5 }] });
  await later.run([rotary, gated]);
  assert.deepEqual(later.choice().apart, ["rotary", "swiglu"]);
  assert.ok(!tools.checks.some((name) => name.includes("rotary")), tools.checks.join());
});

Deno.test("tune: a product is cut along the micro-batch's rows, never along the weights", () => {
  const shape = { M: 2048, N: 512, K: 512 };
  assert.deepEqual(cutToSize("nt", shape, 2 * 512 * 512 * 200), { ...shape, M: 192 });
  assert.deepEqual(cutToSize("tn", shape, 2 * 2048 * 512 * 70), { ...shape, K: 64 });
  assert.deepEqual(cutToSize("tn", { M: 8, N: 8, K: 12 }, 1), { M: 8, N: 8, K: 12 });
  assert.deepEqual(cutToSize("nn", shape, 1e12), shape);
});

function resultOf(adapter: string, version = kernelVersion()): TuneResult {
  return {
    ...{ adapter, provider: "builtin", kernelVersion: version, spentMs: 12.5 },
    choices: [{
      ...{ class: "nt fours small", member: "registers 8x4", slices: 1, gflops: 3.5 },
      shape: { M: 8, N: 8, K: 8 },
    }],
    fusions: [{ fusion: "rotary", gain: 1.25 }],
    excluded: [{ kernel: "matmul_nt_shared_64x64", reason: "its sums are wrong" }],
  };
}

/** The one note of `notes`. */
const NAME = "tuning builtin mine";

Deno.test("tune cache: a result comes back for its adapter, provider and kernels only", async () => {
  const notes = new MemoryNotes();
  const mine = resultOf("mine");
  assert.equal(await readTuning(notes, mine), null);
  await writeTuning(notes, mine);
  await writeTuning(notes, resultOf("other"));
  assert.deepEqual(await readTuning(notes, mine), mine);
  assert.equal(await readTuning(notes, { ...mine, provider: "dawn" }), null);
  assert.equal(await readTuning(notes, { ...mine, kernelVersion: "another" }), null);
  await writeTuning(notes, { ...mine, spentMs: 1 });
  assert.equal((await readTuning(notes, mine))?.spentMs, 1, "the newer result replaces the older");
  await notes.set(NAME, await notes.get("tuning builtin other") ?? "");
  assert.equal(await readTuning(notes, mine), null, "a note in another's place is not believed");
});

Deno.test("tune cache: a damaged or foreign note is passed over and overwritten", async () => {
  const good = resultOf("mine");
  const [choice] = good.choices;
  const results: unknown[] = [
    null,
    "none",
    { ...good, adapter: 5 },
    { ...good, spentMs: -1 },
    { ...good, choices: [{ ...choice, member: "no such" }] },
    { ...good, choices: [{ ...choice, slices: 0 }] },
    { ...good, choices: [{ ...choice, shape: { M: 1, N: 1 } }] },
    { ...good, choices: new Array(65).fill(choice) },
    { ...good, excluded: [{ kernel: "x" }] },
    { ...good, fusions: [{ fusion: "no such", gain: 1 }] },
    { ...good, fusions: [{ fusion: "rotary", gain: -1 }] },
    { ...good, fusions: undefined },
  ];
  const bad = [null, 7, { format: "another", result: good }];
  bad.push(...results.map((result) => ({ format: "shoal-tuning-2", result: result as TuneResult })));
  for (const value of bad) {
    const notes = new MemoryNotes();
    await notes.set(NAME, JSON.stringify(value));
    assert.equal(await readTuning(notes, good), null, JSON.stringify(value));
    await writeTuning(notes, good);
    assert.deepEqual(await readTuning(notes, good), good);
  }
});

Deno.test("tune cache: no text makes it throw, and a cut note is no note", async () => {
  fc.assert(
    fc.property(fc.oneof(fc.string(), fc.json()), (text) => assert.equal(decodeTuning(text), null)),
    { seed: 20_261_130, numRuns: 300 },
  );
  const notes = new MemoryNotes();
  await writeTuning(notes, resultOf("mine"));
  const text = await notes.get(NAME) ?? "";
  assert.notEqual(decodeTuning(text), null);
  for (let length = 0; length < text.length; length++) {
    assert.equal(decodeTuning(text.slice(0, length)), null);
  }
});

Deno.test("tune cache: the version is a hash of the products' kernels and of nothing else", () => {
  const [first, ...rest] = kernelSpecs;
  assert.match(kernelVersion(), /^[0-9a-f]{32}$/);
  assert.equal(kernelVersion([...kernelSpecs]), kernelVersion());
  assert.ok(!first!.name.startsWith("matmul"));
  assert.equal(kernelVersion(rest), kernelVersion());
  const changed = kernelSpecs.map((spec) =>
    spec === sumSlicesSpec ? { ...spec, wgsl: `${spec.wgsl}//` } : spec
  );
  assert.notEqual(kernelVersion(changed), kernelVersion());
});
