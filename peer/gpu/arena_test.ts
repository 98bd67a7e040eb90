// The arena's plan: aligned, without overlaps, conflicts in different buffers, sizes equal to what is asked for.
import assert from "node:assert/strict";
import fc from "fast-check";
import { ShoalError } from "../wire/errors.ts";
import { paddedBytes } from "../model/stage_tensors.ts";
import { planArena } from "./arena.ts";

const limits = { bufferBytesMax: 4096, bindingBytesMax: 2048 };

Deno.test("plans are aligned, disjoint, exact in size and keep conflicts apart", () => {
  const requests = fc.array(fc.integer({ min: 0, max: 2048 }), { maxLength: 30 });
  const pairs = fc.array(fc.tuple(fc.nat(29), fc.nat(29)), { maxLength: 30 });
  fc.assert(
    fc.property(requests, pairs, (sizes, drawn) => {
      const wanted = sizes.map((bytes, i) => ({ name: `t${i}`, bytes }));
      const conflicts = drawn.filter(([a, b]) => a !== b).map(([a, b]) => [`t${a}`, `t${b}`] as const);
      const { buffers, places } = planArena(wanted, conflicts, limits);
      const used = buffers.map(() => 0);
      for (const { name, bytes } of wanted) {
        const place = places.get(name)!;
        assert.equal(place.bytes, bytes);
        assert.equal(place.offset % 256, 0);
        assert.equal(place.offset, used[place.buffer], "tensors follow each other without a gap");
        used[place.buffer]! += paddedBytes(bytes);
      }
      assert.deepEqual(used, buffers);
      assert.ok(buffers.every((bytes) => bytes <= limits.bufferBytesMax));
      for (const [a, b] of conflicts) {
        const [one, other] = [places.get(a), places.get(b)];
        if (one && other) assert.notEqual(one.buffer, other.buffer);
      }
    }),
    { seed: 7, numRuns: 300 },
  );
});

Deno.test("without conflicts few buffers are used", () => {
  const wanted = Array.from({ length: 16 }, (_, i) => ({ name: `t${i}`, bytes: 256 }));
  assert.equal(planArena(wanted, [], limits).buffers.length, 1);
  assert.equal(planArena(wanted, [["t0", "t1"], ["t2", "t3"]], limits).buffers.length, 2);
});

Deno.test("impossible requests are refused with a code", () => {
  const code = (wanted: string) => (error: unknown) => error instanceof ShoalError && error.code === wanted;
  assert.throws(() => planArena([{ name: "big", bytes: 2049 }], [], limits), code("out-of-memory"));
  const twice = [{ name: "a", bytes: 4 }, { name: "a", bytes: 4 }];
  assert.throws(() => planArena(twice, [], limits), code("internal"));
  assert.throws(() => planArena([{ name: "a", bytes: 4 }], [["a", "a"]], limits), code("internal"));
});
