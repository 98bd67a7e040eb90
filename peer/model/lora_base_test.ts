// Byte ranges of a base: together they bring every part, none twice and nothing else, and no list of garbage is an assertion failure.
import assert from "node:assert/strict";
import fc from "fast-check";
import { readBaseList } from "../wire/base.ts";
import { mergeRanges, RANGE_BYTES_MAX } from "./lora_base.ts";

const SEED = 7;

Deno.test("lora base: ranges cover their parts exactly, with a request only where there is a gap or a limit", () => {
  const sizes = fc.array(fc.tuple(fc.integer({ min: 1, max: RANGE_BYTES_MAX + 9 }), fc.boolean()), {
    maxLength: 40,
  });
  fc.assert(
    fc.property(sizes, (drawn) => {
      let at = 8;
      const all = drawn.map(([size, wanted], i) => ({ name: i, begin: at, end: at += size, wanted }));
      const parts = all.filter(({ wanted }) => wanted);
      const ranges = mergeRanges(parts.toReversed());
      assert.deepEqual(ranges.flatMap((range) => range.parts), parts);
      for (const { begin, end, parts } of ranges) {
        assert.equal(begin, parts[0]!.begin);
        assert.equal(end, parts.at(-1)!.end);
        assert.equal(end - begin, parts.reduce((sum, it) => sum + it.end - it.begin, 0));
        assert.ok(parts.length === 1 || end - begin <= RANGE_BYTES_MAX);
      }
      for (const [i, range] of ranges.entries()) {
        const next = ranges[i + 1];
        if (next === undefined) continue;
        assert.ok(
          next.begin > range.end || next.parts[0]!.end - range.begin > RANGE_BYTES_MAX,
          "two where one would do",
        );
      }
    }),
    { seed: SEED, numRuns: 300 },
  );
});

Deno.test("lora base: what is no list is refused with a code, whatever it is", () => {
  const good = {
    ...{ hash: "a".repeat(64), bytes: 20 },
    tensors: [{ name: "x", shape: [2, 2], begin: 4, end: 20, sha256: "b".repeat(64) }],
    source: {
      urls: ["https://models.example/x.safetensors"],
      tensors: [{ name: "x", file: 0, dtype: "F16", begin: 0, end: 8, sha256: "c".repeat(64) }],
    },
  };
  assert.ok(readBaseList(good).ok);
  const garbage = fc.oneof(
    fc.anything(),
    fc.tuple(fc.constantFrom("hash", "bytes", "tensors", "source"), fc.anything()).map(([key, value]) => (
      { ...good, [key]: value }
    )),
    fc.tuple(fc.constantFrom("name", "shape", "begin", "end", "sha256"), fc.anything()).map((
      [key, value],
    ) => (
      { ...good, tensors: [{ ...good.tensors[0], [key]: value }] }
    )),
  );
  fc.assert(
    fc.property(garbage, (value) => {
      const read = readBaseList(value);
      if (read.ok) {
        for (const { begin, end, shape } of read.value.tensors) {
          assert.ok(
            begin <= end && end <= read.value.bytes && end - begin === 4 * shape.reduce((a, b) => a * b, 1),
          );
        }
      } else assert.equal(read.code, "bad-state");
    }),
    { seed: SEED, numRuns: 1000 },
  );
});
