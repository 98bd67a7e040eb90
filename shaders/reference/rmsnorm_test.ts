// RMSNorm by hand and both gradients by central differences, widths 1, prime and even.
import assert from "node:assert/strict";
import { checkGradient, inner, randomArray } from "./check.ts";
import { rmsnormForward, rmsnormInputGrad, rmsnormWeightGrad } from "./rmsnorm.ts";

Deno.test("rmsnorm forward of (3, 4) divides by sqrt(12.5 + eps)", () => {
  const { out, rstd } = rmsnormForward(Float64Array.of(3, 4), Float64Array.of(1, 2), { C: 2, eps: 3.5 });
  assert.equal(rstd[0], 0.25);
  assert.deepEqual([...out], [0.75, 2]);
});

Deno.test("rmsnorm of a zero row is zero, not NaN", () => {
  const { out } = rmsnormForward(new Float64Array(3), Float64Array.of(1, 1, 1), { C: 3, eps: 1e-5 });
  assert.deepEqual([...out], [0, 0, 0]);
});

for (const [R, C] of [[1, 1], [3, 7], [5, 8]] as const) {
  Deno.test(`rmsnorm gradients agree with central differences at [${R}, ${C}]`, () => {
    const shape = { C, eps: 1e-5 };
    const x = randomArray(1, R * C, 2), weight = randomArray(2, C), dOut = randomArray(3, R * C);
    const loss = () => inner(rmsnormForward(x, weight, shape).out, dOut);
    const { rstd } = rmsnormForward(x, weight, shape);
    checkGradient(loss, x, rmsnormInputGrad({ x, rstd, dOut }, weight, shape));
    checkGradient(loss, weight, rmsnormWeightGrad({ x, rstd, dOut }, shape));
  });
}
