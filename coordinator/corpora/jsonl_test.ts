// JSON Lines: documents come out as they went in, and each kind of line that does not fit is named by its number.
import assert from "node:assert/strict";
import fc from "fast-check";
import { ShoalError } from "../../peer/wire/errors.ts";
import { DEPTH_MAX, jsonlDocuments, LINE_BYTES_MAX } from "./jsonl.ts";

async function* cut(bytes: Uint8Array, size: number): AsyncGenerator<Uint8Array> {
  for (let at = 0; at < bytes.length; at += size) yield await Promise.resolve(bytes.slice(at, at + size));
}

async function documents(text: string | Uint8Array, field = "text", size = 7): Promise<string[]> {
  const bytes = typeof text === "string" ? new TextEncoder().encode(text) : text;
  const found: string[] = [];
  for await (const { text } of jsonlDocuments(cut(bytes, size), { name: "a.jsonl", field })) found.push(text);
  return found;
}

Deno.test("jsonl: documents come out as they went in, however lines end and reads fall", async () => {
  const list = fc.array(fc.string({ unit: "grapheme", maxLength: 12 }), { maxLength: 6 });
  const end = fc.constantFrom("\n", "\r\n", "\n\n", "\n  \n");
  await fc.assert(
    fc.asyncProperty(list, end, fc.integer({ min: 1, max: 40 }), async (list, end, size) => {
      const file = list.map((text) => JSON.stringify({ id: 1, body: text, rest: [{}] })).join(end);
      assert.deepEqual(await documents(file, "body", size), list);
    }),
    { seed: 7, numRuns: 200 },
  );
});

Deno.test("jsonl: a line that does not fit is named, with what was expected", async () => {
  const good = '{"text":"a"}\n\n';
  const lines: [string, RegExp][] = [
    ["{", /line 3: it is not JSON/],
    ['{"text": "a" "b"}', /line 3: it is not JSON.*begins with "\{\\"text/],
    ["[1]", /line 3: it is a list; each line is an object such as \{"text":"..."\}/],
    ["null", /line 3: it is null/],
    ['"a"', /line 3: it is a string/],
    ['{"body":"a","n":1}', /line 3: it has no field "text"; it has "body", "n": name one as the column/],
    ['{"__proto__":{"text":"a"}}', /line 3: it has no field "text"/],
    ['{"text":5}', /line 3: its field "text" is a number, not text/],
    ['{"text":["a"]}', /line 3: its field "text" is a list/],
    ['{"text":"\\ud800"}', /line 3: .*half of a surrogate pair/],
    [`{"text":${"[".repeat(DEPTH_MAX)}`, /line 3: it nests more than 100 levels deep/],
  ];
  for (const [line, pattern] of lines) {
    await assert.rejects(documents(`${good}${line}\n{"text":"b"}\n`), refusal(pattern), line);
  }
  await assert.rejects(documents('{"a":1}', "constructor"), refusal(/no field "constructor"/));
});

Deno.test("jsonl: brackets within a text are no nesting", async () => {
  const text = '["'.repeat(DEPTH_MAX + 1);
  assert.deepEqual(await documents(JSON.stringify({ text })), [text]);
});

Deno.test("jsonl: bytes that are no UTF-8 are named by line and byte", async () => {
  const bytes = new Uint8Array([...new TextEncoder().encode('{"text":"a"}\n{"text":"'), 0xc3, 0x28]);
  await assert.rejects(documents(bytes), refusal(/line 2, byte 22: c3 28 is not UTF-8/));
  await assert.rejects(documents(Uint8Array.of(0x50, 0x4b, 3, 4)), refusal(/ZIP archive/));
});

Deno.test("jsonl: a line without an end is given up at its limit, not held", async () => {
  let given = 0;
  async function* endless(): AsyncGenerator<Uint8Array> {
    while (true) {
      given += 1 << 20;
      yield await Promise.resolve(new Uint8Array(1 << 20).fill(0x61));
    }
  }
  await assert.rejects(
    Array.fromAsync(jsonlDocuments(endless(), { name: "a.jsonl", field: "text" })),
    refusal(/line 1: it has more than 32 MiB/),
  );
  assert.ok(given <= LINE_BYTES_MAX + (2 << 20), `${given} bytes were taken`);
});

function refusal(pattern: RegExp): (error: unknown) => boolean {
  return (error) => {
    assert.ok(error instanceof ShoalError && error.code === "bad-corpus", String(error));
    assert.match(error.message, pattern);
    return true;
  };
}
