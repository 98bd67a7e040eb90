// Delays are reproducible, have the spread that was asked for, and leave alone what was not.
import assert from "node:assert/strict";
import { createUniform, lognormalJitter } from "./jitter.ts";

Deno.test("the same seed gives the same delays, another seed others", () => {
  const drawn = (seed: number) => {
    const jitter = lognormalJitter(seed, { link: 0.4, compute: 0.2 });
    return Array.from({ length: 8 }, () => jitter("latency", 0));
  };
  assert.deepEqual(drawn(7), drawn(7));
  assert.notDeepEqual(drawn(7), drawn(8));
});

Deno.test("logarithms have mean 0 and the spread of their kind", () => {
  const jitter = lognormalJitter(1, { link: 0.4, compute: 0.2 });
  for (const [what, sigma] of [["latency", 0.4], ["transfer", 0.4], ["compute", 0.2]] as const) {
    const logs = Array.from({ length: 4000 }, () => Math.log(jitter(what, 0)));
    const mean = logs.reduce((sum, x) => sum + x, 0) / logs.length;
    const variance = logs.reduce((sum, x) => sum + (x - mean) ** 2, 0) / logs.length;
    assert.ok(Math.abs(mean) < 0.02, `${mean}`);
    assert.ok(Math.abs(Math.sqrt(variance) - sigma) < 0.02, `${Math.sqrt(variance)}`);
  }
});

Deno.test("no spread, no jitter", () => {
  const jitter = lognormalJitter(1, { link: 0.4, compute: 0 });
  assert.equal(jitter("compute", 3), 1);
});

Deno.test("uniform numbers stay inside (0, 1) and fill it", () => {
  const uniform = createUniform(3);
  const drawn = Array.from({ length: 2000 }, uniform).toSorted((a, b) => a - b);
  assert.ok(drawn[0]! > 0 && drawn[0]! < 0.01);
  assert.ok(drawn.at(-1)! < 1 && drawn.at(-1)! > 0.99);
});
