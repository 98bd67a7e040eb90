// What goes wrong with a completion, in OpenAI's shape and with its status, so that its clients understand. Pure.
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";
import { BusyError } from "./text_service.ts";

export interface Refusal {
  message: string;
  param?: string | null;
  type?: string;
  code?: string | null;
}

/** An error in OpenAI's shape: {error: {message, type, param, code}}. */
export function refusal(status: number, refused: Refusal, headers: Record<string, string> = {}): Response {
  const { message, type = "invalid_request_error", param = null, code = null } = refused;
  return Response.json({ error: { message, type, param, code } }, { status, headers });
}

/** What became of a text that could not be written. */
export function problemOf(
  error: unknown,
): { status: number; error: Refusal; headers?: Record<string, string> } {
  const message = messageOf(error);
  if (error instanceof BusyError) {
    const refused = { message, type: "rate_limit_error", code: "rate_limit_exceeded" };
    return { status: 429, error: refused, headers: { "retry-after": String(error.retrySeconds) } };
  }
  const code = error instanceof ShoalError ? error.code : "internal";
  // What the prompt holds is the caller's; everything else is the server's.
  if (code === "usage" || code === "bad-corpus") {
    return { status: 400, error: { message, type: "invalid_request_error", param: null, code } };
  }
  const status = code === "offline" || code === "no-writers" ? 503 : 500;
  return { status, error: { message, type: "server_error", param: null, code } };
}
