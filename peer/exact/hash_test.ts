// MurmurHash3 against its published values, and sensitivity to every bit of a state.
import assert from "node:assert/strict";
import fc from "fast-check";
import { hashWords, stateHash, totalHash } from "./hash.ts";
import { cloneState } from "./state.ts";
import { testState } from "./testing_data.ts";

Deno.test("hash: whole blocks give MurmurHash3_x86_128", () => {
  assert.equal(hashWords(new Uint32Array(0)), "0".repeat(32));
  // Published for the bytes 0, 1, ... 255 by karanlyons/murmurHash3.js.
  const ascending = Uint8Array.from({ length: 256 }, (_, i) => i);
  assert.equal(hashWords(new Uint32Array(ascending.buffer)), "2c56c88fdb4503dfd352b21a494ca2c0");
});

Deno.test("hash: flipping any one bit of a state changes its hash", () => {
  const state = testState();
  const reference = stateHash(state);
  const fields = fc.constantFrom("params" as const, "m" as const, "v" as const, "exponents" as const);
  fc.assert(
    fc.property(fields, fc.nat(), fc.nat({ max: 7 }), (field, place, bit) => {
      const copy = cloneState(state);
      const bytes = new Uint8Array(copy[field].buffer);
      bytes[place % bytes.length]! ^= 1 << bit;
      assert.notEqual(stateHash(copy), reference);
    }),
    { seed: 9, numRuns: 200 },
  );
  assert.notEqual(stateHash({ ...state, step: 1 }), reference);
  assert.equal(stateHash(cloneState(state)), reference);
});

Deno.test("hash: values that moved between fields or lengths change the hash", () => {
  const state = testState();
  const { m, params } = state;
  assert.notEqual(stateHash({ ...state, m: params, params: m }), stateHash(state));
  assert.notEqual(totalHash(new Int32Array(3)), totalHash(new Int32Array(4)));
  assert.notEqual(totalHash(Int32Array.of(1, 2)), totalHash(Int32Array.of(2, 1)));
});

Deno.test("hash: a view into a larger buffer hashes like its copy", () => {
  const total = Int32Array.from({ length: 20 }, (_, i) => i * i);
  assert.equal(totalHash(total.subarray(3, 17)), totalHash(total.slice(3, 17)));
});
