// Attention against a textbook masked softmax, causality, separation of sequences, and its gradient by differences.
import assert from "node:assert/strict";
import fc from "fast-check";
import { attentionBackward, attentionForward } from "./attention.ts";
import type { AttentionShape } from "./attention.ts";
import { checkGradient, inner, randomArray, relativeError } from "./check.ts";

/** Softmax over all T keys with -Infinity above the diagonal, one number at a time. */
function textbook(qkv: Float64Array, { B, T, H, Hk, D }: AttentionShape): number[] {
  const width = (H + 2 * Hk) * D;
  function part(b: number, t: number, head: number): Float64Array {
    return qkv.subarray((b * T + t) * width + head * D, (b * T + t) * width + (head + 1) * D);
  }
  const out: number[] = [];
  for (let r = 0; r < B * T; r++) {
    const b = Math.floor(r / T), t = r % T;
    for (let h = 0; h < H; h++) {
      const kv = Math.floor(h * Hk / H);
      const scores = [...Array(T).keys()].map((s) =>
        s > t ? -Infinity : inner(part(b, t, h), part(b, s, H + kv)) / Math.sqrt(D)
      );
      const sum = scores.reduce((total, score) => total + Math.exp(score), 0);
      for (let d = 0; d < D; d++) {
        out.push(
          scores.reduce((total, score, s) => total + Math.exp(score) / sum * part(b, s, H + Hk + kv)[d]!, 0),
        );
      }
    }
  }
  return out;
}

function randomQkv(seed: number, { B, T, H, Hk, D }: AttentionShape): Float64Array {
  return randomArray(seed, B * T * (H + 2 * Hk) * D, 2);
}

const shapes = fc.record({
  B: fc.constantFrom(1, 2),
  T: fc.constantFrom(1, 2, 5, 7),
  Hk: fc.constantFrom(1, 2),
  group: fc.constantFrom(1, 2, 3),
  D: fc.constantFrom(2, 6),
}).map(({ group, ...shape }) => ({ ...shape, H: shape.Hk * group }));

Deno.test("attention forward equals the textbook softmax", () => {
  fc.assert(
    fc.property(shapes, (shape) => {
      const qkv = randomQkv(1, shape);
      assert(relativeError(attentionForward(qkv, shape).out, textbook(qkv, shape)) < 1e-13);
    }),
    { seed: 11, numRuns: 40 },
  );
});

Deno.test("attention gradient agrees with central differences", () => {
  fc.assert(
    fc.property(shapes, (shape) => {
      const qkv = randomQkv(2, shape), { B, T, H, D } = shape;
      const dOut = randomArray(3, B * T * H * D);
      const { out, lse } = attentionForward(qkv, shape);
      const loss = () => inner(attentionForward(qkv, shape).out, dOut);
      checkGradient(loss, qkv, attentionBackward({ qkv, out, lse, dOut }, shape));
    }),
    { seed: 12, numRuns: 25 },
  );
});

Deno.test("attention lse is the log of the sum of exponentials of scaled scores", () => {
  const shape = { B: 1, T: 2, H: 1, Hk: 1, D: 4 };
  const qkv = Float64Array.of(1, 0, 0, 0, 2, 0, 0, 0, 9, 9, 9, 9, 2, 0, 0, 0, 4, 0, 0, 0, 9, 9, 9, 9);
  const { lse } = attentionForward(qkv, shape);
  assert(Math.abs(lse[0]! - 1) < 1e-15);
  assert(Math.abs(lse[1]! - Math.log(Math.exp(2) + Math.exp(4))) < 1e-14);
});

Deno.test("a row depends on no later row and on no other sequence", () => {
  const shape = { B: 2, T: 4, H: 2, Hk: 1, D: 2 }, width = 8;
  const qkv = randomQkv(4, shape), before = attentionForward(qkv, shape).out;
  qkv.fill(5, 2 * width, 4 * width);
  const after = attentionForward(qkv, shape).out;
  assert.deepEqual(after.subarray(0, 2 * 4), before.subarray(0, 2 * 4));
  assert.deepEqual(after.subarray(4 * 4), before.subarray(4 * 4));
  assert.notDeepEqual(after.subarray(2 * 4, 4 * 4), before.subarray(2 * 4, 4 * 4));
});

Deno.test("scores of thousands neither overflow nor underflow to NaN", () => {
  const shape = { B: 1, T: 3, H: 1, Hk: 1, D: 2 };
  const qkv = randomArray(5, 3 * 6, 300);
  const { out, lse } = attentionForward(qkv, shape);
  const grad = attentionBackward({ qkv, out, lse, dOut: randomArray(6, 6) }, shape);
  assert([...out, ...lse, ...grad].every(Number.isFinite));
});
