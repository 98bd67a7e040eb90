// Data order: pure, inside its split, unbiased, and targets one token ahead.
import assert from "node:assert/strict";
import fc from "fast-check";
import { ShoalError } from "../wire/errors.ts";
import {
  batchOffsets,
  type BatchOptions,
  bytesPerToken,
  corpusOf,
  corpusView,
  isHere,
  positionCount,
  readBatch,
  sliceBatch,
  splitRange,
  type TokenRange,
  type TokenSource,
  windowsOf,
} from "./data.ts";

const DEMO: BatchOptions = { split: "train", tokens: 1_190_317, blockSize: 64, batchSize: 8 };

const PINNED = [148474, 619041, 1037741, 805457];

function isBadCorpus(error: unknown): boolean {
  return error instanceof ShoalError && error.code === "bad-corpus";
}

Deno.test("data: the demo's first micro-batch is pinned, because replays depend on it", () => {
  assert.deepEqual([...batchOffsets(1337, 0, 0, { ...DEMO, batchSize: 4 })], PINNED);
});

Deno.test("data: offsets are a pure function and every argument matters", () => {
  const base = batchOffsets(1, 2, 3, DEMO);
  assert.deepEqual(batchOffsets(1, 2, 3, DEMO), base);
  assert.notDeepEqual(batchOffsets(2, 2, 3, DEMO), base);
  assert.notDeepEqual(batchOffsets(1, 3, 3, DEMO), base);
  assert.notDeepEqual(batchOffsets(1, 2, 4, DEMO), base);
  assert.notDeepEqual(batchOffsets(1, 3, 2, DEMO), base);
});

Deno.test("data: a step reads the same sequences in the same order, however it is cut into micro-batches", () => {
  const counts = fc.record({ step: fc.nat(1000), sequences: fc.integer({ min: 1, max: 64 }) });
  const splits = fc.constantFrom("train" as const, "val" as const);
  fc.assert(
    fc.property(counts, splits, fc.nat(), ({ step, sequences }, split, seed) => {
      const cut = (batchSize: number) =>
        Array.from({ length: sequences / batchSize }, (_, m) => [
          ...batchOffsets(seed, step, m, { ...DEMO, split, batchSize }),
        ]).flat();
      const one = cut(1);
      assert.ok(new Set(one).size > sequences / 2, "the sequences differ");
      for (let size = 2; size <= sequences; size++) {
        if (sequences % size === 0) assert.deepEqual(cut(size), one, `${size} sequences`);
      }
    }),
    { seed: 5 },
  );
});

Deno.test("data: sequences with their targets stay inside their split", () => {
  const arbitrary = fc.record({
    split: fc.constantFrom("train" as const, "val" as const),
    tokens: fc.integer({ min: 1, max: 3000 }),
    blockSize: fc.integer({ min: 1, max: 40 }),
    batchSize: fc.integer({ min: 1, max: 20 }),
  });
  fc.assert(
    fc.property(arbitrary, fc.nat(), (options, seed) => {
      const { begin, end } = splitRange(options.tokens, options.split);
      if (positionCount(options) === 0) {
        assert.ok(end - begin <= options.blockSize);
        assert.throws(() => batchOffsets(seed, 1, 1, options), isBadCorpus);
        return;
      }
      const offsets = batchOffsets(seed, 1, 1, options);
      assert.equal(offsets.length, options.batchSize);
      assert.ok(offsets.every((o) => o >= begin && o + options.blockSize < end));
    }),
    { seed: 3 },
  );
});

Deno.test("data: all positions of a short split occur, the first and the last too", () => {
  const options: BatchOptions = { split: "val", tokens: 100, blockSize: 4, batchSize: 200 };
  const seen = new Set(batchOffsets(5, 0, 0, options));
  assert.deepEqual([...seen].sort((a, b) => a - b), [90, 91, 92, 93, 94, 95]);
});

Deno.test("data: targets are the tokens that follow", () => {
  const corpus = Uint16Array.from({ length: 50 }, (_, i) => i * 7);
  const { tokens, targets } = sliceBatch(corpus, Uint32Array.of(0, 44), 5);
  assert.deepEqual([...tokens], [0, 1, 2, 3, 4, 44, 45, 46, 47, 48].map((i) => i * 7));
  assert.deepEqual([...targets], [1, 2, 3, 4, 5, 45, 46, 47, 48, 49].map((i) => i * 7));
  assert.throws(() => sliceBatch(corpus, Uint32Array.of(45), 5), isBadCorpus);
});

Deno.test("data: a micro-batch read from elsewhere is the one that is cut from a corpus at hand", async () => {
  const corpus = Uint16Array.from({ length: 90 }, (_, i) => i * 7);
  const asked: TokenRange[] = [];
  const source: TokenSource = {
    length: corpus.length,
    read({ begin, end }) {
      asked.push({ begin, end });
      return Promise.resolve(corpus.slice(begin, end));
    },
    expect: () => assert.fail("nothing is expected here"),
    takeWaitMs: () => 0,
  };
  const offsets = Uint32Array.of(3, 0, 84, 3);
  assert.deepEqual(await readBatch(source, offsets, 5), sliceBatch(corpus, offsets, 5));
  assert.deepEqual(asked, windowsOf(offsets, 5));
  assert.deepEqual(asked[2], { begin: 84, end: 90 }, "the last token is a target");
  assert.deepEqual([isHere(corpus), isHere(source)], [true, false]);
});

Deno.test("data: tokens take as few bytes as the vocabulary needs, and are the same after a journey as bytes", () => {
  for (
    const [vocab, width] of [[1, 1], [256, 1], [257, 2], [65_536, 2], [65_537, 4], [262_144, 4]] as const
  ) {
    assert.equal(bytesPerToken(vocab), width, String(vocab));
    const corpus = corpusOf([0, vocab - 1, Math.floor(vocab / 2)], vocab);
    assert.equal(corpus.BYTES_PER_ELEMENT, width);
    const view = corpusView(corpus.slice().buffer as ArrayBuffer, width);
    assert.deepEqual(view, corpus);
    assert.deepEqual([...view], [0, vocab - 1, Math.floor(vocab / 2)]);
  }
});
