// Invitations over HTTP, for the organizer: list, make, withdraw, and open or close the public link. http/door.ts decides who
// comes in; whoever is in with an invitation that is withdrawn is put out.
import type { Hono } from "hono";
import type { Shell } from "../shell.ts";
import { HOURS_MAX, type Invitation, NOTE_CHARS_MAX, SEATS_MAX } from "../store/invites.ts";
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";
import type { Invitations, InvitationStatus } from "../../peer/wire/invitations.ts";
import { bodyOf, problem, shown, unauthorized } from "./answers.ts";
import type { Door } from "./door.ts";

const HOUR_MS = 3_600_000;

export interface InvitationOptions {
  shell: Shell;
  door: Door;
  /** Whose token the request has, as the log calls them; null = no organizer's. */
  who(request: Request): string | null;
  /** The join link with another token. */
  linkOf(token: string): string;
  /** Whether whoever may join may write text now; absent: nobody can. */
  textPublic?(): boolean;
}

export function addInvitationRoutes(app: Hono, options: InvitationOptions): void {
  const { door, who } = options;
  app.get("/api/invitations", (c) => {
    return who(c.req.raw) === null ? unauthorized() : c.json(listed(options));
  });
  app.post("/api/invitations", async (c) => {
    const by = who(c.req.raw);
    return by === null ? unauthorized() : make(options, await bodyOf(c.req.raw), by);
  });
  app.delete("/api/invitations/:id", (c) => {
    const by = who(c.req.raw);
    return by === null ? unauthorized() : withdraw(options, c.req.param("id"), by);
  });
  app.post("/api/public", async (c) => {
    const by = who(c.req.raw);
    if (by === null) return unauthorized();
    const { open } = await bodyOf(c.req.raw);
    if (typeof open !== "boolean") return problem(400, "usage", `open is ${shown(open)}; use true or false`);
    door.invites.setOpen(open);
    const now = open ? "the public link is open" : "the public link is closed: by invitation only";
    options.shell.feed({ type: "noted", text: `${now} (ordered by ${by})` });
    return c.json(listed(options));
  });
  addTextSwitch(app, options);
}

function addTextSwitch(app: Hono, options: InvitationOptions): void {
  const { door, shell, who, textPublic } = options;
  app.post("/api/public_text", async (c) => {
    const by = who(c.req.raw);
    if (by === null) return unauthorized();
    const { open } = await bodyOf(c.req.raw);
    if (typeof open !== "boolean") return problem(400, "usage", `open is ${shown(open)}; use true or false`);
    if (textPublic === undefined) return problem(409, "usage", "nobody writes text at this coordinator");
    door.invites.setText(open);
    const now = open ? "whoever may join may write text, too" : "only organizers may write text";
    shell.feed({ type: "noted", text: `${now} (ordered by ${by})` });
    return c.json(listed(options));
  });
}

function make(options: InvitationOptions, body: Record<string, unknown>, by: string): Response {
  const { seats = 1, hours = 24, note = "" } = body;
  if (!isWithin(seats, SEATS_MAX) || !Number.isInteger(seats)) {
    return problem(400, "usage", `seats is ${shown(seats)}; use a whole number from 1 to ${SEATS_MAX}`);
  }
  if (!isWithin(hours, HOURS_MAX)) {
    return problem(400, "usage", `hours is ${shown(hours)}; use a number up to ${HOURS_MAX}`);
  }
  if (typeof note !== "string" || note.length > NOTE_CHARS_MAX) {
    return problem(400, "usage", `the note is a text of at most ${NOTE_CHARS_MAX} characters`);
  }
  const expiresAt = Math.round(options.shell.now() + hours * HOUR_MS);
  try {
    const invite = options.door.invites.add({ note, seats, expiresAt });
    const computers = seats === 1 ? "one computer" : `${seats} computers`;
    options.shell.feed({
      type: "noted",
      text: `invitation ${invite.id} made for ${computers} (ordered by ${by})`,
    });
    return Response.json(statusOf(options, invite));
  } catch (error) {
    if (!(error instanceof ShoalError)) throw error;
    return problem(409, error.code, messageOf(error));
  }
}

function withdraw(options: InvitationOptions, id: string, by: string): Response {
  const { shell, door } = options;
  const peers = door.seated(id);
  if (!door.invites.remove(id)) return problem(404, "usage", `there is no invitation ${shown(id)}`);
  shell.feed({ type: "noted", text: `invitation ${id} withdrawn (ordered by ${by})` });
  for (const peer of peers) shell.feed({ type: "evict", peer, reason: "its invitation was withdrawn" });
  return Response.json(listed(options));
}

function isWithin(value: unknown, most: number): value is number {
  return typeof value === "number" && value > 0 && value <= most;
}

function listed(options: InvitationOptions): Invitations {
  const { door: { invites }, textPublic } = options;
  const text = textPublic === undefined ? {} : { text: textPublic() };
  return { open: invites.open, ...text, invitations: invites.all.map((invite) => statusOf(options, invite)) };
}

function statusOf({ door, linkOf, shell }: InvitationOptions, invite: Invitation): InvitationStatus {
  const { id, note, seats, expiresAt, token } = invite;
  const ended = expiresAt <= shell.now();
  return { id, note, seats, expiresAt, ended, link: linkOf(token), peers: door.seated(id) };
}
