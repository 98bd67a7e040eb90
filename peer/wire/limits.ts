// What an owner allows a run to take of a computer, and what follows from it now: run, wait or finish. Pure: the situation and
// the time of day are arguments. It enforces nothing; peer/limits.ts and peer/net/pacer.ts do.

/** The least share of time that a peer may compute: below it a step of the whole group waits for one peer's rests. */
export const DUTY_MIN = 0.1;
/** A slower line could not carry a boundary tensor before the next one is due, and the run would wait for ever. */
export const RATE_BYTES_PER_S_MIN = 50_000;
/** Below this no stage of any model fits. */
export const MEMORY_BYTES_MIN = 64_000_000;
/** Text that a person gives a computer; shown to the run's organizer. */
export const NAME_CHARS_MAX = 40;

const MINUTES_PER_DAY = 24 * 60;

/** Null stands for "no limit" throughout. */
export interface Limits {
  /** Share of the time in which the peer computes, DUTY_MIN to 1. */
  duty: number;
  pluggedOnly: boolean;
  memoryBytes: number | null;
  upBytesPerS: number | null;
  downBytesPerS: number | null;
  /** Bytes from midnight to midnight. */
  dayUpBytes: number | null;
  dayDownBytes: number | null;
  /** Shares of a full battery: below the first the peer waits, from the second on it goes on. */
  battery: { stop: number; resume: number } | null;
  onlyIdle: boolean;
  onlyVisible: boolean;
  /** Minutes of the local day; `from` after `to` spans midnight. */
  hours: { from: number; to: number } | null;
}

export const NO_LIMITS: Limits = {
  ...{ duty: 1, pluggedOnly: false, memoryBytes: null, upBytesPerS: null, downBytesPerS: null },
  ...{ dayUpBytes: null, dayDownBytes: null, battery: null, onlyIdle: false, onlyVisible: false },
  hours: null,
};

/** What the page or the process knows of its surroundings; null where it cannot know. */
export interface Situation {
  plugged: boolean | null;
  /** Share of a full battery. */
  battery: number | null;
  visible: boolean;
  /** Nobody uses the computer. */
  idle: boolean | null;
  /** Of the local day. */
  minute: number;
  sentToday: number;
  receivedToday: number;
}

export type LimitReason = "day-up" | "day-down" | "battery" | "unplugged" | "hours" | "hidden" | "in-use";

/** `wait` is a pause that ends by itself; `finish` is a clean leave. */
export interface Ruling {
  verdict: "run" | "wait" | "finish";
  why: LimitReason | null;
}

export const FREE: Ruling = { verdict: "run", why: null };

/**
 * What the limits ask for in this situation. What cannot be known (no battery interface, no idle detection) limits nothing.
 * @param before the last ruling: a peer that waits for its battery waits until the upper threshold
 */
export function decide(limits: Limits, now: Situation, before: Ruling = FREE): Ruling {
  if (reached(limits.dayUpBytes, now.sentToday)) return { verdict: "finish", why: "day-up" };
  if (reached(limits.dayDownBytes, now.receivedToday)) return { verdict: "finish", why: "day-down" };
  if (batteryLow(limits, now, before)) return { verdict: "wait", why: "battery" };
  if (limits.pluggedOnly && now.plugged === false) return { verdict: "wait", why: "unplugged" };
  if (!withinHours(limits.hours, now.minute)) return { verdict: "wait", why: "hours" };
  if (limits.onlyVisible && !now.visible) return { verdict: "wait", why: "hidden" };
  if (limits.onlyIdle && now.idle === false) return { verdict: "wait", why: "in-use" };
  return FREE;
}

function reached(most: number | null, count: number): boolean {
  return most !== null && count >= most;
}

/** A battery that is being charged may be used, however empty. */
function batteryLow({ battery }: Limits, now: Situation, before: Ruling): boolean {
  if (battery === null || now.battery === null || now.plugged === true) return false;
  const waits = before.why === "battery";
  return now.battery < (waits ? Math.max(battery.stop, battery.resume) : battery.stop);
}

function withinHours(hours: Limits["hours"], minute: number): boolean {
  if (hours === null || hours.from === hours.to) return true;
  const { from, to } = hours;
  return from < to ? minute >= from && minute < to : minute >= from || minute < to;
}

/** Limits from what was kept or typed: whatever is missing or makes no sense limits nothing. Never throws. */
export function readLimits(value: unknown): Limits {
  const given = isRecord(value) ? value : {};
  return {
    duty: between(given["duty"], DUTY_MIN, 1) ?? 1,
    pluggedOnly: given["pluggedOnly"] === true,
    memoryBytes: between(given["memoryBytes"], MEMORY_BYTES_MIN, Number.MAX_SAFE_INTEGER),
    upBytesPerS: between(given["upBytesPerS"], RATE_BYTES_PER_S_MIN, Number.MAX_SAFE_INTEGER),
    downBytesPerS: between(given["downBytesPerS"], RATE_BYTES_PER_S_MIN, Number.MAX_SAFE_INTEGER),
    dayUpBytes: between(given["dayUpBytes"], 0, Number.MAX_SAFE_INTEGER),
    dayDownBytes: between(given["dayDownBytes"], 0, Number.MAX_SAFE_INTEGER),
    battery: readBattery(given["battery"]),
    onlyIdle: given["onlyIdle"] === true,
    onlyVisible: given["onlyVisible"] === true,
    hours: readHours(given["hours"]),
  };
}

function readBattery(value: unknown): Limits["battery"] {
  if (!isRecord(value)) return null;
  const stop = between(value["stop"], 0, 1);
  const resume = between(value["resume"], 0, 1);
  return stop === null || resume === null ? null : { stop, resume: Math.max(stop, resume) };
}

function readHours(value: unknown): Limits["hours"] {
  if (!isRecord(value)) return null;
  const from = between(value["from"], 0, MINUTES_PER_DAY - 1);
  const to = between(value["to"], 0, MINUTES_PER_DAY - 1);
  return from === null || to === null ? null : { from: Math.floor(from), to: Math.floor(to) };
}

/** A number is brought within its bounds; anything else is none. */
function between(value: unknown, least: number, most: number): number | null {
  if (typeof value !== "number" || !Number.isFinite(value)) return null;
  return Math.min(most, Math.max(least, value));
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null;
}
