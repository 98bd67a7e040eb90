// When to ask a polling provider whether an operation is done: not before it can be. Dawn under Deno asks in a busy loop, whose
// garbage stops the process for a second every few operations; asked late, it answers in a fraction of a millisecond.
// Only an estimate from earlier runs of the same operation: too early costs polling, too late costs waiting, never a result.

/** Part of the expected time that passes before the question: the rest is polled, so that the true time is seen. */
const SHARE = 0.8;
/** A timer is no finer than this. */
const LEAST_MS = 2;
/** An answer within this share of the rest came at once: the operation had long been done, nobody knows for how long. */
const AT_ONCE = 0.05;
/** After such an answer the operation is taken to be so much quicker. */
const CUT = 0.5;

export class Patience {
  readonly #expected = new Map<string, number>();

  /** Milliseconds to let pass after the submit of `operation`; 0 before it has run twice, since the first run compiles. */
  before(operation: string): number {
    const ms = (this.#expected.get(operation) ?? 0) * SHARE;
    return ms < LEAST_MS ? 0 : ms;
  }

  /** `operation` was let rest for `restMs` after its submit, and its bytes came `polledMs` after that. */
  took(operation: string, { restMs, polledMs }: { restMs: number; polledMs: number }): void {
    if (!this.#expected.has(operation)) return void this.#expected.set(operation, 0);
    const late = restMs > 0 && polledMs < restMs * AT_ONCE;
    this.#expected.set(operation, late ? restMs * CUT : restMs + polledMs);
  }
}
