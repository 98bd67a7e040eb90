// When to ask a polling provider whether an operation is done: not before it can be. Dawn under Deno asks in a busy loop, whose
// garbage stops the process for a second every few operations; asked late, it answers in a fraction of a millisecond.
// Only an estimate from earlier runs of the same operation: too early costs polling, too late costs waiting, never a result.

/** Part of the expected time that passes before the question: the rest is polled, so that a quicker run is noticed. */
const SHARE = 0.9;
/** A timer is no finer than this. */
const LEAST_MS = 2;
/** Lets the estimate rise when the machine has become slower; the least time of late is what counts otherwise. */
const RISE = 1.05;

export class Patience {
  readonly #expected = new Map<string, number>();

  /** Milliseconds to let pass after the submit of `operation`; 0 before it has run once. */
  before(operation: string): number {
    const ms = (this.#expected.get(operation) ?? 0) * SHARE;
    return ms < LEAST_MS ? 0 : ms;
  }

  /** `operation` took so many milliseconds from its submit to its bytes. */
  took(operation: string, ms: number): void {
    const expected = this.#expected.get(operation);
    this.#expected.set(operation, expected === undefined ? ms : Math.min(ms, expected * RISE));
  }
}
