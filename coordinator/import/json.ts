// Reading values of a stranger's config.json. Pure; what is missing or of another kind is null, and the caller says so.

export function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** A whole number above 0; `absent` where the key is missing or null. */
export function whole(
  json: Record<string, unknown>,
  name: string,
  absent: number | null = null,
): number | null {
  const value = json[name] ?? absent;
  return typeof value === "number" && Number.isSafeInteger(value) && value > 0 ? value : null;
}

/** A finite number above 0. */
export function positive(value: unknown): number | null {
  return typeof value === "number" && value > 0 && value < Infinity ? value : null;
}

/** A stranger's value for a message, cut to what a line holds. */
export function shown(value: unknown): string {
  return (JSON.stringify(value) ?? "missing").slice(0, 60);
}
