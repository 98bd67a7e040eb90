// LayerNorm and GELU at known values, and every gradient of theirs, of biases and of positions by central differences.
import assert from "node:assert/strict";
import { biasForward, biasWeightGrad, positionsForward, positionsWeightGrad } from "./bias.ts";
import { checkGradient, inner, randomArray, relativeError } from "./check.ts";
import { geluBackward, geluForward } from "./gelu.ts";
import { layernormForward, layernormInputGrad, layernormWeightGrad } from "./layernorm.ts";

Deno.test("layernorm: a row becomes its gain and bias times mean 0 and variance 1, wherever it lies", () => {
  const C = 4, gain = Float64Array.of(1, 1, 2, 1), bias = Float64Array.of(0, 0, 0, 5);
  for (const shift of [0, 1e6]) {
    const x = Float64Array.of(1, -1, 1, -1).map((value) => value + shift);
    const { out, mean, rstd } = layernormForward(x, { gain, bias }, { C, eps: 0 });
    assert.deepEqual([...out], [1, -1, 2, 4]);
    assert.deepEqual([mean[0], rstd[0]], [shift, 1]);
  }
});

for (const [R, C] of [[1, 1], [3, 5], [4, 2]] as const) {
  Deno.test(`layernorm gradients agree with central differences at ${R} x ${C}`, () => {
    const x = randomArray(1, R * C, 2), dOut = randomArray(2, R * C);
    const gain = randomArray(3, C), bias = randomArray(4, C), shape = { C, eps: 0.1 };
    const forward = () => layernormForward(x, { gain, bias }, shape);
    const loss = () => inner(forward().out, dOut);
    const saved = { x: x.slice(), ...forward() };
    checkGradient(loss, x, layernormInputGrad(saved, dOut, { gain, C }));
    const weights = layernormWeightGrad(saved, dOut, { C });
    checkGradient(loss, gain, weights.gain);
    checkGradient(loss, bias, weights.bias);
  });
}

Deno.test("gelu at the values that transformers' gelu_new gives", () => {
  const values = geluForward(Float64Array.of(0, 1, -1, 3, -20, 20));
  const expected = [0, 0.8411919906082768, -0.15880800939172324, 2.9963627, 0, 20];
  assert.ok(relativeError(values, expected) < 1e-8, String(values));
});

Deno.test("gelu's gradient agrees with central differences", () => {
  const x = randomArray(1, 20, 4), dOut = randomArray(2, 20);
  checkGradient(() => inner(geluForward(x), dOut), x, geluBackward(x.slice(), dOut));
});

Deno.test("gradients of a bias and of positions agree with central differences", () => {
  const [B, T, C] = [3, 2, 4], x = randomArray(1, B * T * C), dOut = randomArray(2, B * T * C);
  const bias = randomArray(3, C), table = randomArray(4, T * C);
  checkGradient(() => inner(biasForward(x, bias), dOut), bias, biasWeightGrad(dOut, C));
  const loss = () => inner(positionsForward(x, table), dOut);
  checkGradient(loss, table, positionsWeightGrad(dOut, { T, C }));
});
