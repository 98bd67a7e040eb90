// Who is kept out of the run and who steers it, as data. Pure; draws and fetches nothing.
import type { BanStatus, OrganizerList } from "../peer/wire/invitations.ts";
import { duration } from "./format.ts";

/** For how long a computer that is put out stays out: minutes, or a word. */
export const STAYS = [
  { value: "at once", text: "at once" },
  { value: "10", text: "after 10 minutes" },
  { value: "60", text: "after an hour" },
  { value: "1440", text: "after a day" },
  { value: "never", text: "never, until you lift it" },
];

/** What the coordinator is told for one of STAYS. */
export function stayOrder(stay: string): { minutes?: number; ban?: boolean } {
  if (stay === "never") return { ban: true };
  const minutes = Number(stay);
  return Number.isFinite(minutes) && stay !== "" ? { minutes } : {};
}

export interface BanRow {
  id: string;
  peer: string;
  /** "for 25 min more, by Ada: wrong class". */
  text: string;
}

export interface OrganizerRow {
  id: string;
  name: string;
  /** Only the first organizer sees it. */
  link: string | null;
}

export interface PeopleView {
  bans: BanRow[];
  organizers: OrganizerRow[];
  /** Whether this page may name organizers and withdraw their links. */
  mayName: boolean;
  /** What the log calls orders of this page. */
  you: string;
}

/** Null until both lists are known. */
export function peopleView(
  bans: BanStatus[] | null,
  organizers: OrganizerList | null,
  now: number,
): PeopleView | null {
  if (bans === null || organizers === null) return null;
  return {
    bans: bans.map((ban) => banRow(ban, now)).reverse(),
    organizers: organizers.organizers.map(({ id, name, link = null }) => ({ id, name, link })),
    mayName: organizers.first,
    you: organizers.you,
  };
}

function banRow({ id, peer, reason, until, by }: BanStatus, now: number): BanRow {
  const span = until === null ? "for good" : `for ${duration(Math.max(0, until - now))} more`;
  return { id, peer, text: `${span}, by ${by}${reason === "" ? "" : `: ${reason}`}` };
}
