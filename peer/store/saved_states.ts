// What a peer keeps over a reload or a restart: of one run, each stage's state file with its step and state hash. A wish, never a
// need: whatever fails here is reported and the peer trains on. A saved state is used only if its hash is the run's.
import { hashBytes } from "../exact/chunk_hashes.ts";
import { messageOf, refuse, type Result, ShoalError } from "../wire/errors.ts";
import { MemoryFolder, type StoreFolder } from "./folder.ts";
import { openStore, type StateStore, storageError, type StoreEvent, type StoreOptions } from "./store.ts";

/** Description before the file; ours have some 200 bytes. */
const META_BYTES_MAX = 4_096;
const META_FORMAT = "shoal-state-1";
const HEADER_BYTES = 4;

export interface SavedState {
  run: string;
  firstLayer: number;
  endLayer: number;
  /** Committed steps contained in it. */
  step: number;
  /** Of the state, as holders report it; not of the file. */
  stateHash: string;
  /** The state as a safetensors file. */
  file: Uint8Array;
}

export type SavedStatesEvent = StoreEvent | {
  what: "failed";
  name: string;
  reason: string;
  error: ShoalError;
};

export interface SavedStatesOptions extends Omit<StoreOptions, "onEvent"> {
  onEvent?: (event: SavedStatesEvent) => void;
}

/** The saved states of a folder, or of memory if it cannot be opened: never throws for what storage does. */
export async function openSavedStates(
  openFolder: () => Promise<StoreFolder>,
  options: SavedStatesOptions,
): Promise<SavedStates> {
  const report = options.onEvent ?? (() => {});
  try {
    return new SavedStates(await openStore(await openFolder(), options), { durable: true, report });
  } catch (error) {
    report(failed("", error));
    return new SavedStates(await openStore(new MemoryFolder(), options), { durable: false, report });
  }
}

export class SavedStates {
  /** False where nothing outlives this process. */
  readonly durable: boolean;
  readonly #store: StateStore;
  readonly #report: (event: SavedStatesEvent) => void;

  constructor(store: StateStore, rest: { durable: boolean; report: (event: SavedStatesEvent) => void }) {
    this.#store = store;
    this.durable = rest.durable;
    this.#report = rest.report;
  }

  /** Saves a stage's state in the place of the one before; false if that failed, which has been reported then. */
  async save(state: SavedState): Promise<boolean> {
    const name = nameOf(state);
    return await this.#attempt(name, false, async () => {
      await this.#store.put(name, encodeSaved(state));
      return true;
    });
  }

  /** All sound states of a run. What is damaged is deleted and reported. */
  async load(run: string): Promise<SavedState[]> {
    const found: SavedState[] = [];
    for (const name of await this.#names(run)) {
      const bytes = await this.#attempt(name, null, () => this.#store.get(name));
      if (bytes === null) continue;
      const saved = decodeSaved(bytes);
      if (saved.ok && saved.value.run === run && nameOf(saved.value) === name) found.push(saved.value);
      else {
        this.#report({ what: "damaged", name, reason: saved.ok ? "it is of another run" : saved.reason });
        await this.#attempt(name, undefined, () => this.#store.delete(name));
      }
    }
    return found;
  }

  /** The run is over, or was begun anew. */
  async forget(run: string): Promise<void> {
    for (const name of await this.#names(run)) {
      await this.#attempt(name, undefined, () => this.#store.delete(name));
    }
  }

  async close(): Promise<void> {
    await this.#attempt("", undefined, () => this.#store.close());
  }

  async #names(run: string): Promise<string[]> {
    const names = await this.#attempt("", [], () => this.#store.list());
    return names.map(({ name }) => name).filter((name) => name.startsWith(prefixOf(run)));
  }

  async #attempt<T>(name: string, otherwise: T, task: () => Promise<T>): Promise<T> {
    try {
      return await task();
    } catch (error) {
      this.#report(failed(name, error));
      return otherwise;
    }
  }
}

function failed(name: string, error: unknown): SavedStatesEvent {
  return { what: "failed", name, reason: messageOf(error), error: storageError(error) };
}

/** A run's id is another's text; its hash is a safe name. */
function prefixOf(run: string): string {
  return `${hashBytes(new TextEncoder().encode(run))}.`;
}

function nameOf({ run, firstLayer, endLayer }: Pick<SavedState, "run" | "firstLayer" | "endLayer">): string {
  return `${prefixOf(run)}${firstLayer}-${endLayer}`;
}

/** Length of the description, the description, the file. */
function encodeSaved({ file, ...meta }: SavedState): Uint8Array {
  const text = new TextEncoder().encode(JSON.stringify({ format: META_FORMAT, ...meta }));
  if (text.length > META_BYTES_MAX) {
    throw new ShoalError("internal", `a description of ${text.length} bytes; the run's id is too long`);
  }
  const bytes = new Uint8Array(HEADER_BYTES + text.length + file.length);
  new DataView(bytes.buffer).setUint32(0, text.length, true);
  bytes.set(text, HEADER_BYTES);
  bytes.set(file, HEADER_BYTES + text.length);
  return bytes;
}

function decodeSaved(bytes: Uint8Array): Result<SavedState> {
  if (bytes.length < HEADER_BYTES) {
    return refuse("storage-damaged", `${bytes.length} bytes are no saved state`);
  }
  const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const end = HEADER_BYTES + length;
  if (length > META_BYTES_MAX || end > bytes.length) {
    return refuse("storage-damaged", `a description of ${length} bytes`);
  }
  const meta = readMeta(new TextDecoder().decode(bytes.subarray(HEADER_BYTES, end)));
  if (meta === null) return refuse("storage-damaged", "the description has another form");
  return { ok: true, value: { ...meta, file: bytes.slice(end) } };
}

function readMeta(text: string): Omit<SavedState, "file"> | null {
  try {
    const { format, run, firstLayer, endLayer, step, stateHash } = JSON.parse(text) as Record<
      string,
      unknown
    >;
    const counts = [firstLayer, endLayer, step].every((it) => Number.isSafeInteger(it) && Number(it) >= 0);
    if (format !== META_FORMAT || !counts || typeof run !== "string" || typeof stateHash !== "string") {
      return null;
    }
    return {
      run,
      stateHash,
      firstLayer: Number(firstLayer),
      endLayer: Number(endLayer),
      step: Number(step),
    };
  } catch {
    return null;
  }
}
