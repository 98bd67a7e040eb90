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
  asked: [number, number][];
  /** Spoils an answer; the argument counts them. */
  spoil: { with: ((count: number, bytes: Uint8Array) => Uint8Array) | null };
  /** Answers wait for it. */
  gate: { open: Promise<void> };
}

function serve(size: number, { width = 1 as BytesPerToken, cacheBytes = 1 << 20 } = {}): Served {
  const bytes = Uint8Array.from({ length: size * width }, (_, i) => (i * 7 + (i >> 8)) & 0xff);
  const asked: [number, number][] = [], spoil: Served["spoil"] = { with: null };
  const gate = { open: Promise.resolve() };
  const digests = Buffer.concat(
    Array.from(
      { length: Math.ceil(bytes.length / PAGE) },
      (_, i) => createHash("sha256").update(bytes.subarray(i * PAGE, (i + 1) * PAGE)).digest(),
    ),
  );
  const pages = new TokenPages({
    ...{ tokens: size, bytesPerToken: width, pageBytes: PAGE, cacheBytes },
    digests: () => Promise.resolve(new Uint8Array(digests)),
    fetch: async (begin, end) => {
      asked.push([begin, end]);
      await gate.open;
      const answer = bytes.slice(begin, end);
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

Deno.test("pages: neighbours travel together, and what is kept or under way is not asked for again", async () => {
  const { pages, asked } = serve(1000);
  await Promise.all([pages.read({ begin: 10, end: 150 }), pages.read({ begin: 60, end: 70 })]);
  assert.deepEqual(asked, [[0, 192]]);
  await pages.read({ begin: 100, end: 300 });
  assert.deepEqual(asked.slice(1), [[192, 320]]);
  await pages.read({ begin: 990, end: 1000 });
  assert.deepEqual(asked.slice(2), [[960, 1000]], "the last page is shorter");
  for (const [begin, end] of [[-1, 3], [5, 5], [999, 1001]] as const) {
    await assert.rejects(pages.read({ begin, end }), isBadCorpus(/leave the corpus of 1000/));
  }
});

Deno.test("pages: who waits is served before who only expects, and few requests are made at a time", async () => {
  const { pages, asked, gate } = serve(100_000);
  const opened = Promise.withResolvers<void>();
  gate.open = opened.promise;
  pages.expect(Array.from({ length: 12 }, (_, i) => ({ begin: i * 1000, end: i * 1000 + 10 })));
  const late = pages.read({ begin: 90_000, end: 90_010 }), soon = pages.read({ begin: 11_000, end: 11_005 });
  await settle();
  assert.equal(asked.length, 6, "more requests than may be made at a time");
  opened.resolve();
  await Promise.all([late, soon]);
  // Of those that were not under way yet, the ones that somebody reads come first.
  assert.deepEqual(asked.slice(6, 8).map(([begin]) => begin), [89_984, 10_944]);
  await settle();
  const before = asked.length;
  await pages.read({ begin: 3000, end: 3010 });
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
  assert.equal(asked.length, before + 5, "expectations pushed everything else out");
});

Deno.test("pages: damage is found, asked for again, and told when it stays; the next reader asks anew", async () => {
  const { pages, bytes, asked, spoil } = serve(1000);
  const flip = (answer: Uint8Array) => answer.map((byte, i) => i === 70 ? byte ^ 1 : byte);
  spoil.with = (count, answer) => count < 3 ? flip(answer) : answer;
  assert.deepEqual(await pages.read({ begin: 0, end: 200 }), bytes.slice(0, 200));
  assert.equal(asked.length, 3);
  spoil.with = (_, answer) => answer.slice(0, answer.length - 1);
  await assert.rejects(pages.read({ begin: 500, end: 510 }), isBadCorpus(/arrived damaged 3 times/));
  pages.expect([{ begin: 800, end: 810 }]);
  for (let i = 0; i < 10; i++) await settle();
  spoil.with = null;
  assert.deepEqual(await pages.read({ begin: 500, end: 510 }), bytes.slice(500, 510));
  assert.deepEqual(await pages.read({ begin: 800, end: 810 }), bytes.slice(800, 810));
});

Deno.test("pages: hashes of another corpus, and pages that cannot be, are refused", async () => {
  const about = { tokens: 1000, bytesPerToken: 1 as const, fetch: () => Promise.resolve(new Uint8Array(64)) };
  let answers = 0;
  const pages = new TokenPages({
    ...about,
    pageBytes: PAGE,
    digests: () => Promise.resolve(new Uint8Array(32 * ++answers)),
  });
  await assert.rejects(pages.read({ begin: 0, end: 1 }), isBadCorpus(/32 bytes are no hashes of 16 pages/));
  await assert.rejects(pages.read({ begin: 0, end: 1 }), isBadCorpus(/64 bytes/));
  for (const pageBytes of [0, 63, 66, NaN, 8 << 20]) {
    assert.throws(
      () => new TokenPages({ ...about, pageBytes, digests: about.fetch }),
      isBadCorpus(/cannot be/),
    );
  }
});
