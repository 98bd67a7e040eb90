// The exact cover and the bounds of parts from elsewhere.
import assert from "node:assert/strict";
import fc from "fast-check";
import { accumulate, checkPart, createAccumulator, exactCover, type Part } from "./accumulate.ts";
import { quantumLimit } from "./quantise.ts";
import { permutationOf } from "./testing_data.ts";

function part(microBatches: number[], ...values: number[]): Part {
  return { microBatches, values: Int32Array.from(values) };
}

Deno.test("exactCover: every partition covers; one missing, doubled or foreign number does not", () => {
  const cases = fc.integer({ min: 1, max: 40 }).chain((n) =>
    fc.tuple(permutationOf(n), fc.integer({ min: 0, max: n }), fc.nat({ max: n - 1 }))
  );
  fc.assert(
    fc.property(cases, ([order, cut, victim]) => {
      const n = order.length;
      const sets = [order.slice(0, cut), [], order.slice(cut)];
      assert.deepEqual(exactCover(sets, n), { ok: true, value: true });
      assert.equal(exactCover(sets.map((set) => set.filter((m) => m !== victim)), n).ok, false);
      assert.equal(exactCover([...sets, [victim]], n).ok, false);
      const foreign = sets.map((set) => set.map((m) => m === victim ? n : m));
      assert.equal(exactCover(foreign, n).ok, false);
    }),
    { seed: 7 },
  );
});

Deno.test("exactCover: refusals name the micro-batch", () => {
  const reason = (sets: number[][], n: number) => {
    const result = exactCover(sets, n);
    return result.ok ? "" : `${result.code}: ${result.reason}`;
  };
  assert.equal(reason([[0, 2]], 3), "bad-message: micro-batch 1 is missing");
  assert.equal(reason([[0, 1], [1]], 2), "bad-message: micro-batch 1 occurs twice");
  assert.equal(reason([[0.5]], 1), "bad-message: micro-batch 0.5 is not one of 0..0");
  assert.equal(reason([[-1]], 1), "bad-message: micro-batch -1 is not one of 0..0");
});

Deno.test("accumulate: a refused part leaves the sum alone", () => {
  const sum = createAccumulator(2);
  assert.ok(accumulate(sum, part([2, 0], 5, -7), 4).ok);
  const beyond = quantumLimit(4) + 1;
  const refused = [
    part([0], 1, 1),
    part([4], 1, 1),
    part([1, 1], 1, 1),
    part([1], 1),
    part([1], beyond, 0),
    part([1], 0, -beyond),
    part([1], -(2 ** 31), 0),
    part([], 1, 0),
  ];
  for (const bad of refused) {
    const result = accumulate(sum, bad, 4);
    assert.ok(!result.ok && result.code === "bad-message");
    assert.deepEqual(sum, { microBatches: [0, 2], values: Int32Array.of(5, -7) });
  }
});

Deno.test("checkPart: the largest honest sums pass", () => {
  const limit = quantumLimit(4);
  const expected = { microBatches: 4, size: 2 };
  assert.ok(checkPart(part([1], limit, -limit), expected).ok);
  assert.ok(checkPart(part([0, 1, 2, 3], 4 * limit, -4 * limit), expected).ok);
  assert.ok(checkPart(part([], 0, 0), expected).ok);
});
