// Parquet files as PyArrow writes them (test/fixtures/corpora: PyArrow 25, six rows, one of them empty), and what happens to files that
// are cut short, altered or lie about sizes: an error that says so, and no memory for what was claimed.
import assert from "node:assert/strict";
import { ShoalError } from "../../peer/wire/errors.ts";
import { randomStream } from "../../peer/model/random.ts";
import { parquetDocuments, type RandomAccess } from "./parquet.ts";
import { decodeRuns } from "./parquet_page.ts";
import { walkThrift } from "./thrift_walk.ts";

const TEXTS = ["Call me Ishmael.", "näïve 🐋\nsecond line", "", "Call me Ishmael.", "x".repeat(300)];

function fixture(name: string): Uint8Array {
  return Deno.readFileSync(new URL(`../../test/fixtures/corpora/${name}.parquet`, import.meta.url));
}

function inMemory(bytes: Uint8Array): RandomAccess {
  return { size: bytes.length, read: (at, length) => Promise.resolve(bytes.slice(at, at + length)) };
}

async function texts(bytes: Uint8Array, column = "text"): Promise<string[]> {
  const found: string[] = [];
  for await (const { text, done } of parquetDocuments(inMemory(bytes), { name: "a.parquet", column })) {
    assert.ok(done > 0 && done <= bytes.length);
    found.push(text);
  }
  return found;
}

// Dictionary and two row groups; pages of the second version with prefixes shared; plain; a dictionary without compression.
for (const name of ["snappy", "zstd-v2", "gzip-plain", "none"]) {
  Deno.test(`parquet: the rows of ${name} are PyArrow's, empty ones left out`, async () => {
    assert.deepEqual(await texts(fixture(name)), TEXTS);
    assert.deepEqual(await texts(fixture(name), "note"), ["a", "b", "c", "d", "e", "f"]);
  });
}

Deno.test("parquet: a column that is not there or has no texts is answered with those that are", async () => {
  const known = /its columns of texts are "text", "note": name one as the column/;
  await assert.rejects(texts(fixture("snappy"), "txt"), refusal(known));
  await assert.rejects(texts(fixture("snappy"), "id"), refusal(known));
  await assert.rejects(texts(fixture("snappy"), "tags"), refusal(known));
});

Deno.test("parquet: a file that is none, or is cut short anywhere, is refused", async () => {
  await assert.rejects(
    texts(new TextEncoder().encode("PAR1 and no more")),
    refusal(/no Parquet file, or its end/),
  );
  await assert.rejects(texts(new Uint8Array(0)), refusal(/no Parquet file/));
  const whole = fixture("snappy");
  for (let length = 1; length < whole.length; length += 53) {
    await assert.rejects(texts(whole.subarray(0, length)), refusal(/no Parquet file, or its end is missing/));
    // With its end, but without what lies before.
    const rest = new Uint8Array([...whole.subarray(0, 4), ...whole.subarray(length)]);
    if (length > 4) await assert.rejects(texts(rest), refusal(/cannot be read as Parquet|not UTF-8/));
  }
});

Deno.test("parquet: whatever bytes are altered, it ends with texts or a refusal", async () => {
  const next = randomStream([11]);
  let refused = 0;
  for (const name of ["snappy", "zstd-v2", "gzip-plain", "none"]) {
    const whole = fixture(name);
    for (let i = 0; i < 400; i++) {
      const bytes = whole.slice();
      for (let changes = 1 + next() % 3; changes > 0; changes--) bytes[next() % bytes.length] = next() % 256;
      try {
        await texts(bytes);
      } catch (error) {
        assert.ok(error instanceof ShoalError && error.code === "bad-corpus", `${name} ${i}: ${error}`);
        refused++;
      }
    }
  }
  assert.ok(refused > 400, `${refused} were refused`);
});

Deno.test("parquet: a description longer than the file is refused before it is read", async () => {
  const bytes = fixture("none");
  const view = new DataView(bytes.buffer);
  for (const claim of [bytes.length, 0x7fff_ffff, 0xffff_ffff]) {
    view.setUint32(bytes.length - 8, claim, true);
    await assert.rejects(texts(bytes), refusal(/description has \d+ bytes, more than the file/));
  }
});

Deno.test("thrift: lists that claim more than there is, and nesting without end, are not parsed", () => {
  const walk = (...bytes: number[]) => walkThrift(new DataView(Uint8Array.from(bytes).buffer), 0);
  assert.equal(walk(0x15, 0x02, 0x00), 3, "one number");
  assert.equal(walk(0x19, 0x25, 0x02, 0x04, 0x00), 5, "a list of two numbers");
  assert.equal(walk(0x19, 0xf5, 0x80, 0x80, 0x80, 0x08, 0x02, 0x00), null, "a list of 16 million numbers");
  assert.equal(walk(0x19, 0xf1, 0xff, 0xff, 0xff, 0xff, 0x07, 0x01), null, "a list of two billion flags");
  assert.equal(walk(0x18, 0x05, 0x41, 0x00), null, "a text of five bytes");
  assert.equal(walk(...Array<number>(4000).fill(0x1c), 0x00), null, "structures in one another");
  assert.equal(walk(...Array.from({ length: 90 }, () => [0x19, 0x19]).flat()), null, "lists in one another");
  assert.equal(walk(0x15, 0x80), null, "cut short");
  assert.equal(walk(0x1d, 0x00), null, "a type that Parquet does not have");
});

Deno.test("parquet: runs give as many numbers as were asked for, never more", () => {
  // Three sevens, then eight packed numbers of three bits.
  const bytes = Uint8Array.of(6, 7, 3, 0b10001000, 0b11000110, 0b11111010);
  assert.deepEqual([...decodeRuns(bytes, 3, 11)], [7, 7, 7, 0, 1, 2, 3, 4, 5, 6, 7]);
  assert.deepEqual([...decodeRuns(bytes, 3, 5)], [7, 7, 7, 0, 1]);
  // A run of half a billion, of which two are wanted.
  assert.deepEqual([...decodeRuns(Uint8Array.of(0xfe, 0xff, 0xff, 0xff, 3, 1), 1, 2)], [1, 1]);
  for (const wrong of [[], [6], [0, 0], [3, 1], [0x80, 0x80, 0x80, 0x80, 0x80, 1]]) {
    assert.throws(() => decodeRuns(Uint8Array.from(wrong), 3, 4), /run/, String(wrong));
  }
});

function refusal(pattern: RegExp): (error: unknown) => boolean {
  return (error) => {
    assert.ok(error instanceof ShoalError && error.code === "bad-corpus", String(error));
    assert.match(error.message, pattern);
    return true;
  };
}
