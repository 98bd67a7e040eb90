// Verdicts come from three steps in a row that stand out by ratio and by spread, in swarms of any size, and never from noise.
import assert from "node:assert/strict";
import fc from "fast-check";
import { createWatch, observeStep, STEPS_IN_A_ROW, type Verdict } from "./stragglers.ts";

/** Feeds steps of measured-over-believed ratios; returns the verdicts with the step they came in. */
function watchAll(steps: Record<string, number>[]): { step: number; verdict: Verdict }[] {
  let watch = createWatch();
  return steps.flatMap((ratios, step) => {
    const samples = Object.entries(ratios).map(([peer, ratio]) => ({
      peer,
      measured: 2 * ratio,
      believed: 2,
    }));
    const seen = observeStep(watch, samples);
    watch = seen.watch;
    return seen.verdicts.map((verdict) => ({ step, verdict }));
  });
}

const times = (count: number, ratios: Record<string, number>) => Array.from({ length: count }, () => ratios);

Deno.test("the third slow step in a row gives the verdict, with the middle factor", () => {
  const seen = watchAll([{ a: 1, b: 1 }, { a: 2.9, b: 1 }, { a: 3.2, b: 1 }, { a: 3, b: 1 }]);
  assert.deepEqual(seen, [{ step: 3, verdict: { peer: "a", factor: 3 } }]);
});

Deno.test("one quiet step in between starts the count over", () => {
  assert.deepEqual(watchAll([...times(2, { a: 3, b: 1 }), { a: 1, b: 1 }, ...times(2, { a: 3, b: 1 })]), []);
});

Deno.test("faster peers are noticed like slower ones", () => {
  const seen = watchAll(times(STEPS_IN_A_ROW, { a: 0.4, b: 1, c: 1.1 }));
  assert.deepEqual(seen.map(({ verdict }) => verdict), [{ peer: "a", factor: 0.4 }]);
});

Deno.test("what slows everybody down moves nobody, but one who is slower still stands out", () => {
  assert.deepEqual(watchAll(times(6, { a: 1.9, b: 2, c: 2.1, d: 2 })), []);
  assert.deepEqual(watchAll(times(3, { a: 1.9, b: 2, c: 6, d: 2 })).map(({ verdict }) => verdict.peer), [
    "c",
  ]);
});

Deno.test("a peer must stand out by ratio among others that agree", () => {
  const others = { a: 1.25, b: 1.25, c: 1.25 };
  assert.deepEqual(watchAll(times(4, { ...others, d: 1.55 })), []);
  assert.equal(watchAll(times(3, { ...others, d: 1.7 })).length, 1);
});

Deno.test("a wide spread hides what a narrow one shows", () => {
  const wide = { a: 0.8, b: 0.8, c: 1.25, d: 1.3, e: 1.6 };
  assert.deepEqual(watchAll(times(4, wide)), []);
  assert.deepEqual(
    watchAll(times(3, { a: 1, b: 1, c: 1, d: 1, e: 1.6 })).map(({ verdict }) => verdict.peer),
    [
      "e",
    ],
  );
});

Deno.test("two peers, or one, are enough to notice", () => {
  assert.equal(watchAll(times(3, { a: 3, b: 1 })).length, 1);
  assert.equal(watchAll(times(3, { a: 3 })).length, 1);
});

Deno.test("whoever stops reporting is forgotten; what cannot be a time is left out", () => {
  assert.deepEqual(watchAll([...times(2, { a: 3, b: 1 }), { b: 1 }, { a: 3, b: 1 }]), []);
  assert.deepEqual(watchAll(times(5, { a: NaN, b: 0, c: -1 })), []);
});

Deno.test("after a verdict the count begins anew", () => {
  assert.deepEqual(watchAll(times(5, { a: 3, b: 1 })).map(({ step }) => step), [2]);
});

Deno.test("ratios within 20 % of a common pace give no verdict, whatever they are", () => {
  const step = fc.array(fc.double({ min: 0.8, max: 1.2, noNaN: true }), { minLength: 1, maxLength: 9 });
  const steps = fc.tuple(fc.integer({ min: 1, max: 9 }), fc.array(step, { minLength: 3, maxLength: 20 }));
  fc.assert(
    fc.property(steps, ([, drawn]) => {
      const named = drawn.map((ratios) => Object.fromEntries(ratios.map((ratio, i) => [`p${i}`, ratio])));
      assert.deepEqual(watchAll(named), []);
    }),
    { seed: 91, numRuns: 300 },
  );
});
