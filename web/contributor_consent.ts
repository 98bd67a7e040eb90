// What a person agrees to before anything runs, in plain words, and whether an agreement still stands. Pure.
// What must stay true: whoever changes what runs, is sent or is stored raises CONSENT_VERSION, and everybody is asked again.
import type { Invite } from "../peer/wire/status.ts";
import { bytes } from "./format.ts";

/** Of the text below. */
export const CONSENT_VERSION = 3;
/** Nobody remembers longer what a page was allowed to do. */
export const CONSENT_DAYS = 30;
const DAY_MS = 24 * 60 * 60 * 1000;

/** Kept in this browser under the run's name; says to what was agreed, and when. */
export interface Consent {
  version: number;
  runName: string;
  operator: string;
  dataset: string;
  /** Hosts besides the coordinator that the model is fetched from; absent: none. */
  hosts?: string;
  /** Milliseconds since the epoch. */
  at: number;
}

export type Standing = "none" | "stands" | "expired" | "changed";

export function consentTo(invite: Invite, now: number): Consent {
  const { runName, operator, dataset } = invite;
  return { version: CONSENT_VERSION, runName, operator, dataset, ...hostsOf(invite), at: now };
}

function hostsOf({ base }: Invite): Pick<Consent, "hosts"> {
  return base === undefined || base.hosts.length === 0 ? {} : { hosts: base.hosts.join(" ") };
}

/** Whether an agreement covers this run today; a clock that was set back does not make one last longer. */
export function standingOf(consent: Consent | null, invite: Invite, now: number): Standing {
  if (consent === null) return "none";
  const { version, runName, operator, dataset, at } = consent;
  const same = version === CONSENT_VERSION && runName === invite.runName && operator === invite.operator &&
    dataset === invite.dataset && consent.hosts === hostsOf(invite).hosts;
  if (!same) return "changed";
  return now >= at && now < expiresAt(consent) ? "stands" : "expired";
}

export function expiresAt({ at }: Pick<Consent, "at">): number {
  return at + CONSENT_DAYS * DAY_MS;
}

/** An agreement as it was kept; null if it is none. */
export function readConsent(value: unknown): Consent | null {
  if (typeof value !== "object" || value === null) return null;
  const { version, runName, operator, dataset, hosts, at } = value as Record<string, unknown>;
  const texts = typeof runName === "string" && typeof operator === "string" && typeof dataset === "string";
  if (!texts || typeof version !== "number" || typeof at !== "number") return null;
  const named = typeof hosts === "string" ? { hosts } : {};
  return { version, runName, operator, dataset, ...named, at };
}

export interface Term {
  title: string;
  text: string;
}

/** What is agreed to. The figures are this run's. */
/** What is fetched once where a model is fine-tuned, and who learns of it. */
function frozenSentence({ base }: Invite): string {
  if (base === undefined) return "";
  const from = base.hosts.length === 0
    ? ""
    : ` from ${base.hosts.join(", ")}, where your network address is seen`;
  if (base.trained) {
    return ` When the run begins, about ${bytes(base.bytes)} of its first weights are fetched${from}.`;
  }
  return ` Once, about ${bytes(base.bytes)} of a model that stays as it is are fetched${from}.`;
}

export function termsOf(invite: Invite): Term[] {
  return [
    {
      title: "What will run",
      text:
        "One piece of the model: matrix arithmetic inside this tab, on the graphics processor, or on the processor " +
        "where that is quicker. Now and then the same piece helps to write a text that somebody asks the model for. The " +
        "computer may feel slower, its fan may spin, and it uses more power. You can limit how much.",
    },
    {
      title: "How much it takes",
      text:
        `About ${bytes(invite.memoryBytes)} of memory, and about ${bytes(invite.bytesPerStep)} of network ` +
        "traffic for each training step. On a metered connection, count that first." + frozenSentence(invite),
    },
    {
      title: "What leaves this computer",
      text:
        "Numbers of the shared model (activations, gradients, weights) go straight to the other computers of the " +
        "run, which see your network address, as you see theirs. The coordinator sees it too, with the name of the " +
        "graphics adapter, how quick this computer is, a random mark by which it is known again, and a name for it if you " +
        "give one. No files, no history, nothing else you type.",
    },
    {
      title: "What is stored here",
      text:
        "In this browser, for this address: that you agreed, your limits, what you have contributed, the join link, the " +
        "mark, and a copy of your piece of the model, so that a reload need not fetch it.",
    },
    {
      title: "How to stop",
      text:
        "Pause, finish or leave whenever you like, or close the tab: nothing goes on after that. “Withdraw” " +
        `deletes everything that is stored. You are asked again after ${CONSENT_DAYS} days, or when this text or the run changes.`,
    },
    {
      title: "Who runs it",
      text: `The coordinator is run by ${invite.operator}.`,
    },
  ];
}
