// The embedding by hand, and its gradient by central differences with a token that occurs twice and one that never does.
import assert from "node:assert/strict";
import { checkGradient, inner, randomArray } from "./check.ts";
import { embeddingForward, embeddingWeightGrad } from "./embedding.ts";

Deno.test("embedding forward copies the row of each token", () => {
  const out = embeddingForward(Uint32Array.of(2, 0), Float64Array.of(1, 2, 3, 4, 5, 6), { C: 2 });
  assert.deepEqual([...out], [5, 6, 1, 2]);
});

Deno.test("embedding weight gradient agrees with central differences", () => {
  const V = 5, C = 3, tokens = Uint32Array.of(4, 1, 4, 0);
  const table = randomArray(1, V * C), dOut = randomArray(2, tokens.length * C);
  const loss = () => inner(embeddingForward(tokens, table, { C }), dOut);
  const grad = embeddingWeightGrad(tokens, dOut, { V, C });
  checkGradient(loss, table, grad);
  assert.deepEqual([...grad.subarray(2 * C, 3 * C)], [0, 0, 0]);
});
