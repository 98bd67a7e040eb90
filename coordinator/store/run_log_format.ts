// The bytes of the run's log: records with a magic number, a sequence number, a length and a checksum. Pure; run_log.ts reads
// and writes the file. What must stay true: a torn tail (the last append, cut short by a crash) is told from damage, which is
// anything else, and neither is ever read as a record.
import { crc32c } from "../../peer/wire/crc32c.ts";
import { messageOf, refuse, type Result } from "../../peer/wire/errors.ts";
import { withLossScale } from "../core/loss_scale.ts";
import type { CommitRecord, RestoredPeer, RunRecord } from "../core/run_record.ts";
import type { ConfigChange } from "../../peer/wire/changes.ts";
import type { RunConfig, View } from "../../peer/wire/run.ts";

/** Raised whenever a record changes meaning. */
export const LOG_FORMAT = 1;
/** A view of 200 peers is below 200 kB; a longer record is not ours, and a scan must end somewhere. */
export const RECORD_BYTES_MAX = 4 << 20;

/** "SLO" and a byte that UTF-8 text never holds: what a scan for whole records after a damaged one looks for. */
const MAGIC = Uint8Array.of(0x53, 0x4c, 0x4f, 0xff);
/** Magic, sequence number, payload bytes, CRC-32C of the twelve bytes before it and of the payload. */
export const RECORD_HEADER_BYTES = 16;

/** The first record of a file is the whole run so far; the others change it. */
export type LogRecord =
  | { kind: "run"; format: typeof LOG_FORMAT; run: RunRecord }
  | { kind: "ids"; upTo: number }
  | { kind: "view"; view: View; peers: RestoredPeer[] }
  | { kind: "commit" } & CommitRecord
  | { kind: "config"; config: RunConfig; changes: ConfigChange[] }
  | { kind: "rewind"; epoch: string; committed: number }
  | { kind: "end"; step: number; checkpoint: string };

const KINDS: readonly LogRecord["kind"][] = ["run", "ids", "view", "commit", "config", "rewind", "end"];

export interface DecodedLog {
  records: LogRecord[];
  /** Bytes of whole records; what follows is a torn tail. */
  goodBytes: number;
}

/** One record as it is appended. @param sequence its number in the file, from 0 */
export function encodeRecord(record: LogRecord, sequence: number): Uint8Array {
  const payload = new TextEncoder().encode(JSON.stringify(record));
  const out = new Uint8Array(RECORD_HEADER_BYTES + payload.length);
  const view = new DataView(out.buffer);
  out.set(MAGIC);
  view.setUint32(4, sequence, true);
  view.setUint32(8, payload.length, true);
  view.setUint32(12, crc32c(payload, crc32c(out.subarray(0, 12))), true);
  out.set(payload, RECORD_HEADER_BYTES);
  return out;
}

/**
 * Reads a log's bytes. Every append is synced before the next begins, so only the last record can be torn: whatever else
 * does not verify is damage and refused with bad-log.
 */
export function decodeLog(bytes: Uint8Array): Result<DecodedLog> {
  const records: LogRecord[] = [];
  let at = 0;
  while (at < bytes.length) {
    const payload = payloadAt(bytes, at, records.length);
    if (payload === null) break;
    const record = parse(payload);
    if (!record.ok) return refuse("bad-log", `record ${records.length}: ${record.reason}`);
    records.push(record.value);
    at += RECORD_HEADER_BYTES + payload.length;
  }
  const problem = damage(bytes, at, records);
  return problem === null ? { ok: true, value: { records, goodBytes: at } } : refuse("bad-log", problem);
}

/** Why the bytes from `at` on, which are no record, cannot be one torn append; null if they can. */
function damage(bytes: Uint8Array, at: number, records: readonly LogRecord[]): string | null {
  // A new file appears under its name only with its first record synced.
  if (records[0]?.kind !== "run") return "its first record does not verify";
  if (records.some((record, i) => i > 0 && record.kind === "run")) return "it begins twice";
  const next = nextRecord(bytes, at);
  if (next !== null) return `record ${records.length} is not whole at byte ${at}, one at byte ${next} is`;
  const left = bytes.length - at;
  const most = RECORD_HEADER_BYTES + RECORD_BYTES_MAX;
  return left > most ? `${left} bytes at byte ${at} are no record` : null;
}

/** The payload of the record with this number at this place; null if there is none that verifies. */
function payloadAt(bytes: Uint8Array, at: number, sequence: number | null): Uint8Array | null {
  if (bytes.length - at < RECORD_HEADER_BYTES || MAGIC.some((byte, i) => bytes[at + i] !== byte)) return null;
  const view = new DataView(bytes.buffer, bytes.byteOffset + at, RECORD_HEADER_BYTES);
  const length = view.getUint32(8, true);
  const start = at + RECORD_HEADER_BYTES;
  if (length > RECORD_BYTES_MAX || start + length > bytes.length) return null;
  if (sequence !== null && view.getUint32(4, true) !== sequence) return null;
  const payload = bytes.subarray(start, start + length);
  const sum = crc32c(payload, crc32c(bytes.subarray(at, at + 12)));
  return sum === view.getUint32(12, true) ? payload : null;
}

/** Where the first whole record at or after `from` begins, whatever its number; null if there is none. */
function nextRecord(bytes: Uint8Array, from: number): number | null {
  for (let at = bytes.indexOf(MAGIC[0]!, from); at !== -1; at = bytes.indexOf(MAGIC[0]!, at + 1)) {
    if (payloadAt(bytes, at, null) !== null) return at;
  }
  return null;
}

/** The checksum has proved that these bytes are what was written; an unknown kind or format is a newer version's. */
function parse(payload: Uint8Array): Result<LogRecord> {
  let value: unknown;
  try {
    value = JSON.parse(new TextDecoder().decode(payload));
  } catch (error) {
    return refuse("bad-log", messageOf(error));
  }
  const record = value as LogRecord;
  if (!KINDS.includes(record?.kind)) {
    return refuse("bad-log", `unknown kind ${String(record?.kind).slice(0, 40)}`);
  }
  if (record.kind === "run" && record.format !== LOG_FORMAT) {
    return refuse("bad-log", `format ${record.format}, this version reads ${LOG_FORMAT}`);
  }
  return { ok: true, value: record };
}

/** The run after one more record. */
export function fold(run: RunRecord, record: LogRecord): RunRecord {
  switch (record.kind) {
    case "run":
      return record.run;
    case "ids":
      return { ...run, idsUpTo: record.upTo };
    case "view":
      return { ...run, gen: record.view.gen, view: record.view, peers: record.peers };
    case "commit": {
      const { kind: _, ...commit } = record;
      const lossScales = withLossScale(run.lossScales ?? [], commit);
      const scaled = lossScales.length === 0 ? {} : { lossScales };
      return { ...run, committed: commit.step + 1, commit, ...scaled };
    }
    case "config":
      return { ...run, config: record.config, changes: record.changes };
    case "rewind": {
      const { epoch, committed } = record;
      // Nobody can return into a view whose state was given up.
      return { ...run, epoch, committed, commit: null, view: null, peers: [] };
    }
    case "end": {
      const { step, checkpoint } = record;
      return { ...run, ended: { step, checkpoint } };
    }
  }
}
