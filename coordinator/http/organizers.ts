// Further organizers over HTTP: who they are, naming one, withdrawing one. Any organizer may read the names; only the first, whose
// link was printed at the start, sees the links and changes the list.
import type { Hono } from "hono";
import type { Shell } from "../shell.ts";
import { NAME_CHARS_MAX, type Organizer } from "../store/organizers.ts";
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";
import type { OrganizerList } from "../../peer/wire/invitations.ts";
import { bodyOf, problem, shown, unauthorized } from "./answers.ts";
import type { Door } from "./door.ts";

/** What the log calls whoever has the link that was printed at the start. */
export const FIRST = "the organizer";

export interface OrganizerOptions {
  shell: Shell;
  door: Door;
  who(request: Request): string | null;
  /** Whether the request has the first organizer's token. */
  isFirst(request: Request): boolean;
  /** The admin link with another token. */
  linkOf(token: string): string;
}

export function addOrganizerRoutes(app: Hono, options: OrganizerOptions): void {
  app.get("/api/organizers", (c) => {
    return options.who(c.req.raw) === null ? unauthorized() : c.json(listed(options, c.req.raw));
  });
  app.post("/api/organizers", async (c) => {
    return refusalFor(options, c.req.raw) ?? name(options, c.req.raw, (await bodyOf(c.req.raw))["name"]);
  });
  app.delete("/api/organizers/:id", (c) => {
    const refusal = refusalFor(options, c.req.raw);
    if (refusal !== null) return refusal;
    const gone = options.door.organizers.remove(c.req.param("id"));
    if (gone === null) return problem(404, "usage", `there is no organizer ${shown(c.req.param("id"))}`);
    options.shell.feed({
      type: "noted",
      text: `the admin link of ${gone.name} is withdrawn (ordered by ${FIRST})`,
    });
    return c.json(listed(options, c.req.raw));
  });
}

function refusalFor({ who, isFirst }: OrganizerOptions, request: Request): Response | null {
  if (who(request) === null) return unauthorized();
  if (isFirst(request)) return null;
  return problem(
    403,
    "bad-token",
    "only the link that was printed at the start names organizers; ask its owner",
  );
}

function name(options: OrganizerOptions, request: Request, given: unknown): Response {
  const { organizers } = options.door;
  const wanted = typeof given === "string" ? given.trim() : "";
  if (wanted === "" || wanted.length > NAME_CHARS_MAX || /\p{C}/u.test(wanted)) {
    return problem(
      400,
      "usage",
      `the name is ${shown(given)}; use 1 to ${NAME_CHARS_MAX} printable characters`,
    );
  }
  const taken = [FIRST, ...organizers.all.map((it) => it.name)].some((it) => same(it, wanted));
  if (taken) return problem(409, "usage", `there is an organizer ${shown(wanted)} already; use another name`);
  try {
    organizers.add(wanted);
  } catch (error) {
    if (!(error instanceof ShoalError)) throw error;
    return problem(409, error.code, messageOf(error));
  }
  options.shell.feed({ type: "noted", text: `${wanted} has an admin link (ordered by ${FIRST})` });
  return Response.json(listed(options, request));
}

/** Two that a reader of the log would take for one. */
function same(a: string, b: string): boolean {
  return a.normalize("NFKC").toLowerCase() === b.normalize("NFKC").toLowerCase();
}

function listed({ door, who, isFirst, linkOf }: OrganizerOptions, request: Request): OrganizerList {
  const first = isFirst(request);
  const about = ({ id, name, token }: Organizer) => ({ id, name, ...first ? { link: linkOf(token) } : {} });
  return { you: who(request) ?? "", first, organizers: door.organizers.all.map(about) };
}
