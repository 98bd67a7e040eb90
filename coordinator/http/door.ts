// Who may come in: the public link while it is open, and private invitations, each for so many computers at a time until it
// ends; who is kept out; and whose the admin links are. Compares secrets in constant time. Not what a peer may do once it is in.
import { type Ban, Bans } from "../store/bans.ts";
import { type Invitation, Invites } from "../store/invites.ts";
import { Organizers } from "../store/organizers.ts";
import { Pins } from "../store/pins.ts";
import { same } from "./answers.ts";

export interface DoorOptions {
  runDir: string;
  joinToken: string;
  now(): number;
}

export type Entry = { ok: true; invite: string | null } | { ok: false; reason: string };

export class Door {
  readonly invites: Invites;
  readonly bans: Bans;
  readonly organizers: Organizers;
  readonly #pins: Pins;
  readonly #joinToken: string;
  readonly #now: () => number;
  /** By peer: the invitation it came in with. */
  readonly #seated = new Map<string, string>();
  /** By peer: the mark by which its computer is known again. */
  readonly #marks = new Map<string, string>();

  constructor({ runDir, joinToken, now }: DoorOptions) {
    this.invites = new Invites(runDir);
    this.bans = new Bans(runDir, now);
    this.organizers = new Organizers(runDir);
    this.#pins = new Pins(runDir);
    this.#joinToken = joinToken;
    this.#now = now;
  }

  /** Whether the token is one of this run's now, for what a page reads before it joins. */
  knows(token: string): boolean {
    return this.#entryOf(token).ok;
  }

  /** Whether a computer may come in with the token; it has a seat once it is seated. */
  enter(token: string): Entry {
    const entry = this.#entryOf(token);
    if (!entry.ok || entry.invite === null) return entry;
    const { seats } = this.invites.all.find((it) => it.id === entry.invite)!;
    const taken = this.seated(entry.invite).length;
    if (taken < seats) return entry;
    const computers = seats === 1 ? "one computer" : `${seats} computers`;
    return {
      ok: false,
      reason: `this invitation is for ${computers} at a time, which are in; ask for another`,
    };
  }

  seat(peer: string, invite: string | null, mark?: string): void {
    if (invite !== null) this.#seated.set(peer, invite);
    if (mark !== undefined) this.#marks.set(peer, mark);
  }

  leave(peer: string): void {
    this.#seated.delete(peer);
    this.#marks.delete(peer);
  }

  /** Why the computer with this mark is kept out, and for how long; null = it is not. */
  refusal(mark: string | undefined): string | null {
    const ban = this.bans.of(mark);
    if (ban === null) return null;
    const why = ban.reason === "" ? "" : `: ${ban.reason}`;
    return `this computer was put out by ${ban.by} and is kept out ${this.bans.left(ban)}${why}`;
  }

  /**
   * Keeps the peer's computer out; null if it has not told a mark by which it would be known again.
   * @throws {ShoalError} usage if there are too many bans.
   */
  ban(peer: string, how: Pick<Ban, "reason" | "until" | "by">): { ban: Ban; peers: string[] } | null {
    const mark = this.#marks.get(peer);
    if (mark === undefined) return null;
    const ban = this.bans.add({ ...how, mark, peer });
    return { ban, peers: [...this.#marks].flatMap(([id, own]) => own === mark ? [id] : []) };
  }

  /** Keeps the organizer's wish over restarts. @param stage an index; null: any @throws whatever the disk says */
  pin(peer: string, stage: number | null): void {
    this.#pins.set(peer, this.#marks.get(peer) ?? null, stage);
  }

  /** Where a peer that comes in, before it is seated, is wanted to compute; null = anywhere. */
  pinOf(peer: string, mark: string | undefined, { returns }: { returns: boolean }): number | null {
    if (returns) return this.#pins.ofReturned(peer, mark ?? null);
    return this.#pins.ofNewcomer(peer, mark ?? null, (other) => this.#marks.has(other));
  }

  /** The name of the organizer whose token this is; null = nobody's. Looks at all of them, whichever fits. */
  organizer(token: string): string | null {
    let found: string | null = null;
    for (const { name, token: own } of this.organizers.all) if (same(token, own)) found = name;
    return found;
  }

  /** Peers that are in with the invitation. */
  seated(invite: string): string[] {
    return [...this.#seated].flatMap(([peer, id]) => id === invite ? [peer] : []);
  }

  inviteOf(peer: string): string | null {
    return this.#seated.get(peer) ?? null;
  }

  #entryOf(token: string): Entry {
    const publicly = same(token, this.#joinToken);
    const invite = this.#find(token);
    if (publicly && this.invites.open) return { ok: true, invite: null };
    if (publicly) return { ok: false, reason: "the run is by invitation only now; ask for one" };
    if (invite === null) {
      return { ok: false, reason: "the join link is not of this run; ask for a fresh link" };
    }
    if (invite.expiresAt > this.#now()) return { ok: true, invite: invite.id };
    return { ok: false, reason: "this invitation has ended; ask for another" };
  }

  /** Looks at all of them, whichever fits. */
  #find(token: string): Invitation | null {
    let found: Invitation | null = null;
    for (const invite of this.invites.all) if (same(token, invite.token)) found = invite;
    return found;
  }
}
