// What every route of the coordinator shares: bounded bodies in, coded errors out. Knows no run.
import { timingSafeEqual } from "node:crypto";

/** An order of the organizer is a few words. */
const BODY_BYTES_MAX = 4096;

/** An error as every route gives it. */
export function problem(httpStatus: number, code: string, message: string): Response {
  return Response.json({ code, message }, { status: httpStatus });
}

export function unauthorized(): Response {
  return problem(
    401,
    "bad-token",
    "the token is missing or not of this run; open the link that was printed at start",
  );
}

/** A small JSON object, or an empty one for anything else. */
export async function bodyOf(request: Request): Promise<Record<string, unknown>> {
  // A body of unknown length could be of any length.
  if (!(Number(request.headers.get("content-length") ?? NaN) <= BODY_BYTES_MAX)) return {};
  const value: unknown = await request.json().catch(() => ({}));
  return typeof value === "object" && value !== null && !Array.isArray(value)
    ? value as Record<string, unknown>
    : {};
}

/** An object from outside may define toString itself, so only text is shown. */
export function shown(value: unknown): string {
  return typeof value === "string" ? `"${value.slice(0, 40)}"` : `of type ${typeof value}`;
}

/** Compares secrets in a time that does not depend on where they differ. */
export function same(a: string, b: string): boolean {
  const x = new TextEncoder().encode(a);
  const y = new TextEncoder().encode(b);
  return x.length === y.length && timingSafeEqual(x, y);
}
