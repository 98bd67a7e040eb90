// A store's folder in the browser's origin private file system: in a worker through synchronous handles, which can flush, on a
// page through streams, which replace a file at once when closed. Tabs of one browser take a numbered folder each, held by a
// lock that the browser frees when the tab is gone.
import { ShoalError } from "../wire/errors.ts";
import type { StoreFolder } from "./folder.ts";
import { storageError } from "./store.ts";

/** Tabs of one browser that keep state; further ones train without. */
export const TAB_SLOTS_MAX = 8;
const ROOT_NAME = "shoal";

/** What a dedicated worker's file handles have beyond a page's. */
interface SyncAccess {
  write(bytes: Uint8Array, options: { at: number }): number;
  truncate(size: number): void;
  flush(): void;
  close(): void;
}

type FileHandle = FileSystemFileHandle & { createSyncAccessHandle?(): Promise<SyncAccess> };
type FolderHandle = FileSystemDirectoryHandle & { keys(): AsyncIterable<string> };

/**
 * Takes the first numbered folder that no other tab holds.
 * @throws {ShoalError} storage-denied: an insecure page, a private window, a browser without it, too many tabs; storage-full.
 */
export async function openOpfsFolder(): Promise<StoreFolder> {
  const { storage, locks } = navigator as Partial<Navigator>;
  if (storage?.getDirectory === undefined || locks === undefined) {
    throw new ShoalError(
      "storage-denied",
      "this page has no private file system; open it over HTTPS or localhost in a current browser; " +
        "training goes on without saving",
    );
  }
  try {
    const root = await (await storage.getDirectory()).getDirectoryHandle(ROOT_NAME, { create: true });
    for (let slot = 0; slot < TAB_SLOTS_MAX; slot++) {
      const name = `slot-${slot}`;
      const release = await takeLock(locks, `${ROOT_NAME}-store-${slot}`);
      if (release === null) continue;
      return new OpfsFolder(await root.getDirectoryHandle(name, { create: true }) as FolderHandle, release);
    }
  } catch (error) {
    throw storageError(error);
  }
  const message = `${TAB_SLOTS_MAX} tabs keep their state already; training goes on without saving`;
  throw new ShoalError("storage-denied", message);
}

/** A worker that was ended a moment ago still holds its folder; one of another tab holds it for as long as it trains. */
const FORGET_TRIES = 5;
const FORGET_PAUSE_MS = 200;

/** Deletes the states of this origin; a folder that another tab holds stays, because that tab trains with it. */
export async function forgetOpfs(): Promise<void> {
  const { storage, locks } = navigator as Partial<Navigator>;
  if (storage?.getDirectory === undefined || locks === undefined) return;
  const root = await (await storage.getDirectory()).getDirectoryHandle(ROOT_NAME, { create: true });
  let held = Array.from({ length: TAB_SLOTS_MAX }, (_, slot) => slot);
  for (let attempt = 1; attempt <= FORGET_TRIES && held.length > 0; attempt++) {
    if (attempt > 1) await new Promise((resolve) => setTimeout(resolve, FORGET_PAUSE_MS));
    const still: number[] = [];
    for (const slot of held) {
      const release = await takeLock(locks, `${ROOT_NAME}-store-${slot}`);
      if (release === null) {
        still.push(slot);
        continue;
      }
      await root.removeEntry(`slot-${slot}`, { recursive: true }).catch(() => {});
      release();
    }
    held = still;
  }
}

/** Holds the lock until the returned function is called; null if somebody else has it. */
function takeLock(locks: LockManager, name: string): Promise<(() => void) | null> {
  return new Promise((resolve, reject) => {
    locks.request(name, { ifAvailable: true }, (lock) => {
      if (lock === null) return resolve(null);
      return new Promise<void>((release) => resolve(release));
    }).catch(reject);
  });
}

class OpfsFolder implements StoreFolder {
  readonly #folder: FolderHandle;
  readonly #release: () => void;

  constructor(folder: FolderHandle, release: () => void) {
    this.#folder = folder;
    this.#release = release;
  }

  async read(name: string, bytesMax: number): Promise<Uint8Array | null> {
    try {
      const file = await (await this.#folder.getFileHandle(name)).getFile();
      return new Uint8Array(await file.slice(0, bytesMax).arrayBuffer());
    } catch (error) {
      if (isNotFound(error)) return null;
      throw error;
    }
  }

  async write(name: string, bytes: Uint8Array<ArrayBuffer>): Promise<void> {
    const handle: FileHandle = await this.#folder.getFileHandle(name, { create: true });
    if (handle.createSyncAccessHandle !== undefined) {
      return writeSync(await handle.createSyncAccessHandle(), bytes);
    }
    const stream = await handle.createWritable();
    try {
      await stream.write(bytes);
      await stream.close();
    } catch (error) {
      await stream.abort().catch(() => {});
      throw error;
    }
  }

  async remove(name: string): Promise<void> {
    try {
      await this.#folder.removeEntry(name);
    } catch (error) {
      if (!isNotFound(error)) throw error;
    }
  }

  async list(): Promise<string[]> {
    const names: string[] = [];
    for await (const name of this.#folder.keys()) names.push(name);
    return names;
  }

  close(): Promise<void> {
    this.#release();
    return Promise.resolve();
  }
}

function writeSync(access: SyncAccess, bytes: Uint8Array): void {
  try {
    access.truncate(0);
    for (let at = 0; at < bytes.length;) {
      const count = access.write(bytes.subarray(at), { at });
      if (count === 0) throw new DOMException("nothing more can be written", "QuotaExceededError");
      at += count;
    }
    access.flush();
  } finally {
    access.close();
  }
}

function isNotFound(error: unknown): boolean {
  return (error as { name?: unknown } | null)?.name === "NotFoundError";
}
