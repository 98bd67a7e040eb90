// The envelope around signals, and the store for those that arrive before connect(). An attempt number ties
// every signal to one connection: a late candidate of a dead connection must not disturb the next one. Pure
// data, no transport.

/** Longest signal with its envelope, in characters. */
export const SIGNAL_TEXT_MAX = 20 * 1024;
/** Signals kept per remote until connect() is called: one offer and its candidates. */
export const EARLY_SIGNALS_MAX = 32;
/** Remotes whose early signals are kept; a stranger cannot make the table grow beyond this. */
export const EARLY_REMOTES_MAX = 64;

/** What an end that may not offer says when it needs a new link: the attempt is the one it has lost, 0 if it has none. */
export const REQUEST = '{"type":"request"}';

export interface Signal {
  /** Chosen by the initiator for each connection, unsigned 32 bits. */
  attempt: number;
  /** An offer starts an attempt; everything else belongs to one. */
  offer: boolean;
  data: string;
}

export function wrapSignal(attempt: number, data: string): string {
  return `${attempt}|${data}`;
}

/** Null for anything that wrapSignal cannot have produced; never throws. */
export function unwrapSignal(text: string): Signal | null {
  if (text.length > SIGNAL_TEXT_MAX) return null;
  const match = /^(\d{1,10})\|/.exec(text);
  if (match === null) return null;
  const attempt = Number(match[1]);
  if (attempt > 0xffffffff) return null;
  const data = text.slice(match[0].length);
  return { attempt, offer: isOffer(data), data };
}

function isOffer(data: string): boolean {
  try {
    return (JSON.parse(data) as { type?: unknown } | null)?.type === "offer";
  } catch {
    return false;
  }
}

/** Signals of remotes that nobody asked to connect to yet; the coordinator may tell the other end first. */
export class EarlySignals {
  #byRemote = new Map<string, Signal[]>();

  add(remote: string, signal: Signal): void {
    // Who has no link will offer one anyway, as soon as it is told to connect.
    if (signal.data === REQUEST) return;
    // The offer is the first signal of an attempt, so what came before it belongs to a dead one.
    const kept = signal.offer ? [] : this.#byRemote.get(remote) ?? [];
    if (kept.length >= EARLY_SIGNALS_MAX) return;
    if (!this.#byRemote.has(remote) && this.#byRemote.size >= EARLY_REMOTES_MAX) this.#forgetOldest();
    kept.push(signal);
    this.#byRemote.set(remote, kept);
  }

  /** Gives what waited for `remote` and forgets it. */
  take(remote: string): Signal[] {
    const signals = this.#byRemote.get(remote) ?? [];
    this.#byRemote.delete(remote);
    return signals;
  }

  #forgetOldest(): void {
    const [oldest] = this.#byRemote.keys();
    if (oldest !== undefined) this.#byRemote.delete(oldest);
  }
}
