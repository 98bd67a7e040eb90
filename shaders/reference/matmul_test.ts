// The three products against the textbook triple loop, at shapes on both sides of the four-wide unrolling.
import assert from "node:assert/strict";
import fc from "fast-check";
import { randomArray, relativeError } from "./check.ts";
import { matmulNN, matmulNT, matmulTN } from "./matmul.ts";
import type { MatmulShape } from "./matmul.ts";

type At = (i: number, j: number) => number;

function textbook({ M, N, K }: MatmulShape, a: At, b: At): Float64Array {
  const out = new Float64Array(M * N);
  for (let m = 0; m < M; m++) {
    for (let n = 0; n < N; n++) {
      for (let k = 0; k < K; k++) out[m * N + n]! += a(m, k) * b(k, n);
    }
  }
  return out;
}

const size = fc.constantFrom(1, 2, 3, 4, 5, 7, 8, 13);

Deno.test("matmul NT, NN and TN equal the triple loop", () => {
  fc.assert(
    fc.property(size, size, size, (M, N, K) => {
      const shape = { M, N, K };
      const a = randomArray(M, M * K), b = randomArray(N + 50, N * K);
      const aRow: At = (m, k) => a[m * K + k]!, aCol: At = (m, k) => a[k * M + m]!;
      const bRow: At = (k, n) => b[k * N + n]!, bCol: At = (k, n) => b[n * K + k]!;
      assert(relativeError(matmulNT(a, b, shape), textbook(shape, aRow, bCol)) < 1e-14);
      assert(relativeError(matmulNN(a, b, shape), textbook(shape, aRow, bRow)) < 1e-14);
      assert(relativeError(matmulTN(a, b, shape), textbook(shape, aCol, bRow)) < 1e-14);
    }),
    { seed: 7, numRuns: 100 },
  );
});

Deno.test("a product over no terms is zero", () => {
  const empty = new Float64Array(0);
  assert.deepEqual(matmulNT(empty, empty, { M: 2, N: 1, K: 0 }), new Float64Array(2));
});
