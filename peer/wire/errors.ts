// The one error class of the project. Every failure that a person or another peer may see carries a stable
// code (listed in docs/errors.md), the offending value, and the remedy. Bytes from a stranger never reach an assertion.

/** Stable identifiers; each is explained in docs/errors.md. */
export type ErrorCode =
  | "bad-frame"
  | "bad-message"
  | "bad-config"
  | "bad-corpus"
  | "bad-checkpoint"
  | "bad-model"
  | "bad-log"
  | "bad-state"
  | "bad-snapshot"
  | "stale-snapshot"
  | "keeper-full"
  | "bad-token"
  | "wrong-version"
  | "link-overflow"
  | "link-closed"
  | "link-timeout"
  | "no-adapter"
  | "device-lost"
  | "out-of-memory"
  | "shader-invalid"
  | "run-full"
  | "kicked"
  | "banned"
  | "no-writers"
  | "offline"
  | "stale-coordinator"
  | "not-resumed"
  | "storage-full"
  | "storage-denied"
  | "storage-damaged"
  | "missing-tool"
  | "usage"
  | "internal";

/** A failure with a code; `message` says what failed, the value and the remedy. */
export class ShoalError extends Error {
  readonly code: ErrorCode;
  constructor(code: ErrorCode, message: string, options?: { cause?: unknown }) {
    super(message, options);
    this.name = "ShoalError";
    this.code = code;
  }
}

/** Our own mistakes only; stays on in production. */
export function assert(condition: unknown, message: string): asserts condition {
  if (!condition) throw new ShoalError("internal", `assertion failed: ${message}`);
}

/** Outcome of reading a stranger's bytes: a value, or a coded refusal; decoders never throw. */
export type Result<T> = { ok: true; value: T } | { ok: false; code: ErrorCode; reason: string };

export function refuse(code: ErrorCode, reason: string): { ok: false; code: ErrorCode; reason: string } {
  return { ok: false, code, reason };
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
