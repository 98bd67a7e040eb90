// Draws against a plain restatement: sort everything, cut, accumulate. Counts over many seeds follow the probabilities.
import assert from "node:assert/strict";
import fc from "fast-check";
import { randomStream } from "../model/random.ts";
import { ShoalError } from "../wire/errors.ts";
import { checkDrawOptions, type DrawOptions, drawToken } from "./sampler_draw.ts";

/** The tokens that may be drawn, likeliest first, with their weights: by sorting the whole vocabulary. */
function allowed(logits: Float32Array, { temperature, topK, topP = 1 }: DrawOptions): [number, number][] {
  const order = [...logits.keys()].sort((a, b) => logits[b]! - logits[a]! || a - b);
  const kept = topK === 0 ? order : order.slice(0, topK);
  const weights = kept.map((token) => Math.exp((logits[token]! - logits[order[0]!]!) / temperature));
  const sum = weights.reduce((a, b) => a + b, 0);
  let mass = 0;
  const end = weights.findIndex((weight) => (mass += weight) >= topP * sum);
  return kept.slice(0, end < 0 || topP === 1 ? kept.length : end + 1).map((token, i) => [token, weights[i]!]);
}

function draw(logits: Float32Array, options: DrawOptions, seed: number): number {
  return drawToken(logits, options, randomStream([seed]));
}

const options = fc.record({
  temperature: fc.double({ min: 0.05, max: 20, noNaN: true }),
  topK: fc.integer({ min: 0, max: 12 }),
  topP: fc.double({ min: 0.01, max: 1, noNaN: true }),
});
// Few distinct values, so that ties are common.
const logits = fc.array(fc.integer({ min: -6, max: 6 }), { minLength: 1, maxLength: 10 });

Deno.test("draws: only tokens that topK and topP leave are drawn, the same as by sorting", () => {
  fc.assert(
    fc.property(logits, options, fc.integer({ min: 0, max: 2 ** 32 - 1 }), (values, how, seed) => {
      const row = Float32Array.from(values), kept = allowed(row, how);
      const sum = kept.reduce((total, [, weight]) => total + weight, 0);
      let left = randomStream([seed])() / 2 ** 32 * sum;
      // Sums are formed in another order here, so a draw on a border may fall on its other side.
      const near = kept.some(([, weight]) => Math.abs(left -= weight) < 1e-9 * sum);
      const drawn = draw(row, how, seed);
      assert.ok(kept.some(([token]) => token === drawn));
      if (near) return;
      left = randomStream([seed])() / 2 ** 32 * sum;
      assert.equal(drawn, kept.find(([, weight]) => (left -= weight) < 0)![0]);
    }),
    { seed: 20260, numRuns: 2000 },
  );
});

Deno.test("draws: topP keeps the smallest set that reaches it, at least one token", () => {
  // Probabilities 0.5, 0.3, 0.15, 0.05 of tokens 2, 0, 3, 1.
  const row = Float32Array.from([0.3, 0.05, 0.5, 0.15].map(Math.log));
  const seen = (topP: number, topK = 0) => {
    const found = new Set<number>();
    for (let seed = 0; seed < 400; seed++) found.add(draw(row, { temperature: 1, topK, topP }, seed));
    return [...found].sort();
  };
  assert.deepEqual(seen(0.001), [2]);
  assert.deepEqual(seen(0.49), [2]);
  assert.deepEqual(seen(0.51), [0, 2]);
  assert.deepEqual(seen(0.79), [0, 2]);
  assert.deepEqual(seen(0.81), [0, 2, 3]);
  assert.deepEqual(seen(1), [0, 1, 2, 3]);
  // After topK 2 the rest counts for nothing: 0.5 is 0.625 of what is left.
  assert.deepEqual(seen(0.6, 2), [2]);
  assert.deepEqual(seen(0.64, 2), [0, 2]);
});

Deno.test("draws: within the nucleus the shares stay as they were", () => {
  const row = Float32Array.from([0.3, 0.05, 0.5, 0.15].map(Math.log)), draws = 4000;
  const counts = [0, 0, 0, 0];
  for (let seed = 0; seed < draws; seed++) {
    counts[draw(row, { temperature: 1, topK: 0, topP: 0.9 }, seed)]! += 1;
  }
  [0.3, 0, 0.5, 0.15].map((p) => p / 0.95).forEach((p, token) => {
    // Four standard deviations; the seeds are fixed, so this passes always or never.
    assert.ok(Math.abs(counts[token]! - p * draws) <= 4 * Math.sqrt(draws * p * (1 - p)), `${counts}`);
  });
});

Deno.test("draws: logits that are not numbers still give a token", () => {
  for (const values of [[NaN, NaN], [1, NaN], [Infinity, 0], [-Infinity, -Infinity]]) {
    const drawn = draw(Float32Array.from(values), { temperature: 1, topK: 0, topP: 0.5 }, 1);
    assert.ok(drawn === 0 || drawn === 1);
  }
});

Deno.test("draws: options out of range are refused with the value", () => {
  const base = { temperature: 1, topK: 0 };
  for (const topP of [0, -1, 1.01, NaN]) {
    assert.throws(
      () => checkDrawOptions({ ...base, topP }),
      (error) =>
        error instanceof ShoalError && error.code === "usage" && error.message.includes(`topP ${topP}`),
    );
  }
  checkDrawOptions({ ...base, topP: 1 });
});
