// The fused head and loss at known values, and both gradients of the mean loss by central differences.
import assert from "node:assert/strict";
import { checkGradient, randomArray, randomTokens, relativeError } from "./check.ts";
import { headBackward, headForward, headLogitGrad, mean } from "./head.ts";

Deno.test("a zero head guesses evenly: the loss is ln V", () => {
  const x = randomArray(1, 2 * 3), targets = Uint32Array.of(0, 6);
  const { losses } = headForward(x, new Float64Array(7 * 3), { targets, C: 3, V: 7 });
  assert(relativeError(losses, [Math.log(7), Math.log(7)]) < 1e-15);
});

Deno.test("logits of a thousand neither overflow nor lose the loss", () => {
  const w = Float64Array.of(1000, 999);
  const { losses } = headForward(Float64Array.of(1), w, { targets: Uint32Array.of(1), C: 1, V: 2 });
  assert(Math.abs(losses[0]! - Math.log(1 + Math.E)) < 1e-12);
});

for (const [R, C, V] of [[1, 1, 1], [1, 3, 5], [5, 4, 13]] as const) {
  Deno.test(`head gradients agree with central differences at R ${R}, C ${C}, V ${V}`, () => {
    const x = randomArray(1, R * C, 2), w = randomArray(2, V * C, 2), targets = randomTokens(3, R, V);
    const loss = () => mean(headForward(x, w, { targets, C, V }).losses);
    const { dX, dW } = headBackward(x, w, { targets, C, V });
    checkGradient(loss, x, dX);
    checkGradient(loss, w, dW);
  });
}

Deno.test("each row of the logit gradient sums to zero", () => {
  const R = 3, C = 2, V = 5, targets = randomTokens(4, R, V);
  const forward = headForward(randomArray(1, R * C), randomArray(2, V * C), { targets, C, V });
  const dLogits = headLogitGrad(forward, targets, { V });
  for (let r = 0; r < R; r++) {
    const row = dLogits.subarray(r * V, (r + 1) * V);
    assert(Math.abs(row.reduce((sum, value) => sum + value, 0)) < 1e-15);
    assert(row[targets[r]!]! < 0);
  }
});

Deno.test("the mean of no rows is 0", () => assert.equal(mean(new Float64Array(0)), 0));
