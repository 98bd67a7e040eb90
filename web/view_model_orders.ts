// What the organizer can order, as data: changes of the configuration with their difference, alerts, invitations. Pure; draws
// and sends nothing. The coordinator checks every order again; what is said here only saves a round trip.
import { CHANGEABLE_KEYS, type ChangeableKey, type ConfigChange } from "../peer/wire/changes.ts";
import type { Invitations, InvitationStatus } from "../peer/wire/invitations.ts";
import type { RunConfig } from "../peer/wire/run.ts";
import type { RunStatus } from "../peer/wire/status.ts";
import { bytes, count, duration, loss, plural } from "./format.ts";
import { scheduleWarning } from "./schedule_words.ts";
import type { Tone } from "./view_model_notice.ts";

/** A commit that is this many times later than usual is worth a word, and never within the first seconds. */
export const STALL_FACTOR = 8;
export const STALL_LEAST_MS = 10_000;
/** Points before the newest that a spike is judged by, and how far above their median it must lie. */
export const SPIKE_WINDOW = 20;
export const SPIKE_FACTOR = 1.5;

export interface Alert {
  tone: Tone;
  text: string;
}

export interface ChangeRow {
  key: string;
  text: string;
  when: string;
}

export interface OrdersView {
  /** Keys that may change, with what they are now. */
  keys: { key: ChangeableKey; value: string }[];
  changes: ChangeRow[];
  /** The soonest step that a change can count from. */
  soonest: number;
  open: boolean;
}

/** What deserves the organizer's eye now; the worst first. */
export function alertsOf(status: RunStatus): Alert[] {
  return [...lossAlerts(status), ...stallAlerts(status), ...holderAlerts(status), ...diskAlerts(status)];
}

function lossAlerts({ losses }: RunStatus): Alert[] {
  const points = losses.flatMap(({ step, train }) => train === undefined ? [] : [{ step, train }]);
  const newest = points.at(-1);
  if (newest === undefined) return [];
  if (!Number.isFinite(newest.train)) {
    const text =
      `The loss at step ${count(newest.step)} is not a number: go back to a checkpoint and lower the ` +
      "learning rate.";
    return [{ tone: "bad", text }];
  }
  const before = points.slice(-1 - SPIKE_WINDOW, -1).map((point) => point.train).sort((a, b) => a - b);
  const usual = before[Math.floor(before.length / 2)];
  if (usual === undefined || before.length < SPIKE_WINDOW || newest.train < usual * SPIKE_FACTOR) return [];
  const text = `The loss has jumped to ${loss(newest.train)} at step ${count(newest.step)}; it was about ` +
    `${loss(usual)}.`;
  return [{ tone: "warn", text }];
}

function stallAlerts({ pace }: RunStatus): Alert[] {
  if (pace === undefined || pace.stepMs <= 0) return [];
  const { sinceCommitMs, stepMs } = pace;
  if (sinceCommitMs < Math.max(STALL_LEAST_MS, stepMs * STALL_FACTOR)) return [];
  const text = `No step for ${duration(sinceCommitMs)}; one usually takes ${duration(stepMs)}.`;
  return [{ tone: "warn", text }];
}

function holderAlerts({ safety, state }: RunStatus): Alert[] {
  if (state !== "training" && state !== "paused") return [];
  const alone = safety.flatMap((stage, i) =>
    stage.stepsAtRisk > 0 && stage.holders.length === 1 ? [i + 1] : []
  );
  if (alone.length === 0) return [];
  const which = alone.length === 1 ? `Stage ${alone[0]} has` : `Stages ${alone.join(", ")} have`;
  return [{ tone: "warn", text: `${which} one holder left.` }];
}

function diskAlerts({ disk, checkpoints }: RunStatus): Alert[] {
  if (disk === undefined || !disk.low) return [];
  const size = checkpoints.at(-1)?.bytes ?? 0;
  const room = Math.floor(disk.freeBytes / size);
  const holds = size === 0 ? "" : `, room for ${plural(room, "more checkpoint")}`;
  const text =
    `The coordinator’s disk is nearly full: ${bytes(disk.freeBytes)} of ${bytes(disk.sizeBytes)} left` +
    `${holds}. Delete checkpoints, or free space.`;
  return [{ tone: "bad", text }];
}

export function ordersView(status: RunStatus): OrdersView {
  const { config, changes = [], step, state } = status;
  return {
    keys: CHANGEABLE_KEYS.map((key) => ({ key, value: shown(config[key]) })),
    changes: changes.map((change, i) => changeRow(change, config, i)).reverse(),
    soonest: step + 1,
    open: state !== "finished" && state !== "failed",
  };
}

function changeRow({ step, set, was }: ConfigChange, config: RunConfig, i: number): ChangeRow {
  const keys = CHANGEABLE_KEYS.filter((key) => set[key] !== undefined);
  const text = keys.map((key) => `${key} ${shown((was ?? config)[key])} → ${shown(set[key])}`).join(", ");
  const when = was === undefined ? `from step ${count(step)} on` : `in force since step ${count(step)}`;
  return { key: `${step}/${i}`, text, when };
}

/** Exactly as it is: a rounded setting would be another one. */
function shown(value: unknown): string {
  return String(value);
}

export type Draft = { key: ChangeableKey; text: string; step: string };

/** What an order would do, or why it cannot be given yet. */
export type DraftView =
  | { ok: true; step: number; set: Partial<Record<ChangeableKey, unknown>>; text: string }
  | { ok: false; text: string };

export function draftView(draft: Draft, { config, step }: Pick<RunStatus, "config" | "step">): DraftView {
  const now = config[draft.key];
  const value = valueOf(draft.text.trim(), now);
  if (value === null) {
    return { ok: false, text: `${draft.key} is ${shown(now)}; write ${wanted(now)}.` };
  }
  if (value === now) return { ok: false, text: `${draft.key} is ${shown(now)} already.` };
  const from = Number(draft.step);
  if (!Number.isInteger(from) || from < 0 || draft.step.trim() === "") {
    return { ok: false, text: "The step is a whole number." };
  }
  const counts = Math.max(from, step + 1);
  const change =
    `${draft.key} ${shown(now)} → ${shown(value)} from step ${count(counts)} on; the layers are dealt out ` +
    "anew then.";
  const warning = draft.key === "schedule" ? scheduleWarning(value) : null;
  const text = warning === null ? change : `${change} ${warning}`;
  return { ok: true, step: counts, set: { [draft.key]: value }, text };
}

function valueOf(text: string, like: unknown): unknown {
  if (text === "") return null;
  if (typeof like === "boolean") return text === "true" ? true : text === "false" ? false : null;
  if (typeof like === "number") return Number.isFinite(Number(text)) ? Number(text) : null;
  return text;
}

function wanted(like: unknown): string {
  return typeof like === "boolean" ? "true or false" : typeof like === "number" ? "a number" : "another word";
}

export interface InvitationRow {
  id: string;
  title: string;
  /** "1 of 3 computers in, ends in 5 h". */
  state: string;
  tone: Tone;
  link: string;
  /** Whether the link still lets somebody in, now or once there is a seat. */
  usable: boolean;
}

export interface InvitationsView {
  open: boolean;
  /** Whether whoever may join may write text; null: nobody can. */
  text: boolean | null;
  rows: InvitationRow[];
}

export function invitationsView(invitations: Invitations | null, now: number): InvitationsView | null {
  if (invitations === null) return null;
  return {
    open: invitations.open,
    text: invitations.text ?? null,
    rows: invitations.invitations.map((it) => invitationRow(it, now)).reverse(),
  };
}

function invitationRow(invite: InvitationStatus, now: number): InvitationRow {
  const { id, note, seats, peers, expiresAt, link, ended } = invite;
  const over = ended || expiresAt <= now;
  const end = over ? "ended" : `ends in ${duration(expiresAt - now)}`;
  const seat = `${peers.length} of ${plural(seats, "computer")} in`;
  return {
    ...{ id, link, usable: !over },
    title: note === "" ? id : `${note} (${id})`,
    state: `${seat}, ${end}`,
    tone: over ? "bad" : peers.length >= seats ? "info" : "good",
  };
}
