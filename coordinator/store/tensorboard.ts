// A run's curves and samples as TensorBoard reads them: an event file of framed protocol-buffer records, written beside
// metrics.jsonl, which stays the source of truth. Encodes the few messages that are needed (tensorflow/core/util/event.proto,
// framework/summary.proto; records as in lib/io/record_writer.h) and reads nothing.
import { join } from "node:path";
import { crc32c } from "../../peer/wire/crc32c.ts";

/** Folder beside metrics.jsonl: `tensorboard --logdir runs` finds every run. */
export const BOARD_FOLDER = "tensorboard";

/** Fields of a metrics line that are a curve, as tag. */
const CURVES: Readonly<Record<string, string>> = {
  "train/loss": "loss/train",
  "val/loss": "loss/validation",
  lr: "run/learning_rate",
  grad_norm: "run/gradient_norm",
  tokens_per_s: "run/tokens_per_second",
  step_s: "time/step_seconds",
  predicted_s: "time/predicted_seconds",
  bubble: "time/bubble",
  peers: "swarm/peers",
  stall_ms: "swarm/stall_ms",
  steps_at_risk: "swarm/steps_at_risk",
};

const FILE_VERSION = "brain.Event:2";
/** TensorFlow's DataType DT_STRING. */
const STRING_TYPE = 7;
const MASK_DELTA = 0xa282ead8;

export class Board {
  readonly #file: Deno.FsFile;

  /** A new file in the run's folder; a resumed run has several, which TensorBoard reads as one. */
  constructor(runDir: string, nowMs: number) {
    const folder = join(runDir, BOARD_FOLDER);
    Deno.mkdirSync(folder, { recursive: true });
    const name = `events.out.tfevents.${Math.floor(nowMs / 1000)}.shoal`;
    this.#file = Deno.openSync(join(folder, name), { create: true, append: true });
    this.#write(nowMs, text(3, FILE_VERSION));
  }

  /** What a line of metrics.jsonl has to show; nothing for most kinds of line. */
  line(nowMs: number, line: Readonly<Record<string, unknown>>): void {
    const { step } = line;
    if (typeof step !== "number" || !Number.isInteger(step) || step < 0) return;
    const values = Object.entries(CURVES).flatMap(([field, tag]) => {
      const value = line[field];
      return typeof value === "number" ? [scalar(tag, value)] : [];
    });
    if (line["event"] === "sample" && typeof line["text"] === "string") {
      values.push(prose("sample", line["text"]));
    }
    if (values.length === 0) return;
    this.#write(nowMs, [...whole(2, step), ...message(5, values.flatMap((value) => message(1, value)))]);
  }

  close(): void {
    this.#file.close();
  }

  #write(nowMs: number, body: number[]): void {
    const bytes = record(Uint8Array.from([...double(1, nowMs / 1000), ...body]));
    for (let at = 0; at < bytes.length;) at += this.#file.writeSync(bytes.subarray(at));
  }
}

/** Length, its checksum, data, its checksum: little-endian. */
function record(data: Uint8Array): Uint8Array {
  const out = new Uint8Array(data.length + 16);
  const view = new DataView(out.buffer);
  view.setBigUint64(0, BigInt(data.length), true);
  view.setUint32(8, masked(out.subarray(0, 8)), true);
  out.set(data, 12);
  view.setUint32(12 + data.length, masked(data), true);
  return out;
}

/** A checksum of data that holds checksums would be weak, so it is rotated and shifted. */
function masked(bytes: Uint8Array): number {
  const crc = crc32c(bytes);
  return ((crc >>> 15 | crc << 17) + MASK_DELTA) >>> 0;
}

function scalar(tag: string, value: number): number[] {
  return [...text(1, tag), ...float(2, value)];
}

/** A text, as the text plugin takes it: a tensor of one string. */
function prose(tag: string, value: string): number[] {
  const plugin = message(1, text(1, "text"));
  const shape = message(2, message(2, whole(1, 1)));
  const tensor = [...whole(1, STRING_TYPE), ...shape, ...text(8, value)];
  return [...text(1, tag), ...message(9, plugin), ...message(8, tensor)];
}

function varint(value: number): number[] {
  const out: number[] = [];
  let rest = value;
  for (; rest >= 0x80; rest = Math.floor(rest / 0x80)) out.push(rest % 0x80 | 0x80);
  return [...out, rest];
}

function key(field: number, wire: 0 | 1 | 2 | 5): number {
  return field << 3 | wire;
}

function whole(field: number, value: number): number[] {
  return [key(field, 0), ...varint(value)];
}

function message(field: number, bytes: number[]): number[] {
  return [key(field, 2), ...varint(bytes.length), ...bytes];
}

function text(field: number, value: string): number[] {
  return message(field, [...new TextEncoder().encode(value)]);
}

function float(field: number, value: number): number[] {
  return [key(field, 5), ...new Uint8Array(Float32Array.of(value).buffer)];
}

function double(field: number, value: number): number[] {
  return [key(field, 1), ...new Uint8Array(Float64Array.of(value).buffer)];
}
