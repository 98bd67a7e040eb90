// TensorBoard's files, taken apart again by a reader of their own: frames with their checksums, then the messages' fields.
import assert from "node:assert/strict";
import { join } from "node:path";
import { EventLog } from "./event_log.ts";
import { Board, BOARD_FOLDER } from "./tensorboard.ts";

/** Bit by bit, unlike the table that the writer uses. */
function crc(bytes: Uint8Array): number {
  let c = ~0;
  for (const byte of bytes) {
    c ^= byte;
    for (let bit = 0; bit < 8; bit++) c = c & 1 ? c >>> 1 ^ 0x82f63b78 : c >>> 1;
  }
  const plain = ~c >>> 0;
  return ((plain >>> 15 | plain << 17) + 0xa282ead8) >>> 0;
}

function records(bytes: Uint8Array): Uint8Array[] {
  const out: Uint8Array[] = [];
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  for (let at = 0; at < bytes.length;) {
    const length = Number(view.getBigUint64(at, true));
    assert.equal(view.getUint32(at + 8, true), crc(bytes.subarray(at, at + 8)));
    const data = bytes.subarray(at + 12, at + 12 + length);
    assert.equal(view.getUint32(at + 12 + length, true), crc(data));
    out.push(data);
    at += length + 16;
  }
  return out;
}

type Field = [number: number, value: number | Uint8Array];

function fields(bytes: Uint8Array): Field[] {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const out: Field[] = [];
  let at = 0;
  const varint = () => {
    let value = 0;
    for (let scale = 1;; scale *= 128) {
      const byte = bytes[at++]!;
      value += (byte & 0x7f) * scale;
      if (byte < 0x80) return value;
    }
  };
  while (at < bytes.length) {
    const key = varint();
    const [number, wire] = [key >> 3, key & 7];
    if (wire === 0) out.push([number, varint()]);
    else if (wire === 1) [out.push([number, view.getFloat64(at, true)]), at += 8];
    else if (wire === 5) [out.push([number, view.getFloat32(at, true)]), at += 4];
    else {
      const length = varint();
      out.push([number, bytes.subarray(at, at + length)]);
      at += length;
    }
  }
  return out;
}

function one(list: Field[], number: number): number | Uint8Array {
  const found = list.filter(([it]) => it === number);
  assert.equal(found.length, 1, `field ${number}`);
  return found[0]![1];
}

function inside(list: Field[], ...path: number[]): Field[] {
  return path.reduce((at, number) => fields(one(at, number) as Uint8Array), list);
}

function words(value: number | Uint8Array): string {
  return new TextDecoder().decode(value as Uint8Array);
}

async function withRun(body: (dir: string) => void): Promise<void> {
  const dir = await Deno.makeTempDir({ prefix: "shoal-board-" });
  try {
    body(dir);
  } finally {
    await Deno.remove(dir, { recursive: true });
  }
}

function read(dir: string): Field[][] {
  const folder = join(dir, BOARD_FOLDER);
  const [file] = [...Deno.readDirSync(folder)];
  assert.match(file!.name, /^events\.out\.tfevents\.\d+\.shoal$/);
  return records(Deno.readFileSync(join(folder, file!.name))).map(fields);
}

Deno.test("tensorboard: a file begins with its version, and a step is its curves at its step and time", async () => {
  await withRun((dir) => {
    const board = new Board(dir, 1_700_000_000_000);
    board.line(1_700_000_001_500, { event: "step", step: 70_000, "train/loss": 1.25, lr: 3e-4, peers: 5 });
    board.close();
    const [version, step, ...rest] = read(dir);
    assert.equal(words(one(version!, 3)), "brain.Event:2");
    assert.equal(rest.length, 0);
    assert.deepEqual([one(step!, 1), one(step!, 2)], [1_700_000_001.5, 70_000]);
    const values = inside(step!, 5).map(([, value]) => fields(value as Uint8Array));
    assert.deepEqual(values.map((it) => [words(one(it, 1)), one(it, 2)]), [
      ["loss/train", 1.25],
      ["run/learning_rate", Math.fround(3e-4)],
      ["swarm/peers", 5],
    ]);
  });
});

Deno.test("tensorboard: a sample is a text, a line without a curve or a step is nothing", async () => {
  await withRun((dir) => {
    const board = new Board(dir, 0);
    for (
      const line of [{ event: "state", state: "training" }, { event: "step", step: -1, lr: 1 }, { step: 3 }]
    ) {
      board.line(0, line);
    }
    board.line(0, { event: "sample", step: 9, text: "Call me Ishmæl." });
    board.close();
    const [, sample, ...rest] = read(dir);
    assert.equal(rest.length, 0);
    const value = inside(sample!, 5, 1);
    assert.equal(words(one(value, 1)), "sample");
    assert.equal(words(one(inside(value, 9, 1), 1)), "text");
    const tensor = inside(value, 8);
    assert.equal(one(tensor, 1), 7);
    assert.equal(one(inside(tensor, 2, 2), 1), 1);
    assert.equal(words(one(tensor, 8)), "Call me Ishmæl.");
  });
});

Deno.test("tensorboard: a run's event log writes both files from the same lines", async () => {
  await withRun((dir) => {
    const log = new EventLog(dir);
    log.metric({ at_ms: 5_000, event: "eval", step: 50, "val/loss": 2.5 });
    log.close();
    const event = read(dir)[1]!;
    assert.deepEqual([one(event, 1), one(event, 2)], [5, 50]);
    assert.equal(one(inside(event, 5, 1), 2), 2.5);
    assert.match(Deno.readTextFileSync(join(dir, "metrics.jsonl")), /"val\/loss":2.5/);
  });
});
