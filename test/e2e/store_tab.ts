// What store_test.ts does with a store inside a tab, the same on a page and in its worker: runs cases of the suite, writes and
// reads. No assertions and no expected values.
import { openOpfsFolder } from "../../peer/store/folder_opfs.ts";
import type { StoreFolder } from "../../peer/store/folder.ts";
import { openSavedStates, type SavedState } from "../../peer/store/saved_states.ts";
import { openStore } from "../../peer/store/store.ts";
import { runStoreCase, STORE_CASES } from "../../peer/store/store_suite.ts";
import type { ShoalError } from "../../peer/wire/errors.ts";

const BYTES_MAX = 32 << 20;

/** A content whose every byte tells its number, so that a mixture of two shows. */
export function numbered(number: number, bytes: number): Uint8Array {
  const content = new Uint8Array(bytes).fill(number % 251);
  new DataView(content.buffer).setUint32(0, number, true);
  return content;
}

/** The number of a whole content, -1 for none, -2 for a mixture. */
export function numberOf(content: Uint8Array | null): number {
  if (content === null) return -1;
  const number = new DataView(content.buffer, content.byteOffset).getUint32(0, true);
  return content.subarray(4).every((byte) => byte === number % 251) ? number : -2;
}

/** Puts ever new contents under one name until somebody ends the process; tells each number once it is promised. */
export async function putForEver(
  folder: StoreFolder,
  bytes: number,
  promised: (number: number) => void,
): Promise<void> {
  const store = await openStore(folder, { bytesMax: BYTES_MAX });
  for (let number = numberOf(await store.get("n")) + 1;; number++) {
    await store.put("n", numbered(number, bytes));
    promised(number);
  }
}

/** Number of the content that putForEver has left. */
export async function numberIn(folder: StoreFolder): Promise<number> {
  return numberOf(await (await openStore(folder, { bytesMax: BYTES_MAX })).get("n"));
}

export class StoreTab {
  #folder: StoreFolder | null = null;
  #promised = -1;

  async runCase(name: string): Promise<void> {
    const chosen = STORE_CASES.find((candidate) => candidate.name === name);
    if (chosen === undefined) throw new Error(`no case "${name}"`);
    await runStoreCase(chosen, openOpfsFolder);
  }

  /** Takes a folder and keeps it; gives the mark that somebody left in it, or -1, and leaves `mark` there. */
  async take(mark: number): Promise<number> {
    this.#folder = await openOpfsFolder();
    const before = await this.#folder.read("mark", 9);
    await this.#folder.write("mark", Uint8Array.of(mark));
    return before?.[0] ?? -1;
  }

  /** Puts one content into the folder that was taken; "put", or the error's code and message. */
  async put(number: number, bytes: number): Promise<string> {
    const store = await openStore(this.#folder!, { bytesMax: BYTES_MAX });
    try {
      await store.put("n", numbered(number, bytes));
      return "put";
    } catch (error) {
      return `${(error as ShoalError).code}: ${(error as ShoalError).message}`;
    }
  }

  number(): Promise<number> {
    return numberIn(this.#folder!);
  }

  startPutting(bytes: number): void {
    void putForEver(this.#folder!, bytes, (number) => this.#promised = number);
  }

  promised(): number {
    return this.#promised;
  }

  /** Saves a state if one is given, gives what is saved of the run, and what was reported. */
  async saved(
    run: string,
    state: SavedState | null,
  ): Promise<{ durable: boolean; steps: number[]; told: string[] }> {
    const told: string[] = [];
    const saved = await openSavedStates(openOpfsFolder, {
      bytesMax: BYTES_MAX,
      onEvent: (event) => told.push(event.what === "failed" ? event.error.code : event.what),
    });
    if (state !== null) await saved.save(state);
    const steps = (await saved.load(run)).map(({ step }) => step);
    await saved.close();
    return { durable: saved.durable, steps, told };
  }
}
