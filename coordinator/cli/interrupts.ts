// Ctrl-C, as two signals: the first asks for a clean end, the second ends at once.
// Knows nothing of what is ended. One press must count once, however many processes hand it on.

/** npm, the shell and our parent each pass on the same key press; a person's second press takes longer than this. */
export const ECHO_MS = 250;

/** A second press: the process ends with this code. */
const EXIT_FORCED = 1;
/** Time that a goodbye gets to leave before the process ends at a second press. */
const GOODBYE_MS = 100;

export type Press = "soft" | "hard" | "echo";

/** Tells presses from their echoes; time is an argument. */
export class PressCounter {
  #lastMs: number | null = null;

  press(nowMs: number): Press {
    const first = this.#lastMs === null;
    const echo = this.#lastMs !== null && nowMs - this.#lastMs < ECHO_MS;
    this.#lastMs = nowMs;
    if (echo) return "echo";
    return first ? "soft" : "hard";
  }
}

export interface Interrupts {
  /** Aborted by the first SIGINT, SIGTERM or SIGHUP. */
  readonly signal: AbortSignal;
  /** Aborted by the second: the process ends a moment later. */
  readonly hard: AbortSignal;
  /** Stops listening, so that the process can end by itself. */
  close(): void;
}

/** Resolves when the signal is aborted, at once if it is already. */
export function aborted(signal: AbortSignal): Promise<void> {
  if (signal.aborted) return Promise.resolve();
  return new Promise((resolve) => signal.addEventListener("abort", () => resolve(), { once: true }));
}

/** `onHard` runs just before the process ends at the second press: the last chance to end children. */
export function listenForInterrupts(onHard: () => void = () => {}): Interrupts {
  const controller = new AbortController();
  const hard = new AbortController();
  const counter = new PressCounter();
  const signals: Deno.Signal[] = ["SIGINT", "SIGTERM", "SIGHUP"];
  function pressed(): void {
    const press = counter.press(performance.now());
    if (press === "soft") controller.abort(new Error("interrupted"));
    if (press !== "hard") return;
    hard.abort(new Error("interrupted twice"));
    onHard();
    setTimeout(() => Deno.exit(EXIT_FORCED), GOODBYE_MS);
  }
  for (const signal of signals) Deno.addSignalListener(signal, pressed);
  return {
    signal: controller.signal,
    hard: hard.signal,
    close() {
      for (const signal of signals) Deno.removeSignalListener(signal, pressed);
    },
  };
}
