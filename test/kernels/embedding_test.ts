// The embedding kernels against the double-precision reference, to the bit where nothing is rounded.
import assert from "node:assert/strict";
import { embeddingForwardSpec, embeddingWeightGradSpec } from "../../peer/gpu/kernels/embedding.ts";
import { WORKGROUPS_PER_DIMENSION_MAX } from "../../peer/gpu/library.ts";
import { randomTokens } from "../../shaders/reference/check.ts";
import { embeddingForward, embeddingWeightGrad } from "../../shaders/reference/embedding.ts";
import { onAdapter, relL2, runTwice, testDevice, testValues } from "./support.ts";

const gpu = await testDevice();
/** [R, C, V]: ones, primes, around the 4 and 16 columns of an invocation, and one larger. */
const shapes = [[1, 1, 1], [3, 5, 7], [7, 4, 2], [6, 15, 3], [5, 16, 11], [9, 17, 5], [31, 3, 40], [
  257,
  96,
  65,
]];

Deno.test(onAdapter(gpu, "embedding_forward copies the table's rows bit for bit"), async () => {
  for (const [R = 0, C = 0, V = 0] of shapes) {
    const tokens = randomTokens(R, R, V);
    const table = testValues(V * C, 1);
    const { out } = await runTwice(gpu, embeddingForwardSpec, {
      params: { R, C },
      inputs: { tokens, table },
      outputs: { out: R * C },
    });
    const expected = embeddingForward(tokens, Float64Array.from(table), { C });
    assert.deepEqual(out, Float32Array.from(expected), `R ${R} C ${C} V ${V}`);
  }
});

Deno.test(onAdapter(gpu, "embedding_weight_grad equals the reference, alone and accumulated"), async () => {
  for (const [R = 0, C = 0, V = 0] of shapes) {
    const tokens = randomTokens(R, R, V);
    const dout = testValues(R * C, 2);
    const old = testValues(V * C, 3);
    const expected = embeddingWeightGrad(tokens, Float64Array.from(dout), { V, C });
    for (const accumulate of [0, 1]) {
      const inputs = accumulate ? { tokens, dout, dtable: old } : { tokens, dout };
      const run = { params: { R, C, V, accumulate }, inputs, outputs: { dtable: V * C } };
      const { dtable } = await runTwice(gpu, embeddingWeightGradSpec, run);
      // f32 sums of at most R values: about sqrt(R) roundings of 6e-8.
      const error = relL2(dtable!, expected.map((value, i) => value + accumulate * old[i]!));
      assert.ok(error <= 1e-6, `R ${R} C ${C} V ${V} accumulate ${accumulate}: relative error ${error}`);
    }
  }
});

Deno.test(onAdapter(gpu, "embedding_weight_grad is exactly zero for tokens that do not occur"), async () => {
  const { dtable } = await runTwice(gpu, embeddingWeightGradSpec, {
    params: { R: 3, C: 5, V: 4, accumulate: 0 },
    inputs: { tokens: Uint32Array.of(2, 2, 2), dout: new Float32Array(15).fill(1) },
    outputs: { dtable: 20 },
  });
  assert.deepEqual([...dtable!], [...Array(10).fill(0), ...Array(5).fill(3), ...Array(5).fill(0)]);
});

Deno.test(
  onAdapter(gpu, "embedding_forward reaches every row when workgroups need a second dimension"),
  async () => {
    const R = WORKGROUPS_PER_DIMENSION_MAX + 4466, V = 97;
    const table = testValues(V, 1);
    const tokens = Uint32Array.from({ length: R }, (_, r) => r % V);
    const run = { params: { R, C: 1 }, inputs: { tokens, table }, outputs: { out: R } };
    const { out } = await runTwice(gpu, embeddingForwardSpec, { ...run, overrides: { workgroupSize: 1 } });
    assert.deepEqual(out, Float32Array.from(tokens, (token) => table[token]!));
  },
);
