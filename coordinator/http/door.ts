// Who may come in: the public link while it is open, and private invitations, each for so many computers at a time until it
// ends. Compares secrets in constant time. Not the admin's token, and not what a peer may do once it is in.
import { type Invitation, Invites } from "../store/invites.ts";
import { same } from "./answers.ts";

export interface DoorOptions {
  runDir: string;
  joinToken: string;
  now(): number;
}

export type Entry = { ok: true; invite: string | null } | { ok: false; reason: string };

export class Door {
  readonly invites: Invites;
  readonly #joinToken: string;
  readonly #now: () => number;
  /** By peer: the invitation it came in with. */
  readonly #seated = new Map<string, string>();

  constructor({ runDir, joinToken, now }: DoorOptions) {
    this.invites = new Invites(runDir);
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

  seat(peer: string, invite: string | null): void {
    if (invite !== null) this.#seated.set(peer, invite);
  }

  leave(peer: string): void {
    this.#seated.delete(peer);
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
