// What a person must know of a schedule before choosing it. Pure; the whole explanation is docs/algorithms.md.

/** One sentence, or null where a schedule changes nothing but the time that a step takes. */
export function scheduleWarning(schedule: unknown): string | null {
  return schedule === "2bw" ? ASYNCHRONOUS : null;
}

const ASYNCHRONOUS =
  "2bw is asynchronous: each gradient is computed with weights that are one step old, so the run learns differently.";
