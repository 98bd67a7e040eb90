// The embedding kernels against the double-precision reference, to the bit where nothing is rounded.
import assert from "node:assert/strict";
import fc from "fast-check";
import {
  embeddingForwardSpec,
  embeddingWeightGradSpec,
  tokenLookup,
} from "../../peer/gpu/kernels/embedding.ts";
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

/** The table's rows in one part, and in parts that begin inside and end at the table's end. */
function partsOf(V: number): { vocabOffset: number; count: number }[][] {
  const cuts = [[0, V], [0, 1, V], [0, Math.ceil(V / 3), Math.ceil(V / 2), V]];
  return cuts.map((cut) =>
    cut.slice(1).map((end, i) => ({ vocabOffset: cut[i]!, count: end - cut[i]! })).filter((it) =>
      it.count > 0
    )
  );
}

Deno.test(onAdapter(gpu, "embedding_forward copies the table's rows bit for bit, in any parts"), async () => {
  for (const [R = 0, C = 0, V = 0] of shapes) {
    const tokens = randomTokens(R, R, V);
    const whole = testValues(V * C, 1);
    const expected = Float32Array.from(embeddingForward(tokens, Float64Array.from(whole), { C }));
    for (const parts of partsOf(V)) {
      let filled = new Float32Array(R * C).fill(NaN);
      for (const { vocabOffset, count } of parts) {
        const { out } = await runTwice(gpu, embeddingForwardSpec, {
          params: { R, C, vocabOffset, count },
          inputs: {
            tokens,
            table: whole.slice(vocabOffset * C, (vocabOffset + count) * C),
            out: filled,
          },
          outputs: { out: R * C },
        });
        filled = Float32Array.from(out!);
      }
      assert.deepEqual(filled, expected, `R ${R} C ${C} V ${V} in ${parts.length} parts`);
    }
  }
});

Deno.test(onAdapter(gpu, "embedding_weight_grad adds the reference's rows, in any parts"), async () => {
  for (const [R = 0, C = 0, V = 0] of shapes) {
    const tokens = randomTokens(R, R, V);
    const dout = testValues(R * C, 2);
    const old = testValues(V * C, 3);
    const expected = embeddingWeightGrad(tokens, Float64Array.from(dout), { V, C })
      .map((value, i) => value + old[i]!);
    const lookup = tokenLookup(tokens, V);
    for (const parts of partsOf(V)) {
      const grad = new Float32Array(V * C).fill(NaN);
      for (const { vocabOffset, count } of parts) {
        const range = [vocabOffset * C, (vocabOffset + count) * C] as const;
        const { dtable } = await runTwice(gpu, embeddingWeightGradSpec, {
          params: { R, C, E: Math.min(R, V), vocabOffset, count },
          inputs: { lookup, dout, dtable: old.slice(...range) },
          outputs: { dtable: count * C },
        });
        grad.set(dtable!, range[0]);
      }
      // f32 sums of at most R values: about sqrt(R) roundings of 6e-8.
      const error = relL2(grad, expected);
      assert.ok(error <= 1e-6, `R ${R} C ${C} V ${V} in ${parts.length} parts: relative error ${error}`);
    }
  }
});

Deno.test(
  onAdapter(gpu, "embedding_weight_grad leaves the rows of tokens that do not occur as they are"),
  async () => {
    const { dtable } = await runTwice(gpu, embeddingWeightGradSpec, {
      params: { R: 3, C: 5, E: 3, vocabOffset: 0, count: 4 },
      inputs: {
        lookup: tokenLookup(Uint32Array.of(2, 2, 2), 4),
        dout: new Float32Array(15).fill(1),
        dtable: new Float32Array(20).fill(7),
      },
      outputs: { dtable: 20 },
    });
    assert.deepEqual([...dtable!], [...Array(10).fill(7), ...Array(5).fill(10), ...Array(5).fill(7)]);
  },
);

Deno.test("tokenLookup lists each token's rows in order, whatever the tokens are", () => {
  const micro = fc.record({
    V: fc.integer({ min: 1, max: 70_000 }),
    raw: fc.array(fc.nat(69_999), { minLength: 1 }),
  });
  fc.assert(
    fc.property(micro, ({ V, raw }) => {
      const tokens = Uint32Array.from(raw, (value) => value % V);
      const [R, E] = [tokens.length, Math.min(tokens.length, V)];
      const lookup = tokenLookup(tokens, V);
      const ids = [...new Set(tokens)].sort((a, b) => a - b);
      assert.deepEqual([...lookup.subarray(R, R + ids.length)], ids);
      for (let e = 0; e < E; e++) {
        const [start, end] = lookup.subarray(R + E + e, R + E + e + 2);
        const rows = [...tokens.keys()].filter((row) => e < ids.length && tokens[row] === ids[e]);
        assert.deepEqual([...lookup.subarray(start, end)], rows);
      }
    }),
    { seed: 11, numRuns: 200 },
  );
});

Deno.test(
  onAdapter(gpu, "embedding_forward reaches every row when workgroups need a second dimension"),
  async () => {
    const R = WORKGROUPS_PER_DIMENSION_MAX + 4466, V = 97;
    const table = testValues(V, 1);
    const tokens = Uint32Array.from({ length: R }, (_, r) => r % V);
    const run = {
      params: { R, C: 1, vocabOffset: 0, count: V },
      inputs: { tokens, table },
      outputs: { out: R },
    };
    const { out } = await runTwice(gpu, embeddingForwardSpec, { ...run, overrides: { workgroupSize: 1 } });
    assert.deepEqual(out, Float32Array.from(tokens, (token) => table[token]!));
  },
);
