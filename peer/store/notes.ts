// Small facts about this computer that are costly to find out again, such as which engine is the quickest here. A wish, never
// a need: what cannot be read or kept is found out again. Not for states (saved_states.ts); nothing in it is private.

/** Texts by name, kept over a reload or a restart where there is a place for them. */
export interface Notes {
  get(name: string): Promise<string | null>;
  set(name: string, text: string): Promise<void>;
}

/** Longest note; longer ones are not kept and not read. */
export const NOTE_CHARS_MAX = 64 * 1024;

/** As long as this thread lives. */
export class MemoryNotes implements Notes {
  readonly #texts = new Map<string, string>();

  get(name: string): Promise<string | null> {
    return Promise.resolve(this.#texts.get(name) ?? null);
  }

  set(name: string, text: string): Promise<void> {
    this.#texts.set(name, text);
    return Promise.resolve();
  }
}

/** Notes that never fail: what `kept` refuses is treated as absent, and remembered here instead. */
export class SafeNotes implements Notes {
  readonly #memory = new MemoryNotes();
  readonly #kept: Notes;

  constructor(kept: Notes) {
    this.#kept = kept;
  }

  async get(name: string): Promise<string | null> {
    const own = await this.#memory.get(name);
    if (own !== null) return own;
    try {
      const text = await this.#kept.get(name);
      return text !== null && text.length <= NOTE_CHARS_MAX ? text : null;
    } catch {
      return null;
    }
  }

  async set(name: string, text: string): Promise<void> {
    await this.#memory.set(name, text);
    if (text.length > NOTE_CHARS_MAX) return;
    try {
      await this.#kept.set(name, text);
    } catch {
      // A full disk or a private window: the next start finds it out again.
    }
  }
}
