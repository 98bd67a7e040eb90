// The integer stream: pinned values, no bias, and independence of near keys.
import assert from "node:assert/strict";
import { nameWord, nearNormal, randomStream, uniformBelow } from "./random.ts";

const PINNED = [2101882791, 631782717, 3972673442, 356408464];

function draws(key: number[], count: number): number[] {
  const next = randomStream(key);
  return Array.from({ length: count }, next);
}

Deno.test("random: the stream is pinned, because data order depends on it", () => {
  assert.deepEqual(draws([1, 2, 3], 4), PINNED);
  assert.equal(nameWord("a"), 0x2b24d044);
});

Deno.test("random: keys that differ in one bit or in length give unrelated bits", () => {
  const base = draws([7, 0], 512);
  for (const key of [[7, 1], [6, 0], [7], [7, 0, 0], [0, 7], [7, 2 ** 31]]) {
    const differing = draws(key, 512).reduce((sum, x, i) => sum + bits(x ^ base[i]!), 0);
    // 16,384 fair bits: standard deviation 64.
    assert.ok(Math.abs(differing - 8192) < 6 * 64, `${key}: ${differing}`);
  }
});

function bits(x: number): number {
  return (x >>> 0).toString(2).replaceAll("0", "").length;
}

Deno.test("random: uniformBelow drops the draws that would favour small numbers", () => {
  const given = [0xffff_ffff, 0xffff_fffe, 5];
  assert.equal(uniformBelow(() => given.shift()!, 0x8000_0001), 5);
  assert.equal(uniformBelow(() => 0xffff_ffff, 0x1_0000_0000), 0xffff_ffff);
});

Deno.test("random: uniformBelow is uniform", () => {
  const next = randomStream([9]);
  const counts = new Uint32Array(7);
  for (let i = 0; i < 70_000; i++) counts[uniformBelow(next, 7)]!++;
  const chi2 = counts.reduce((sum, n) => sum + (n - 10_000) ** 2 / 10_000, 0);
  assert.ok(chi2 < 28, `chi-squared with 6 degrees of freedom is ${chi2}`);
});

Deno.test("random: nearNormal has the moments of a normal", () => {
  const next = randomStream([11]);
  const xs = Array.from({ length: 100_000 }, () => nearNormal(next));
  const moment = (k: number) => xs.reduce((sum, x) => sum + x ** k, 0) / xs.length;
  assert.ok(Math.abs(moment(1)) < 0.02 && Math.abs(moment(2) - 1) < 0.03 && Math.abs(moment(3)) < 0.05);
  // Twelve uniforms have kurtosis 2.9.
  assert.ok(Math.abs(moment(4) - 2.9) < 0.15);
});
