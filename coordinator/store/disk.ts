// How much room the run's disk has left, looked at now and then, and said once when it becomes little. It only says so: what to
// delete is the organizer's to decide, and a write that finds no room is tried again by the shell.
import { statfsSync } from "node:fs";
import type { DiskStatus } from "../../peer/wire/status.ts";

/** Between two looks; a disk fills in minutes, not in seconds. */
const LOOK_MS = 10_000;
/** Less than this share of the disk is little, up to so many bytes: five percent of a large disk are plenty. */
export const LOW_SHARE = 0.05;
export const LOW_BYTES_MAX = 10e9;
/** And so is room for fewer checkpoints than this. */
export const LOW_CHECKPOINTS = 3;

export interface Room {
  freeBytes: number;
  sizeBytes: number;
}

export interface DiskWatchOptions {
  folder: string;
  /** Bytes of the newest checkpoint; 0 = none yet. */
  checkpointBytes(): number;
  /** Room has become little, or is there again. */
  say(text: string): void;
  /** Null where the system does not say. Default: the file system's own figures. */
  look?(folder: string): Room | null;
}

export class DiskWatch {
  readonly #options: DiskWatchOptions;
  readonly #timer: ReturnType<typeof setInterval>;
  #room: Room | null = null;
  #low = false;

  constructor(options: DiskWatchOptions) {
    this.#options = options;
    this.look();
    this.#timer = setInterval(() => this.look(), LOOK_MS);
  }

  /** Null where the system does not say. */
  get status(): DiskStatus | null {
    return this.#room === null ? null : { ...this.#room, low: this.#low };
  }

  look(): void {
    const { folder, look = roomOf, say, checkpointBytes } = this.#options;
    this.#room = look(folder);
    if (this.#room === null) return;
    const low = isLow(this.#room, checkpointBytes());
    if (low === this.#low) return;
    this.#low = low;
    const free = `${(this.#room.freeBytes / 1e9).toFixed(1)} GB`;
    say(low ? `the disk has ${free} left; make room before checkpoints stop` : `the disk has ${free} again`);
  }

  close(): void {
    clearInterval(this.#timer);
  }
}

export function isLow({ freeBytes, sizeBytes }: Room, checkpointBytes: number): boolean {
  const share = Math.min(LOW_BYTES_MAX, LOW_SHARE * sizeBytes);
  return freeBytes < share || freeBytes < LOW_CHECKPOINTS * checkpointBytes;
}

/** Needs the permission to ask the system for it; without, nothing is known. */
function roomOf(folder: string): Room | null {
  try {
    const { bavail, blocks, bsize } = statfsSync(folder);
    return { freeBytes: bavail * bsize, sizeBytes: blocks * bsize };
  } catch {
    return null;
  }
}
