// A small list in the run's folder that outlives the coordinator: read once, checked, written whole beside the old one. For what
// only the organizer may see. What must stay true: a list that cannot be read is an error, since forgetting it opens a door.
import { join } from "node:path";
import * as v from "valibot";
import { ShoalError } from "../../peer/wire/errors.ts";

const OWNER_ONLY = 0o600;
/** A few hundred entries of a few hundred characters. */
const FILE_BYTES_MAX = 1 << 20;

/** Each entry has a number of its own, which is used once. */
export interface KeptEntry {
  id: string;
}

interface Content<T extends KeptEntry> {
  next: number;
  entries: T[];
}

export interface KeptListOptions<T extends KeptEntry> {
  runDir: string;
  /** Of the file. */
  name: string;
  /** Of an id: "b" makes b1, b2. */
  letter: string;
  most: number;
  entry: v.GenericSchema<unknown, T>;
  /** What to do if the file is damaged or full, in words. */
  remedy: { damaged: string; full: string };
}

export class KeptList<T extends KeptEntry> {
  readonly #options: KeptListOptions<T>;
  readonly #path: string;
  #content: Content<T>;

  /** @throws {ShoalError} bad-config if the folder has a list that cannot be read. */
  constructor(options: KeptListOptions<T>) {
    this.#options = options;
    this.#path = join(options.runDir, options.name);
    this.#content = readContent(this.#path, options);
  }

  get all(): readonly T[] {
    return this.#content.entries;
  }

  /** @throws {ShoalError} usage if there are too many; whatever the disk says, and nothing has changed then. */
  add(what: Omit<T, "id">): T {
    const { next, entries } = this.#content;
    const { letter, most, remedy } = this.#options;
    if (entries.length >= most) throw new ShoalError("usage", `there are ${most} already; ${remedy.full}`);
    const entry = { ...what, id: `${letter}${next}` } as T;
    this.#write({ next: next + 1, entries: [...entries, entry] });
    return entry;
  }

  /** The entries that go; empty: nothing was written. */
  removeWhere(goes: (entry: T) => boolean): T[] {
    const gone = this.#content.entries.filter(goes);
    if (gone.length === 0) return [];
    this.#write({
      ...this.#content,
      entries: this.#content.entries.filter((entry) => !gone.includes(entry)),
    });
    return gone;
  }

  #write(content: Content<T>): void {
    Deno.writeTextFileSync(`${this.#path}.new`, JSON.stringify(content), { mode: OWNER_ONLY });
    Deno.renameSync(`${this.#path}.new`, this.#path);
    this.#content = content;
  }
}

function readContent<T extends KeptEntry>(path: string, options: KeptListOptions<T>): Content<T> {
  let text: string;
  try {
    if (Deno.statSync(path).size > FILE_BYTES_MAX) throw unreadable(path, "it is too long", options);
    text = Deno.readTextFileSync(path);
  } catch (error) {
    if (error instanceof Deno.errors.NotFound) return { next: 1, entries: [] };
    throw error;
  }
  let value: unknown = null;
  try {
    value = JSON.parse(text);
  } catch {
    // Refused below, as anything that is no list.
  }
  const next = v.pipe(v.number(), v.integer(), v.minValue(0), v.maxValue(Number.MAX_SAFE_INTEGER));
  const entries = v.pipe(v.array(options.entry), v.maxLength(options.most));
  const parsed = v.safeParse(v.strictObject({ next, entries }), value);
  if (!parsed.success) throw unreadable(path, parsed.issues[0].message, options);
  return parsed.output;
}

function unreadable<T extends KeptEntry>(
  path: string,
  reason: string,
  { remedy }: KeptListOptions<T>,
): ShoalError {
  return new ShoalError("bad-config", `${path} cannot be read: ${reason}; repair it, or ${remedy.damaged}`);
}
