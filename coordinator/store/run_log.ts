// The run's log on disk: what a restarted coordinator must know, each record synced before append returns. Append only, with a
// new file written beside and renamed when it has grown. It decides nothing about the run. What must stay true: after a failed
// append the file holds the records before it and nothing of the failed one, and the next append writes the whole log anew.
import { dirname, join } from "node:path";
import type { CommitRecord, RestoredPeer, RunRecord } from "../core/run_record.ts";
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";
import type { ConfigChange } from "../../peer/wire/changes.ts";
import type { RunConfig, View } from "../../peer/wire/run.ts";
import { decodeLog, encodeRecord, fold, LOG_FORMAT, type LogRecord } from "./run_log_format.ts";

export const RUN_LOG_NAME = "run.log";
/** A second coordinator on the same folder would write into the first one's log. */
const LOCK_NAME = "run.lock";
/** A log this long is written anew with only what still counts; without a limit a long run fills the disk. */
const COMPACT_BYTES = 1 << 20;
/** Beyond it a file is not ours, and reading it would take the memory. */
const FILE_BYTES_MAX = 64 << 20;
/** Numbers for new peers are set aside in blocks, so that a join costs no sync. */
const IDS_BLOCK = 64;

/** What the log needs of a file; tests put a full disk in its place. */
export interface LogFile {
  writeSync(bytes: Uint8Array): number;
  syncDataSync(): void;
  truncateSync(length: number): void;
  utimeSync(atime: Date, mtime: Date): void;
  close(): void;
}

export interface RunLogOptions {
  openFile?: (path: string, options: Deno.OpenOptions) => LogFile;
  compactBytes?: number;
}

interface Opening extends RunLogOptions {
  lock: Deno.FsFile;
  tornBytes?: number;
}

/** What a look at a folder's log finds, without changing it. */
export interface LogLook {
  run: RunRecord;
  /** When its coordinator was last known to live, ms since 1970. */
  aliveMs: number;
  /** Bytes after the last whole record: the append that a crash cut short. */
  tornBytes: number;
}

/** What a new run's log begins with. */
export type NewRun = Pick<RunRecord, "config" | "spec" | "corpusHash" | "vocabHash" | "committed">;

/**
 * The log of a folder, or null if it has none. Changes nothing.
 * @throws {ShoalError} bad-log if it is damaged other than by a torn tail.
 */
export function lookAtRunLog(runDir: string): LogLook | null {
  const path = join(runDir, RUN_LOG_NAME);
  let found: { bytes: Uint8Array; mtime: Date | null };
  try {
    const { size, mtime } = Deno.statSync(path);
    if (size > FILE_BYTES_MAX) throw damaged(path, `it has ${size} bytes, more than any log of ours`);
    found = { bytes: Deno.readFileSync(path), mtime };
  } catch (error) {
    if (error instanceof Deno.errors.NotFound) return null;
    throw error;
  }
  const decoded = decodeLog(found.bytes);
  if (!decoded.ok) throw damaged(path, decoded.reason);
  const [first, ...rest] = decoded.value.records;
  if (first?.kind !== "run") throw damaged(path, "it is empty");
  return {
    run: rest.reduce(fold, first.run),
    aliveMs: found.mtime?.getTime() ?? 0,
    tornBytes: found.bytes.length - decoded.value.goodBytes,
  };
}

/** Random, so that no two lives of a run that differ in history are taken for one. */
export function randomEpoch(): string {
  return [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0"))
    .join("");
}

export class RunLog {
  readonly #path: string;
  readonly #open: NonNullable<RunLogOptions["openFile"]>;
  readonly #compactBytes: number;
  readonly #lock: Deno.FsFile;
  /** Bytes of an append that a crash had cut short, taken off when the log was opened. */
  readonly tornBytes: number;
  #run: RunRecord;
  #file: LogFile | null = null;
  #records = 0;
  #bytes = 0;
  #nextId: number;

  private constructor(path: string, run: RunRecord, options: Opening) {
    this.#path = path;
    this.tornBytes = options.tornBytes ?? 0;
    this.#run = run;
    this.#lock = options.lock;
    this.#open = options.openFile ?? Deno.openSync;
    this.#compactBytes = options.compactBytes ?? COMPACT_BYTES;
    this.#nextId = run.idsUpTo + 1;
  }

  /**
   * Begins a log with a new epoch. One that is there, readable or not, is kept beside it under another name.
   * @throws {ShoalError} storage-full, or usage if another coordinator runs on the folder.
   */
  static create(runDir: string, begin: NewRun, options: RunLogOptions = {}): RunLog {
    const lock = lockFolder(runDir);
    const path = join(runDir, RUN_LOG_NAME);
    try {
      keepAside(path);
      const run: RunRecord = {
        ...{ ...begin, epoch: randomEpoch(), gen: 0, view: null, commit: null, peers: [], idsUpTo: 0 },
        ended: null,
      };
      return RunLog.#begin(path, run, { ...options, lock });
    } catch (error) {
      lock.close();
      throw storageError(error, path);
    }
  }

  /**
   * Goes on with the log that is there. Written anew at once, which also takes a torn tail off.
   * @throws {ShoalError} bad-log, storage-full, or usage if another coordinator runs on the folder.
   */
  static reopen(runDir: string, options: RunLogOptions = {}): RunLog {
    const lock = lockFolder(runDir);
    const path = join(runDir, RUN_LOG_NAME);
    try {
      const look = lookAtRunLog(runDir);
      if (look === null) throw new ShoalError("bad-log", `there is no log ${path}; resume from a checkpoint`);
      return RunLog.#begin(path, look.run, { ...options, lock, tornBytes: look.tornBytes });
    } catch (error) {
      lock.close();
      throw storageError(error, path);
    }
  }

  static #begin(path: string, run: RunRecord, options: Opening): RunLog {
    const log = new RunLog(path, run, options);
    log.#rewrite(run);
    return log;
  }

  get run(): RunRecord {
    return this.#run;
  }

  /** Bytes on disk. */
  get bytes(): number {
    return this.#bytes;
  }

  /** @throws {ShoalError} storage-full or internal; nothing was recorded then, and the same call may be tried again. */
  appendView(view: View, peers: RestoredPeer[]): void {
    this.#append({ kind: "view", view, peers });
  }

  appendCommit(commit: CommitRecord): void {
    this.#append({ kind: "commit", ...commit });
  }

  appendConfig(config: RunConfig, changes: ConfigChange[]): void {
    this.#append({ kind: "config", config, changes });
  }

  /** The run goes back to `committed` steps: from here on it is another history, under another epoch. */
  appendRewind(committed: number): void {
    this.#append({ kind: "rewind", epoch: randomEpoch(), committed });
  }

  appendEnd(ended: { step: number; checkpoint: string }): void {
    this.#append({ kind: "end", ...ended });
  }

  /** A number that no peer of this run has had, also not before a crash. */
  takeId(): number {
    if (this.#nextId > this.#run.idsUpTo) this.#append({ kind: "ids", upTo: this.#run.idsUpTo + IDS_BLOCK });
    return this.#nextId++;
  }

  /** Leaves a mark of life in the file's time, by which a resume judges whether the peers may still be waiting. */
  markAlive(now: Date): void {
    try {
      this.#file?.utimeSync(now, now);
    } catch {
      // Only a hint: without it a resume may look for peers that have gone.
    }
  }

  close(): void {
    this.#file?.close();
    this.#file = null;
    this.#lock.close();
  }

  #append(record: LogRecord): void {
    const run = fold(this.#run, record);
    if (this.#file === null || this.#bytes > this.#compactBytes) this.#rewrite(run);
    else this.#extend(this.#file, record);
    this.#run = run;
  }

  #extend(file: LogFile, record: LogRecord): void {
    const bytes = encodeRecord(record, this.#records);
    try {
      writeAll(file, bytes);
      file.syncDataSync();
    } catch (error) {
      this.#giveUp(file);
      throw storageError(error, this.#path);
    }
    this.#records++;
    this.#bytes += bytes.length;
  }

  /** After a failed sync the system may have forgotten what was not written, so this file is not appended to again. */
  #giveUp(file: LogFile): void {
    this.#file = null;
    try {
      file.truncateSync(this.#bytes);
      file.syncDataSync();
    } catch {
      // The rest of the failed record stays and reads as a torn tail.
    }
    file.close();
  }

  /** The whole run in one record, in a file that takes the old one's place only when it is durable. */
  #rewrite(run: RunRecord): void {
    const beside = `${this.#path}.new`;
    const bytes = encodeRecord({ kind: "run", format: LOG_FORMAT, run }, 0);
    let file: LogFile | null = null;
    try {
      // Owner only: the tickets in it prove who a peer is.
      file = this.#open(beside, { write: true, create: true, truncate: true, mode: 0o600 });
      writeAll(file, bytes);
      file.syncDataSync();
      Deno.renameSync(beside, this.#path);
      syncFolder(dirname(this.#path));
    } catch (error) {
      file?.close();
      throw storageError(error, this.#path);
    }
    this.#file?.close();
    this.#file = file;
    this.#records = 1;
    this.#bytes = bytes.length;
  }
}

function writeAll(file: LogFile, bytes: Uint8Array): void {
  for (let at = 0; at < bytes.length;) at += file.writeSync(bytes.subarray(at));
}

/** Makes a rename durable; Windows cannot open folders and does without. */
function syncFolder(path: string): void {
  if (Deno.build.os === "windows") return;
  using folder = Deno.openSync(path, { read: true });
  folder.syncSync();
}

/** Held until it is closed. @throws {ShoalError} usage if another coordinator has the folder */
export function lockFolder(runDir: string): Deno.FsFile {
  Deno.mkdirSync(runDir, { recursive: true });
  const lock = Deno.openSync(join(runDir, LOCK_NAME), { create: true, write: true });
  if (lock.tryLockSync(true)) return lock;
  lock.close();
  throw new ShoalError(
    "usage",
    `another coordinator is running in ${runDir}; stop it first, or use another folder`,
  );
}

/** An earlier log is evidence: of a damaged one something may still be read by hand. */
function keepAside(path: string): void {
  try {
    Deno.renameSync(path, `${path}.old`);
  } catch (error) {
    if (!(error instanceof Deno.errors.NotFound)) throw error;
  }
}

function damaged(path: string, reason: string): ShoalError {
  const remedy = `"shoal resume" with the folder of a checkpoint goes on from there`;
  return new ShoalError("bad-log", `the run's log ${path} cannot be used: ${reason}; ${remedy}`);
}

function storageError(error: unknown, path: string): ShoalError {
  if (error instanceof ShoalError) return error;
  const code = (error as { code?: unknown } | null)?.code;
  const full = code === "ENOSPC" || code === "EDQUOT";
  const remedy = full ? "free some space" : "check the folder's disk and permissions";
  return new ShoalError(
    "storage-full",
    `the run's log ${path} cannot be written: ${messageOf(error)}; ${remedy}`,
    { cause: error },
  );
}
