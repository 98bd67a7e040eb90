// The residual addition by hand; its inputs must survive, since the block keeps both.
import assert from "node:assert/strict";
import { residualAdd } from "./residual.ts";

Deno.test("residual adds into a new array", () => {
  const a = Float64Array.of(1, 2), b = Float64Array.of(10, 20);
  assert.deepEqual([...residualAdd(a, b)], [11, 22]);
  assert.deepEqual([...a, ...b], [1, 2, 10, 20]);
});
