// The limits of a computer as a form: fields with labels, values and help, and what a change of a field means. Pure.
// Figures are in the units that people use: percent, megabytes, kilobytes per second.
import {
  DUTY_MIN,
  type Limits,
  MEMORY_BYTES_MIN,
  RATE_BYTES_PER_S_MIN,
  readLimits,
  type Ruling,
} from "../peer/wire/limits.ts";
import { bytes } from "./format.ts";

/** What this browser offers; a limit that needs more says so. */
export interface Features {
  battery: boolean;
  idle: boolean;
  wakeLock: boolean;
}

export type FieldId =
  | "duty"
  | "pluggedOnly"
  | "memory"
  | "up"
  | "down"
  | "dayUp"
  | "dayDown"
  | "batteryStop"
  | "batteryResume"
  | "onlyVisible"
  | "onlyIdle"
  | "from"
  | "to";

export interface Field {
  id: FieldId;
  kind: "range" | "check" | "number" | "time";
  label: string;
  /** What the control shows; "" = no limit. */
  value: string;
  on: boolean;
  /** After a number; after a range, what it means. */
  unit: string;
  help: string;
  disabled: boolean;
  min: number;
  max: number;
}

export interface LimitsView {
  /** What holds now, in a sentence. */
  summary: string;
  simple: Field[];
  advanced: { title: string; fields: Field[] }[];
}

const MB = 1_000_000;
const KB = 1_000;
/** A battery that has just passed its lower threshold should gain something before the work goes on. */
const BATTERY_GAP = 0.1;
const NO_BATTERY = "This browser does not tell how the computer is powered, so this cannot hold here.";

function field(id: FieldId, kind: Field["kind"], label: string, part: Partial<Field>): Field {
  const base = { value: "", on: false, unit: "", help: "", disabled: false, min: 0, max: 0 };
  return { id, kind, label, ...base, ...part };
}

export function limitsView(limits: Limits, features: Features): LimitsView {
  return {
    summary: summaryOf(limits),
    simple: [dutyField(limits), pluggedField(limits, features)],
    advanced: [
      { title: "Memory and network", fields: sizeFields(limits) },
      { title: "Battery", fields: batteryFields(limits, features) },
      { title: "When", fields: whenFields(limits, features) },
    ],
  };
}

function dutyField({ duty }: Limits): Field {
  const percent = Math.round(duty * 100);
  const unit = percent === 100 ? "as much as it can" : `${percent}% of the time`;
  const help = "The rest of the time the processor rests, and the group may wait for this computer.";
  const bounds = { min: DUTY_MIN * 100, max: 100 };
  return field("duty", "range", "Share of the processor", { value: String(percent), unit, help, ...bounds });
}

function pluggedField({ pluggedOnly }: Limits, { battery }: Features): Field {
  const help = battery ? "" : NO_BATTERY;
  return field("pluggedOnly", "check", "Only when plugged in", { on: pluggedOnly, help, disabled: !battery });
}

function sizeFields(limits: Limits): Field[] {
  const size = (value: number | null, unit: number) => value === null ? "" : String(Math.round(value / unit));
  const rate = { unit: "kB/s", min: RATE_BYTES_PER_S_MIN / KB };
  return [
    field("memory", "number", "Memory", {
      ...{ value: size(limits.memoryBytes, MB), unit: "MB", min: MEMORY_BYTES_MIN / MB },
      help: "Holds from the next time this computer joins.",
    }),
    field("up", "number", "Upload", { value: size(limits.upBytesPerS, KB), ...rate }),
    field("down", "number", "Download", {
      ...{ value: size(limits.downBytesPerS, KB), ...rate },
      help: "Other computers send as they work; this one slows down, and so do they.",
    }),
    field("dayUp", "number", "Upload per day", { value: size(limits.dayUpBytes, MB), unit: "MB" }),
    field("dayDown", "number", "Download per day", {
      ...{ value: size(limits.dayDownBytes, MB), unit: "MB" },
      help: "When a day’s limit is reached, this computer finishes its step and leaves.",
    }),
  ];
}

function batteryFields({ battery }: Limits, features: Features): Field[] {
  const share = (value: number | undefined) => value === undefined ? "" : String(Math.round(value * 100));
  const part = { unit: "%", max: 100, disabled: !features.battery };
  return [
    field("batteryStop", "number", "Stop below", { value: share(battery?.stop), ...part }),
    field("batteryResume", "number", "Go on above", {
      ...{ value: share(battery?.resume), ...part },
      help: features.battery ? "While the computer runs on its battery." : NO_BATTERY,
    }),
  ];
}

function whenFields({ hours, onlyVisible, onlyIdle }: Limits, { idle }: Features): Field[] {
  const time = (minute: number | undefined) => minute === undefined ? "" : clockOf(minute);
  const idleHelp = idle
    ? "The browser asks for your permission to know that."
    : "This browser does not tell whether the computer is used, so this cannot hold here.";
  return [
    field("from", "time", "From", { value: time(hours?.from) }),
    field("to", "time", "Until", {
      value: time(hours?.to),
      help: "Local time; may span midnight. Two equal times set no limit.",
    }),
    field("onlyVisible", "check", "Only while this tab is in front", { on: onlyVisible }),
    field("onlyIdle", "check", "Only while nobody uses this computer", {
      ...{ on: onlyIdle, help: idleHelp, disabled: !idle },
    }),
  ];
}

/** The limits after a field was changed to `text`; a switch is "true" or "false". What makes no sense is brought in bounds. */
export function withField(limits: Limits, id: FieldId, text: string): Limits {
  return readLimits({ ...limits, ...change(limits, id, text) });
}

function change(limits: Limits, id: FieldId, text: string): Partial<Record<keyof Limits, unknown>> {
  const number = text.trim() === "" ? null : Number(text);
  const times = (unit: number) => number === null ? null : number * unit;
  switch (id) {
    case "duty":
      return { duty: number === null ? 1 : number / 100 };
    case "memory":
      return { memoryBytes: times(MB) };
    case "up":
      return { upBytesPerS: times(KB) };
    case "down":
      return { downBytesPerS: times(KB) };
    case "dayUp":
      return { dayUpBytes: times(MB) };
    case "dayDown":
      return { dayDownBytes: times(MB) };
    case "batteryStop":
    case "batteryResume":
      return { battery: batteryWith(limits.battery, id, number === null ? null : number / 100) };
    case "from":
    case "to":
      return { hours: hoursWith(limits.hours, id, minuteOf(text)) };
    case "pluggedOnly":
    case "onlyVisible":
    case "onlyIdle":
      return { [id]: text === "true" };
  }
}

/** One threshold alone brings the other with it. */
function batteryWith(battery: Limits["battery"], id: FieldId, share: number | null): Limits["battery"] {
  if (share === null) return null;
  if (id === "batteryStop") {
    return { stop: share, resume: battery?.resume ?? Math.min(1, share + BATTERY_GAP) };
  }
  return { stop: Math.min(share, battery?.stop ?? Math.max(0, share - BATTERY_GAP)), resume: share };
}

function hoursWith(hours: Limits["hours"], id: "from" | "to", minute: number | null): Limits["hours"] {
  if (minute === null) return null;
  return { ...hours ?? { from: minute, to: minute }, [id]: minute };
}

/** "22:30" -> 1350; null if it is no time. */
function minuteOf(text: string): number | null {
  const [, hour, minute] = /^(\d\d?):(\d\d)$/.exec(text) ?? [];
  return hour === undefined || minute === undefined ? null : Number(hour) * 60 + Number(minute);
}

/** 1350 -> "22:30". */
export function clockOf(minute: number): string {
  return [Math.floor(minute / 60), minute % 60].map((part) => String(part).padStart(2, "0")).join(":");
}

function summaryOf(limits: Limits): string {
  const parts = [
    limits.duty < 1 ? `${Math.round(limits.duty * 100)}% of the time` : "",
    limits.memoryBytes === null ? "" : `${bytes(limits.memoryBytes)} of memory`,
    limits.upBytesPerS === null ? "" : `${bytes(limits.upBytesPerS)}/s up`,
    limits.downBytesPerS === null ? "" : `${bytes(limits.downBytesPerS)}/s down`,
    limits.dayUpBytes === null ? "" : `${bytes(limits.dayUpBytes)} up a day`,
    limits.dayDownBytes === null ? "" : `${bytes(limits.dayDownBytes)} down a day`,
    limits.pluggedOnly ? "only plugged in" : "",
    limits.battery === null ? "" : `not below ${Math.round(limits.battery.stop * 100)}% of the battery`,
    limits.hours === null || limits.hours.from === limits.hours.to
      ? ""
      : `from ${clockOf(limits.hours.from)} to ${clockOf(limits.hours.to)}`,
    limits.onlyVisible ? "only in front" : "",
    limits.onlyIdle ? "only while the computer is idle" : "",
  ].filter((part) => part !== "");
  return parts.length === 0 ? "No limits are set." : `Limits: ${parts.join(", ")}.`;
}

/** Why the limits let nothing run now, and when that ends; "" if they do. */
export function rulingSentence({ why }: Ruling, limits: Limits): string {
  switch (why) {
    case null:
      return "";
    case "battery":
      return `The battery is below your limit; it goes on at ${
        Math.round((limits.battery?.resume ?? 1) * 100)
      }%, or when the computer is plugged in.`;
    case "unplugged":
      return "The computer runs on its battery; it goes on when it is plugged in.";
    case "hours":
      return `It is outside your hours; it goes on at ${clockOf(limits.hours?.from ?? 0)}.`;
    case "hidden":
      return "This tab is in the background; it goes on when you bring it to the front.";
    case "in-use":
      return "Somebody uses this computer; it goes on when nobody has for a minute.";
    case "day-up":
      return `Today’s upload limit of ${bytes(limits.dayUpBytes ?? 0)} is reached; it ends at midnight.`;
    case "day-down":
      return `Today’s download limit of ${bytes(limits.dayDownBytes ?? 0)} is reached; it ends at midnight.`;
  }
}
