// Chunks: round trips for any mix of frames, the wrap of ids, and refusals without exceptions for anything
// foreign.
import assert from "node:assert/strict";
import fc from "fast-check";
import { FRAME_BYTES_MAX } from "../wire/frame.ts";
import {
  type Chunk,
  CHUNK_BYTES_MAX,
  CHUNK_FIELDS,
  CHUNK_HEADER_BYTES,
  CHUNK_PAYLOAD_BYTES_MAX,
  CHUNK_TYPES,
  ChunkQueue,
  controlChunk,
  decodeChunk,
  encodeChunk,
  GOODBYE_BYTES_MAX,
  Reassembler,
} from "./chunks.ts";
import type { Priority } from "./link.ts";

const SEED = { seed: 20240611, numRuns: 100 };

function through(bytes: Uint8Array): Chunk {
  const chunk = decodeChunk(bytes);
  assert.ok(chunk.ok, chunk.ok ? "" : chunk.reason);
  return chunk.value;
}

/** Sends everything that waits through bytes into `into`; gives the frames that came out. */
function drain(queue: ChunkQueue, into: Reassembler): Uint8Array[] {
  const frames: Uint8Array[] = [];
  for (let chunk = queue.next(); chunk !== null; chunk = queue.next()) {
    const bytes = encodeChunk(chunk);
    assert.ok(bytes.length <= CHUNK_BYTES_MAX);
    const result = into.accept(through(bytes));
    assert.ok(result.ok, result.ok ? "" : result.reason);
    if (result.value !== null) frames.push(result.value);
  }
  return frames;
}

function dataChunk(fields: Partial<Chunk>): Chunk {
  return { type: "data", id: 0, offset: 0, total: 0, priority: 0, payload: new Uint8Array(0), ...fields };
}

Deno.test("chunks: any mix of sizes and priorities comes out whole and in order", () => {
  const size = fc.oneof(
    fc.nat(2000),
    fc.constantFrom(0, CHUNK_PAYLOAD_BYTES_MAX - 1, CHUNK_PAYLOAD_BYTES_MAX, 150_000),
  );
  const message = fc.record({ size, priority: fc.nat(2) });
  fc.assert(
    fc.property(fc.array(message, { maxLength: 12 }), (messages) => {
      const queue = new ChunkQueue();
      const frames = messages.map(({ size }, i) => new Uint8Array(size).fill(i + 1));
      messages.forEach(({ priority }, i) => queue.push(frames[i]!, priority as Priority));
      const expected = [0, 1, 2].flatMap((p) => frames.filter((_, i) => messages[i]!.priority === p));
      assert.deepEqual(drain(queue, new Reassembler()), expected);
      assert.deepEqual([queue.bytes, queue.frames, queue.head], [0, 0, null]);
    }),
    SEED,
  );
});

Deno.test("chunks: ids go on across the wrap of 32 bits", () => {
  const first = 0xfffffffd;
  const queue = new ChunkQueue(first);
  const reassembler = new Reassembler(first);
  for (let i = 0; i < 6; i++) queue.push(new Uint8Array(70_000).fill(i), 1);
  const frames = drain(queue, reassembler);
  assert.deepEqual(
    frames.map((frame) => [frame.length, frame[69_999]]),
    [0, 1, 2, 3, 4, 5].map((i) => [70_000, i]),
  );
});

Deno.test("chunks: an urgent frame gets in between the chunks of a bulk frame", () => {
  const queue = new ChunkQueue();
  const reassembler = new Reassembler();
  queue.push(new Uint8Array(200_000), 2);
  reassembler.accept(queue.next()!);
  queue.push(new Uint8Array([42]), 0);
  assert.equal(queue.head, 0);
  assert.deepEqual(drain(queue, reassembler).map((frame) => frame.length), [1, 200_000]);
});

Deno.test("chunks: a lost, repeated, reordered or resized chunk is a bad-frame", () => {
  const queue = new ChunkQueue();
  queue.push(new Uint8Array(200_000), 0);
  const chunks = [queue.next()!, queue.next()!, queue.next()!, queue.next()!];
  const orders = [[1], [0, 0], [0, 2], [0, 1, 3], [0, 1, 1]];
  for (const order of orders) {
    const reassembler = new Reassembler();
    const results = order.map((i) => reassembler.accept(chunks[i]!));
    assert.equal(results.at(-1)!.ok, false, `order ${order}`);
  }
  const reassembler = new Reassembler();
  reassembler.accept(chunks[0]!);
  assert.equal(reassembler.accept({ ...chunks[1]!, total: 200_001 }).ok, false);
});

Deno.test("chunks: a repeated whole frame is a bad-frame, not a second delivery", () => {
  const reassembler = new Reassembler();
  const only = dataChunk({ total: 1, payload: new Uint8Array(1) });
  assert.deepEqual(reassembler.accept(only), { ok: true, value: new Uint8Array(1) });
  assert.equal(reassembler.accept(only).ok, false);
  assert.equal(reassembler.accept({ ...only, id: 2 }).ok, false);
});

Deno.test("chunks: impossible headers are refused", () => {
  const full = new Uint8Array(CHUNK_PAYLOAD_BYTES_MAX);
  const wrong: Chunk[] = [
    dataChunk({ total: FRAME_BYTES_MAX + 1, payload: full }),
    dataChunk({ total: 10, payload: new Uint8Array(9) }),
    dataChunk({ total: 10, payload: new Uint8Array(11) }),
    dataChunk({ total: 10, offset: 11 }),
    dataChunk({ total: 10, offset: 10 }),
    dataChunk({ total: 200_000, payload: new Uint8Array(1) }),
    controlChunk("ping", 1, { payload: new Uint8Array(1) }),
    controlChunk("goodbye", 1, { payload: new Uint8Array(GOODBYE_BYTES_MAX + 1) }),
  ];
  for (const chunk of wrong) {
    const result = decodeChunk(encodeChunk(chunk));
    assert.equal(result.ok ? "accepted" : result.code, "bad-frame", JSON.stringify({ ...chunk, payload: 0 }));
  }
  const version = encodeChunk(controlChunk("ping", 1));
  version[13] = 2;
  const result = decodeChunk(version);
  assert.equal(result.ok ? "accepted" : result.code, "wrong-version");
});

Deno.test("chunks: random bytes never throw, and what is accepted is canonical", () => {
  const noise = fc.uint8Array({ maxLength: 100 });
  // Random type and version bytes alone would hardly ever pass the first check.
  const nearly = fc.tuple(noise, fc.nat(7), fc.nat(3)).map(([tail, type, priority]) => {
    const bytes = encodeChunk(controlChunk("ping", 77, { total: tail.length, payload: tail }));
    bytes[14] = type;
    bytes[12] = priority;
    return bytes;
  });
  fc.assert(
    fc.property(fc.oneof(noise, nearly), (bytes) => {
      const chunk = decodeChunk(bytes);
      if (!chunk.ok) return;
      assert.deepEqual(encodeChunk(chunk.value), bytes);
      new Reassembler().accept(chunk.value);
    }),
    { ...SEED, numRuns: 2000 },
  );
});

Deno.test("chunks: docs/protocol.md shows the chunk header", async () => {
  const text = await Deno.readTextFile(new URL("../../docs/protocol.md", import.meta.url));
  const begin = text.indexOf("## Chunks");
  const section = text.slice(begin, text.indexOf("\n## ", begin));
  const rows = [...section.matchAll(/^\| (\d+) \| `(\w+)` \| (\w+) \|/gm)];
  const shown = rows.map(([, offset, name, type]) => ({ name, offset: Number(offset), type }));
  assert.deepEqual(shown, CHUNK_FIELDS);
  const types = [...section.matchAll(/^\| (\d+) \| (\w+) \|/gm)].map((
    [, number, type],
  ) => [Number(number), type]);
  assert.deepEqual(types, CHUNK_TYPES.map((type, i) => [i, type]));
  assert.equal(CHUNK_HEADER_BYTES, 16);
});
