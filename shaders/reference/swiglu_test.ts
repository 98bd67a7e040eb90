// SwiGLU by hand, far from zero, and its gradient by central differences.
import assert from "node:assert/strict";
import { checkGradient, inner, randomArray } from "./check.ts";
import { swigluBackward, swigluForward } from "./swiglu.ts";

Deno.test("swiglu takes the gate first and saturates without NaN", () => {
  const act = swigluForward(Float64Array.of(0, 800, -800, 5, 2, 3), { I: 3 });
  assert.deepEqual([...act].map((value) => value + 0), [0, 1600, 0]);
  const silu = swigluForward(Float64Array.of(1, 2), { I: 1 });
  assert(Math.abs(silu[0]! - 2 / (1 + Math.exp(-1))) < 1e-15);
});

for (const [R, I] of [[1, 1], [3, 5]] as const) {
  Deno.test(`swiglu gradient agrees with central differences at [${R}, ${I}]`, () => {
    const gateUp = randomArray(1, R * 2 * I, 3), dAct = randomArray(2, R * I);
    const loss = () => inner(swigluForward(gateUp, { I }), dAct);
    checkGradient(loss, gateUp, swigluBackward(gateUp, dAct, { I }));
  });
}
