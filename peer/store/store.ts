// Named contents that survive a crash: each put writes a new file beside the old one and then flips a list, which itself lies
// in two files written in turn. At any moment the newest list that is sound names contents that were durable before it, so a
// reader sees the old content or the new one, never a mixture. What is damaged is found by hash, deleted and reported.
import { hashBytes } from "../exact/chunk_hashes.ts";
import { assert, type ErrorCode, messageOf, ShoalError } from "../wire/errors.ts";
import type { StoreFolder } from "./folder.ts";
import {
  COPIES_MAX,
  type Copy,
  decodeManifest,
  EMPTY_MANIFEST,
  encodeManifest,
  type Entry,
  type Manifest,
  MANIFEST_BYTES_MAX,
  NAME_PATTERN,
  NAMES_MAX,
} from "./manifest.ts";

/** The two places of the list; the one with the smaller number is overwritten next. */
const LISTS = ["list-a", "list-b"] as const;
const CONTENT_PREFIX = "data-";

export interface StoredName {
  name: string;
  /** Length of the newest content. */
  bytes: number;
}

export interface StateStore {
  /**
   * Replaces a name's content; on return it is durable. The content before stays as long as there is room.
   * @throws {ShoalError} storage-full, storage-denied or internal; what was stored before is intact.
   */
  put(name: string, bytes: Uint8Array): Promise<void>;
  /**
   * The newest sound content, or null.
   * @throws {ShoalError} storage-denied if it cannot be read at all.
   */
  get(name: string): Promise<Uint8Array | null>;
  /** Ordered by the time of writing, oldest first. */
  list(): Promise<StoredName[]>;
  delete(name: string): Promise<void>;
  /** Bytes of all contents, older ones included. */
  readonly bytes: number;
  close(): Promise<void>;
}

/** What the store did of its own accord. */
export interface StoreEvent {
  what: "damaged" | "evicted" | "list-damaged";
  /** The name concerned; empty for a list. */
  name: string;
  reason: string;
}

export interface StoreOptions {
  /** Bytes of all contents together; older copies make room first, then the names written longest ago. */
  bytesMax: number;
  onEvent?: (event: StoreEvent) => void;
}

/** Opens what is in the folder; damaged lists and files that no list names are removed. */
export async function openStore(folder: StoreFolder, options: StoreOptions): Promise<StateStore> {
  const store = new FolderStore(folder, options);
  await store.load();
  return store;
}

class FolderStore implements StateStore {
  readonly #folder: StoreFolder;
  readonly #options: StoreOptions;
  #manifest: Manifest = EMPTY_MANIFEST;
  /** Where the present list lies; the next one goes to the other place. */
  #place = 1;
  /** Calls run one after the other: two puts at once would write the same list. */
  #tail: Promise<unknown> = Promise.resolve();

  constructor(folder: StoreFolder, options: StoreOptions) {
    this.#folder = folder;
    this.#options = options;
  }

  get bytes(): number {
    return totalBytes(this.#manifest.entries);
  }

  async load(): Promise<void> {
    for (const [place, file] of LISTS.entries()) {
      const bytes = await this.#guarded(() => this.#folder.read(file, MANIFEST_BYTES_MAX));
      if (bytes === null) continue;
      const list = decodeManifest(bytes);
      if (!list.ok) this.#tell("list-damaged", "", list.reason);
      else if (list.value.seq > this.#manifest.seq) [this.#manifest, this.#place] = [list.value, place];
    }
    await this.#sweep();
  }

  put(name: string, bytes: Uint8Array): Promise<void> {
    assert(NAME_PATTERN.test(name), `"${name}" cannot be a name in a store`);
    return this.#inTurn(() => this.#put(name, bytes));
  }

  get(name: string): Promise<Uint8Array | null> {
    return this.#inTurn(() => this.#get(name));
  }

  list(): Promise<StoredName[]> {
    return this.#inTurn(() =>
      Promise.resolve(this.#manifest.entries.map(({ name, copies }) => ({ name, bytes: copies[0]!.bytes })))
    );
  }

  delete(name: string): Promise<void> {
    return this.#inTurn(async () => {
      const entries = this.#manifest.entries.filter((entry) => entry.name !== name);
      if (entries.length === this.#manifest.entries.length) return;
      await this.#guarded(() => this.#flip({ ...this.#manifest, entries }));
      await this.#sweep();
    });
  }

  async close(): Promise<void> {
    await this.#inTurn(() => this.#folder.close());
  }

  async #put(name: string, bytes: Uint8Array): Promise<void> {
    const { next, entries } = this.#manifest;
    const copy: Copy = { file: `${CONTENT_PREFIX}${next}`, bytes: bytes.length, hash: hashBytes(bytes) };
    const before = entries.find((entry) => entry.name === name)?.copies ?? [];
    const entry: Entry = { name, copies: [copy, ...before].slice(0, COPIES_MAX) };
    const all = [...entries.filter((other) => other.name !== name), entry];
    const { fit, evicted } = makeRoom(all, this.#options.bytesMax);
    await this.#guarded(() => this.#write(copy.file, bytes));
    await this.#guarded(() =>
      this.#replaceList({ ...this.#manifest, next: next + 1, entries: fit }, copy.file)
    );
    for (const other of evicted) this.#tell("evicted", other, `it made room for ${name}`);
    await this.#sweep();
  }

  /** What was half written must not take the room that is missing. */
  async #write(file: string, bytes: Uint8Array): Promise<void> {
    try {
      await this.#folder.write(file, bytes);
    } catch (error) {
      await this.#folder.remove(file).catch(() => {});
      throw error;
    }
  }

  /**
   * A list whose writing failed may lie there whole all the same and would be believed after a restart. Only where it is
   * surely gone may the content that it names go too.
   */
  async #replaceList(manifest: Manifest, written: string): Promise<void> {
    try {
      await this.#flip(manifest);
    } catch (error) {
      this.#manifest = { ...this.#manifest, next: manifest.next };
      await this.#undo(LISTS[1 - this.#place]!, written);
      throw error;
    }
  }

  async #undo(list: string, written: string): Promise<void> {
    try {
      await this.#folder.remove(list);
      await this.#folder.remove(written);
    } catch {
      // Then the content stays until a later change removes it.
    }
  }

  async #get(name: string): Promise<Uint8Array | null> {
    for (;;) {
      const copy = this.#manifest.entries.find((entry) => entry.name === name)?.copies[0];
      if (copy === undefined) return null;
      const bytes = await this.#guarded(() => this.#folder.read(copy.file, copy.bytes + 1));
      const problem = damageOf(copy, bytes);
      if (problem === null) return bytes;
      this.#tell("damaged", name, problem);
      await this.#forget(name, copy);
    }
  }

  /** Takes one damaged copy out of the list; its file goes with it. */
  async #forget(name: string, copy: Copy): Promise<void> {
    const entries = this.#manifest.entries.flatMap((entry) => {
      if (entry.name !== name) return [entry];
      const copies = entry.copies.filter((other) => other !== copy);
      return copies.length === 0 ? [] : [{ name, copies }];
    });
    this.#manifest = { ...this.#manifest, entries };
    // If this cannot be written the damage is found again next time.
    await this.#flip(this.#manifest).then(() => this.#sweep()).catch(() => {});
  }

  /** The one moment at which a change becomes true. */
  async #flip(manifest: Manifest): Promise<void> {
    const place = 1 - this.#place;
    const next = { ...manifest, seq: this.#manifest.seq + 1 };
    await this.#folder.write(LISTS[place]!, encodeManifest(next));
    [this.#manifest, this.#place] = [next, place];
  }

  /** Removes contents that the list does not name; what cannot be removed now is removed another time. */
  async #sweep(): Promise<void> {
    const named = new Set(this.#manifest.entries.flatMap(({ copies }) => copies.map(({ file }) => file)));
    try {
      for (const file of await this.#folder.list()) {
        if (file.startsWith(CONTENT_PREFIX) && !named.has(file)) await this.#folder.remove(file);
      }
    } catch {
      // It takes room, and nothing else.
    }
  }

  #tell(what: StoreEvent["what"], name: string, reason: string): void {
    this.#options.onEvent?.({ what, name, reason });
  }

  #inTurn<T>(task: () => Promise<T>): Promise<T> {
    const result = this.#tail.then(task, task);
    this.#tail = result.catch(() => {});
    return result;
  }

  async #guarded<T>(task: () => Promise<T>): Promise<T> {
    try {
      return await task();
    } catch (error) {
      throw storageError(error);
    }
  }
}

/** Older copies go first, then the names written longest ago; the last entry, which is being written, stays. */
function makeRoom(entries: readonly Entry[], bytesMax: number): { fit: Entry[]; evicted: string[] } {
  const written = entries.at(-1)!;
  const needed = written.copies[0]!.bytes;
  if (needed > bytesMax) {
    const message = `${written.name} has ${needed} bytes, the store's limit is ${bytesMax}; raise the limit`;
    throw new ShoalError("storage-full", message);
  }
  const fit = entries.map((entry) => ({ ...entry }));
  for (const entry of fit) if (totalBytes(fit) > bytesMax) entry.copies = entry.copies.slice(0, 1);
  const evicted: string[] = [];
  while (totalBytes(fit) > bytesMax || fit.length > NAMES_MAX) evicted.push(fit.shift()!.name);
  return { fit, evicted };
}

function totalBytes(entries: readonly Entry[]): number {
  return entries.reduce((sum, { copies }) => sum + copies.reduce((bytes, copy) => bytes + copy.bytes, 0), 0);
}

function damageOf(copy: Copy, bytes: Uint8Array | null): string | null {
  if (bytes === null) return `${copy.file} is missing`;
  if (bytes.length !== copy.bytes) return `${copy.file} has another length than ${copy.bytes}`;
  return hashBytes(bytes) === copy.hash ? null : `${copy.file} differs from its hash`;
}

/** How Deno, Node's codes and browsers name the two failures that a person can do something about. */
const FULL = new Set(["QuotaExceededError", "ENOSPC", "EDQUOT", "EFBIG"]);
const DENIED = new Set([
  ...["PermissionDenied", "NotCapable", "ReadOnlyFilesystem", "EACCES", "EPERM", "EROFS"],
  ...["SecurityError", "NotAllowedError", "NoModificationAllowedError", "InvalidStateError"],
]);

/** Any failure of a folder as one of ours; `code` and `name` are where platforms put theirs. */
export function storageError(error: unknown): ShoalError {
  if (error instanceof ShoalError) return error;
  const { name, code } = (error ?? {}) as { name?: unknown; code?: unknown };
  const is = (known: Set<string>) => known.has(String(code)) || known.has(String(name));
  if (is(FULL)) return failure("storage-full", ["no space left", "free some space"], error);
  if (is(DENIED)) {
    return failure(
      "storage-denied",
      ["nothing may be kept here", "allow the folder or leave private mode"],
      error,
    );
  }
  if (error instanceof TypeError || error instanceof RangeError) {
    return new ShoalError("internal", `storage: ${messageOf(error)}; please report it`, { cause: error });
  }
  return failure("storage-denied", ["the storage does not work", "check the disk"], error);
}

function failure(code: ErrorCode, [what, remedy]: [string, string], cause: unknown): ShoalError {
  return new ShoalError(code, `${what} (${messageOf(cause)}); ${remedy}; training goes on without saving`, {
    cause,
  });
}
