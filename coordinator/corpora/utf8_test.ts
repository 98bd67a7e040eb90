// Decoding a text as its bytes come: nothing is lost at the borders of reads, and the first byte that is no UTF-8 is found with its line.
import assert from "node:assert/strict";
import fc from "fast-check";
import { ShoalError } from "../../peer/wire/errors.ts";
import { decodeStream, firstInvalid, refuseMagic } from "./utf8.ts";

async function* cut(bytes: Uint8Array, size: number): AsyncGenerator<Uint8Array> {
  for (let at = 0; at < bytes.length; at += size) yield await Promise.resolve(bytes.slice(at, at + size));
}

async function decoded(bytes: Uint8Array, size: number): Promise<string> {
  let text = "", read = 0;
  for await (const piece of decodeStream("a.txt", cut(bytes, size))) {
    text += piece.text;
    read += piece.bytes;
  }
  assert.equal(read, bytes.length);
  return text;
}

Deno.test("utf-8: a text is the same however its bytes are cut into reads", async () => {
  const text = fc.string({ unit: "grapheme", maxLength: 40 }).filter((it) => !it.startsWith("\ufeff"));
  await fc.assert(
    fc.asyncProperty(text, fc.integer({ min: 1, max: 9 }), async (text, size) => {
      assert.equal(await decoded(new TextEncoder().encode(`t${text}`), size), `t${text}`);
    }),
    { seed: 5, numRuns: 300 },
  );
});

Deno.test("utf-8: the first wrong byte is found, as the platform's own decoder sees it", () => {
  const bytes = fc.uint8Array({ maxLength: 12 });
  const lead = fc.constantFrom(
    0x41,
    0xc1,
    0xc3,
    0xa9,
    0xe0,
    0x80,
    0xbf,
    0xed,
    0xa0,
    0xf0,
    0x9f,
    0x90,
    0xf4,
    0xf5,
  );
  fc.assert(
    fc.property(
      fc.oneof(bytes, fc.array(lead, { maxLength: 8 }).map((it) => Uint8Array.from(it))),
      (bytes) => {
        const at = firstInvalid(bytes);
        // In a stream, an unfinished end is not wrong yet.
        const decoder = new TextDecoder("utf-8", { fatal: true });
        const decode = () => decoder.decode(bytes, { stream: true });
        if (at < 0) assert.doesNotThrow(decode);
        else assert.throws(decode);
        if (at > 0) assert.equal(firstInvalid(bytes.subarray(0, at)), -1);
      },
    ),
    { seed: 6, numRuns: 3000 },
  );
});

Deno.test("utf-8: an error names the line and the byte, over the borders of reads", async () => {
  const bad = new Uint8Array([...new TextEncoder().encode("ä\nb\nc"), 0xff, 0x0a]);
  const cutOff = new TextEncoder().encode("ab\n\u{1f40b}").subarray(0, 5);
  for (const size of [1, 2, 3, 100]) {
    await assert.rejects(decoded(bad, size), refusal(/"a.txt", line 3, byte 6: ff( 0a)? is not UTF-8/));
    await assert.rejects(decoded(cutOff, size), refusal(/line 2, byte 3: f0 9f is not UTF-8/));
  }
});

Deno.test("utf-8: a byte order mark is no character of the text", async () => {
  assert.equal(await decoded(new TextEncoder().encode("\ufeffab\ufeff"), 100), "ab\ufeff");
});

Deno.test("utf-8: what is no text at all is named by its first bytes", () => {
  const files: [number[], RegExp][] = [
    [[0x50, 0x4b, 3, 4, 0], /is a ZIP archive.*unpack it first/],
    [[0x1f, 0x8b, 8], /gzip/],
    [[0x50, 0x41, 0x52, 0x31], /is a Parquet file.*\.parquet/],
    [[0xff, 0xfe, 0x41, 0], /UTF-16.*save it as UTF-8/],
  ];
  for (const [bytes, pattern] of files) {
    assert.throws(() => refuseMagic("a.txt", Uint8Array.from(bytes)), refusal(pattern));
  }
  assert.doesNotThrow(() => refuseMagic("a.txt", new TextEncoder().encode("PK is a text")));
});

function refusal(pattern: RegExp): (error: unknown) => boolean {
  return (error) => {
    assert.ok(error instanceof ShoalError && error.code === "bad-corpus", String(error));
    assert.match(error.message, pattern);
    return true;
  };
}
