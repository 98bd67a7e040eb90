// Putting computers out over HTTP: at once, for a time, or without end; the list of who is kept out, and lifting it. Every route
// wants an organizer's token. What must stay true: who is kept out is on disk before they are put out.
import type { Hono } from "hono";
import { BANS_MAX, MINUTES_MAX, REASON_CHARS_MAX, spanOf } from "../store/bans.ts";
import type { Shell } from "../shell.ts";
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";
import type { BanStatus } from "../../peer/wire/invitations.ts";
import { problem, shown, unauthorized } from "./answers.ts";
import type { Door } from "./door.ts";

const MINUTE_MS = 60_000;

export interface BanishOptions {
  shell: Shell;
  door: Door;
  /** Whose token the request has, as the log calls them; null = no organizer's. */
  who(request: Request): string | null;
}

/** What an order to put a peer out says beside the peer; all of it from outside but `by`. */
export interface Banish {
  reason?: unknown;
  /** It may come back by itself, as one that was only slow. */
  again?: unknown;
  /** Keeps it out for so long; `ban`: without end. */
  minutes?: unknown;
  ban?: unknown;
  by: string;
}

/** Puts the peer out; a refusal, or null once that is done. With a time, other tabs of the same browser go too. */
export function evict({ shell, door }: BanishOptions, peer: string, how: Banish): Response | null {
  const { minutes, ban = false, by } = how;
  const reason = typeof how.reason === "string" ? how.reason.trim().slice(0, REASON_CHARS_MAX) : "";
  if (typeof ban !== "boolean") return problem(400, "usage", `ban is ${shown(ban)}; use true or false`);
  if (minutes !== undefined && !(typeof minutes === "number" && minutes > 0 && minutes <= MINUTES_MAX)) {
    return problem(400, "usage", `minutes is ${shown(minutes)}; use a number up to ${MINUTES_MAX}`);
  }
  if (!ban && minutes === undefined) {
    const why = reason === "" ? "" : `: ${reason}`;
    shell.feed({ type: "evict", peer, reason: `put out by ${by}${why}`, mayReturn: how.again === true });
    return null;
  }
  const until = ban ? null : Math.round(shell.now() + Number(minutes) * MINUTE_MS);
  return banish({ shell, door }, peer, { reason, until, by });
}

function banish(
  { shell, door }: Pick<BanishOptions, "shell" | "door">,
  peer: string,
  how: { reason: string; until: number | null; by: string },
): Response | null {
  let kept: ReturnType<Door["ban"]>;
  try {
    kept = door.ban(peer, how);
  } catch (error) {
    if (!(error instanceof ShoalError)) throw error;
    return problem(409, error.code, `${messageOf(error)} (at most ${BANS_MAX})`);
  }
  if (kept === null) {
    const way = "put it out without a time, and close the public link or withdraw its invitation";
    return problem(409, "usage", `${peer} would not be known again: it is of an older version; ${way}`);
  }
  const span = how.until === null ? "for good" : `for ${spanOf(how.until - shell.now())}`;
  const why = how.reason === "" ? "" : `: ${how.reason}`;
  for (const id of kept.peers) {
    shell.feed({ type: "evict", peer: id, reason: `put out ${span} by ${how.by}${why}` });
  }
  return null;
}

export function addBanRoutes(app: Hono, options: BanishOptions): void {
  const { door, shell, who } = options;
  app.get("/api/bans", (c) => who(c.req.raw) === null ? unauthorized() : c.json(listed(door)));
  app.delete("/api/bans/:id", (c) => {
    const by = who(c.req.raw);
    if (by === null) return unauthorized();
    const id = c.req.param("id");
    const ban = door.bans.all.find((it) => it.id === id);
    if (ban === undefined || !door.bans.lift(id)) {
      return problem(404, "usage", `there is no ban ${shown(id)}`);
    }
    shell.feed({ type: "noted", text: `${ban.peer} may come in again (ordered by ${by})` });
    return c.json(listed(door));
  });
}

/** Marks stay here: whoever knows one could pass for that computer. */
function listed({ bans }: Door): BanStatus[] {
  return bans.all.map(({ mark: _, ...ban }) => ban);
}
