// A store's folder on disk, for headless peers: writes are synced, and so is the folder when a file is new. Several peers of one
// computer share a root and take a numbered folder each, locked as long as they live.
import { join } from "node:path";
import { ShoalError } from "../wire/errors.ts";
import type { StoreFolder } from "./folder.ts";
import { storageError } from "./store.ts";

/** Peers on one computer that keep state; further ones train without. */
export const SLOTS_MAX = 16;
const LOCK_NAME = "lock";

/**
 * Takes the first free numbered folder under `root`, made if needed. A peer that starts again finds its state there, or that of a
 * peer that shared the computer: either is used only if its hash is the run's.
 * @throws {ShoalError} storage-denied or storage-full.
 */
export async function openDenoFolder(root: string): Promise<StoreFolder> {
  try {
    for (let slot = 0; slot < SLOTS_MAX; slot++) {
      const path = join(root, `slot-${slot}`);
      await Deno.mkdir(path, { recursive: true });
      const lock = await Deno.open(join(path, LOCK_NAME), { create: true, write: true });
      if (await lock.tryLock(true)) return new DenoFolder(path, lock);
      lock.close();
    }
  } catch (error) {
    throw storageError(error);
  }
  throw new ShoalError(
    "storage-denied",
    `${SLOTS_MAX} peers keep their state in ${root} already; training goes on without saving`,
  );
}

class DenoFolder implements StoreFolder {
  readonly #path: string;
  /** The system frees the lock when the process ends, however it ends. */
  readonly #lock: Deno.FsFile;

  constructor(path: string, lock: Deno.FsFile) {
    this.#path = path;
    this.#lock = lock;
  }

  async read(name: string, bytesMax: number): Promise<Uint8Array | null> {
    try {
      using file = await Deno.open(this.#file(name), { read: true });
      const { size } = await file.stat();
      const bytes = new Uint8Array(Math.min(size, bytesMax));
      for (let at = 0; at < bytes.length;) {
        const count = await file.read(bytes.subarray(at));
        if (count === null) return bytes.subarray(0, at);
        at += count;
      }
      return bytes;
    } catch (error) {
      if (error instanceof Deno.errors.NotFound) return null;
      throw error;
    }
  }

  async write(name: string, bytes: Uint8Array): Promise<void> {
    {
      using file = await Deno.open(this.#file(name), { write: true, create: true, truncate: true });
      for (let at = 0; at < bytes.length;) at += await file.write(bytes.subarray(at));
      await file.sync();
    }
    await this.#syncFolder();
  }

  async remove(name: string): Promise<void> {
    try {
      await Deno.remove(this.#file(name));
    } catch (error) {
      if (!(error instanceof Deno.errors.NotFound)) throw error;
    }
  }

  async list(): Promise<string[]> {
    const names: string[] = [];
    for await (const entry of Deno.readDir(this.#path)) {
      if (entry.isFile && entry.name !== LOCK_NAME) names.push(entry.name);
    }
    return names;
  }

  close(): Promise<void> {
    this.#lock.close();
    return Promise.resolve();
  }

  /** Makes a new name durable; Windows cannot open folders and does without. */
  async #syncFolder(): Promise<void> {
    if (Deno.build.os === "windows") return;
    using folder = await Deno.open(this.#path, { read: true });
    await folder.sync();
  }

  #file(name: string): string {
    return join(this.#path, name);
  }
}
