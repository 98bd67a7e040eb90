// Pages of a corpus: the same tokens as at hand, each page fetched once while it is kept, memory bounded, damage found. A whole run on one
// is in paged_run_test.ts.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import fc from "fast-check";
import { type BytesPerToken, corpusView } from "./model/data.ts";
import { TokenPages } from "./token_pages.ts";
import { ShoalError } from "./wire/errors.ts";

const PAGE = 64;

interface Served {
  pages: TokenPages;
  bytes: Uint8Array<ArrayBuffer>;
  /** What was asked for. */
  asked: number[][];
  /** Spoils an answer; the argument counts them. */
  spoil: { with: ((count: number, bytes: Uint8Array) => Uint8Array) | null; fails: number };
  /** Answers wait for it. */
  gate: { open: Promise<void> };
}

function serve(size: number, { width = 1 as BytesPerToken, cacheBytes = 1 << 20 } = {}): Served {
  const bytes = Uint8Array.from({ length: size * width }, (_, i) => (i * 7 + (i >> 8)) & 0xff);
  const asked: number[][] = [], spoil: Served["spoil"] = { with: null, fails: 0 };
  const gate = { open: Promise.resolve() };
  const digests = Buffer.concat(
    Array.from(
      { length: Math.ceil(bytes.length / PAGE) },
      (_, i) => createHash("sha256").update(bytes.subarray(i * PAGE, (i + 1) * PAGE)).digest(),
    ),
  );
  const pages = new TokenPages({
    ...{ tokens: size, bytesPerToken: width, pageBytes: PAGE, cacheBytes, pauseMs: 0 },
    digests: () => Promise.resolve(new Uint8Array(digests)),
    fetch: async (numbers) => {
      asked.push([...numbers]);
      if (spoil.fails > 0) {
        spoil.fails--;
        throw new TypeError("connection reset");
      }
      await gate.open;
      const parts = numbers.map((number) => bytes.subarray(number * PAGE, (number + 1) * PAGE));
      const answer = new Uint8Array(Buffer.concat(parts));
      return spoil.with?.(asked.length, answer) ?? answer;
    },
  });
  return { pages, bytes, asked, spoil, gate };
}

const settle = () => new Promise((resolve) => setTimeout(resolve));

function isBadCorpus(pattern: RegExp) {
  return (error: unknown) =>
    error instanceof ShoalError && error.code === "bad-corpus" && pattern.test(error.message);
}

Deno.test("pages: any range has the tokens that a corpus at hand has, whatever was read and expected before", async () => {
  const range = fc.tuple(fc.nat(499), fc.integer({ min: 1, max: 150 }));
  const steps = fc.array(fc.record({ range, expects: fc.boolean() }), { minLength: 1, maxLength: 12 });
  await fc.assert(
    fc.asyncProperty(steps, fc.constantFrom<BytesPerToken>(1, 2, 4), async (reads, width) => {
      const { pages, bytes } = serve(500, { width, cacheBytes: 4 * PAGE });
      const whole = corpusView(bytes.buffer, width);
      for (const { range: [begin, length], expects } of reads) {
        const end = Math.min(500, begin + length);
        if (expects) pages.expect([{ begin, end }]);
        else assert.deepEqual(await pages.read({ begin, end }), whole.slice(begin, end));
      }
    }),
    { seed: 7, numRuns: 60 },
  );
});

Deno.test("pages: what is read at a time travels together, and what is kept or under way is not asked for again", async () => {
  const { pages, asked } = serve(40_000);
  const ranges = [[10, 150], [60, 70], [6400, 6410], [39_990, 40_000]] as const;
  await Promise.all(ranges.map(([begin, end]) => pages.read({ begin, end })));
  assert.deepEqual(asked, [[0, 1, 2, 100, 624]]);
  await pages.read({ begin: 100, end: 300 });
  assert.deepEqual(asked.slice(1), [[3, 4]]);
  pages.expect([{ begin: 0, end: 400 }]);
  await settle();
  assert.deepEqual(asked.slice(2), [[5, 6]]);
  await pages.read({ begin: 0, end: 40_000 });
  assert.deepEqual(
    asked.slice(3).map((numbers) => numbers.length),
    [256, 256, 625 - 9 - 512],
    "too many at a time",
  );
  for (const [begin, end] of [[-1, 3], [5, 5], [39_999, 40_001]] as const) {
    await assert.rejects(pages.read({ begin, end }), isBadCorpus(/leave the corpus of 40000/));
  }
});

Deno.test("pages: who waits is served before who only expects, and few requests are made at a time", async () => {
  const { pages, asked, gate } = serve(100_000);
  const opened = Promise.withResolvers<void>();
  gate.open = opened.promise;
  // Five requests' worth, of which four are made at a time.
  pages.expect([{ begin: 0, end: (4 * 256 + 40) * PAGE }]);
  await settle();
  const late = pages.read({ begin: 90_000, end: 90_010 }), soon = pages.read({ begin: 66_000, end: 66_001 });
  await settle();
  assert.deepEqual(asked.map((numbers) => numbers.length), [256, 256, 256, 256]);
  opened.resolve();
  await Promise.all([late, soon]);
  // Of those that were not under way yet, the ones that somebody reads come first.
  assert.deepEqual(asked[4], [1406, 1031]);
  await settle();
  const before = asked.length;
  await pages.read({ begin: 1024 * PAGE, end: 1025 * PAGE });
  assert.equal(asked.length, before, "what was expected had not been fetched");
});

Deno.test("pages: what is kept is bounded, the oldest goes first, and expectations take half of it at most", async () => {
  const { pages, asked } = serve(100_000, { cacheBytes: 8 * PAGE });
  const read = (page: number) => pages.read({ begin: page * PAGE, end: page * PAGE + 1 });
  for (let page = 0; page < 16; page += 2) await read(page);
  await read(0);
  await read(100);
  const before = asked.length;
  await read(0);
  assert.equal(asked.length, before, "what was read last went first");
  await read(2);
  assert.equal(asked.length, before + 1, "more is kept than may be");
  pages.expect(
    Array.from({ length: 40 }, (_, i) => ({ begin: (500 + 2 * i) * PAGE, end: (500 + 2 * i) * PAGE + 1 })),
  );
  for (let i = 0; i < 10; i++) await settle();
  assert.deepEqual(asked.slice(before + 1).flat(), [500, 502, 504, 506], "they pushed everything else out");
  // Once they are read there is room for others.
  await read(500);
  pages.expect([{ begin: 900 * PAGE, end: 902 * PAGE }]);
  for (let i = 0; i < 10; i++) await settle();
  assert.deepEqual(asked.slice(before + 2).flat(), [900]);
});

Deno.test("pages: damage is found, asked for again, and told when it stays; the next reader asks anew", async () => {
  const { pages, bytes, asked, spoil } = serve(1000);
  const flip = (answer: Uint8Array) => answer.map((byte, i) => i === 70 ? byte ^ 1 : byte);
  spoil.with = (count, answer) => count < 3 ? flip(answer) : answer;
  assert.deepEqual(await pages.read({ begin: 0, end: 200 }), bytes.slice(0, 200));
  assert.equal(asked.length, 3);
  spoil.with = (count, answer) => count < 5 ? new Uint8Array(answer.length + 1) : answer;
  assert.deepEqual(await pages.read({ begin: 300, end: 310 }), bytes.slice(300, 310));
  const longer = (answer: Uint8Array) => new Uint8Array([...answer, 0]);
  spoil.with = (count, answer) => count === 6 ? longer(answer) : answer;
  await pages.read({ begin: 400, end: 410 });
  assert.equal(asked.length, 7, "more than was asked for was taken");
  spoil.with = (_, answer) => answer.slice(0, answer.length - 1);
  await assert.rejects(pages.read({ begin: 500, end: 510 }), isBadCorpus(/arrived damaged 3 times/));
  pages.expect([{ begin: 800, end: 810 }]);
  for (let i = 0; i < 10; i++) await settle();
  spoil.with = null;
  assert.deepEqual(await pages.read({ begin: 500, end: 510 }), bytes.slice(500, 510));
  assert.deepEqual(await pages.read({ begin: 800, end: 810 }), bytes.slice(800, 810));
});

Deno.test("pages: what is lost on the way is asked for again, and then told as it was", async () => {
  const { pages, bytes, asked, spoil } = serve(1000);
  spoil.fails = 2;
  assert.deepEqual(await pages.read({ begin: 0, end: 10 }), bytes.slice(0, 10));
  assert.equal(asked.length, 3);
  spoil.fails = 3;
  await assert.rejects(pages.read({ begin: 500, end: 510 }), /connection reset/);
  assert.deepEqual(await pages.read({ begin: 500, end: 510 }), bytes.slice(500, 510));
});

Deno.test("pages: the time for which a reader waits is told once, and reads at a time are not counted twice", async () => {
  const { pages, gate } = serve(10_000);
  const opened = Promise.withResolvers<void>();
  gate.open = opened.promise;
  const began = performance.now();
  const reads = [0, 1000, 2000].map((begin) => pages.read({ begin, end: begin + 5 }));
  await new Promise((resolve) => setTimeout(resolve, 30));
  opened.resolve();
  await Promise.all(reads);
  const waited = pages.takeWaitMs(), most = performance.now() - began;
  assert.ok(waited >= 29 && waited <= most, `${waited} of ${most}`);
  assert.equal(pages.takeWaitMs(), 0);
});

Deno.test("pages: hashes of another corpus, and pages that cannot be, are refused", async () => {
  const about = {
    tokens: 1000,
    bytesPerToken: 1 as const,
    pauseMs: 0,
    fetch: () => Promise.resolve(new Uint8Array(64)),
  };
  const page = new Uint8Array(64), digest = createHash("sha256").update(page).digest();
  const right = new Uint8Array(Buffer.concat(Array(16).fill(digest)));
  let answers = 0;
  const digests = () => Promise.resolve(answers++ < 3 ? right.subarray(32) : right);
  const pages = new TokenPages({ ...about, pageBytes: PAGE, digests });
  await assert.rejects(pages.read({ begin: 0, end: 1 }), isBadCorpus(/480 bytes are no hashes of 16 pages/));
  assert.deepEqual(await pages.read({ begin: 0, end: 1 }), page.subarray(0, 1), "wrong ones are kept");
  for (const pageBytes of [0, 63, 66, NaN, 8 << 20]) {
    assert.throws(
      () => new TokenPages({ ...about, pageBytes, digests: about.fetch }),
      isBadCorpus(/cannot be/),
    );
  }
});
