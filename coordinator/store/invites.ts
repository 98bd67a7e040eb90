// Private invitations to a run: tokens beside the public one, each for a number of computers and a time, kept in the run's
// folder so that they outlive the coordinator. Counts no computers (http/door.ts does). The file is for its owner's eyes only.
import { join } from "node:path";
import * as v from "valibot";
import { ShoalError } from "../../peer/wire/errors.ts";
import { randomToken } from "./access.ts";

/** Invitations of one run, spent ones included; a class of a few hundred has one each. */
export const INVITES_MAX = 500;
export const SEATS_MAX = 200;
/** A year: whoever wants no end has the public link. */
export const HOURS_MAX = 24 * 366;
export const NOTE_CHARS_MAX = 80;

const INVITES_NAME = "invites.json";
const OWNER_ONLY = 0o600;
const FILE_BYTES_MAX = 1 << 20;

const COUNT = v.pipe(v.number(), v.integer(), v.minValue(0), v.maxValue(Number.MAX_SAFE_INTEGER));
const INVITE = v.strictObject({
  id: v.pipe(v.string(), v.regex(/^i[0-9]{1,6}$/)),
  token: v.pipe(v.string(), v.regex(/^[A-Za-z0-9_-]{16,64}$/)),
  /** Whom it is for, in the organizer's words. */
  note: v.pipe(v.string(), v.maxLength(NOTE_CHARS_MAX)),
  /** Computers that may be in with it at a time. */
  seats: v.pipe(COUNT, v.minValue(1), v.maxValue(SEATS_MAX)),
  /** ms since 1970. */
  expiresAt: COUNT,
});
const FILE = v.strictObject({
  /** Whether the public link lets anybody in. */
  open: v.boolean(),
  /** Whether the public link and invitations let their holders write text; absent: as the run was made. */
  text: v.optional(v.boolean()),
  next: COUNT,
  invites: v.pipe(v.array(INVITE), v.maxLength(INVITES_MAX)),
});

export type Invitation = v.InferOutput<typeof INVITE>;
type Content = v.InferOutput<typeof FILE>;

export class Invites {
  readonly #path: string;
  #content: Content;

  /** @throws {ShoalError} storage-full if the folder has a file of invitations that cannot be read: they would be lost. */
  constructor(runDir: string) {
    this.#path = join(runDir, INVITES_NAME);
    this.#content = readContent(this.#path);
  }

  get open(): boolean {
    return this.#content.open;
  }

  /** Whether whoever may join may write text; null: nobody has said so since the run was made. */
  get text(): boolean | null {
    return this.#content.text ?? null;
  }

  get all(): readonly Invitation[] {
    return this.#content.invites;
  }

  /** @throws whatever the disk says; nothing has changed then. */
  setOpen(open: boolean): void {
    this.#write({ ...this.#content, open });
  }

  /** @throws whatever the disk says; nothing has changed then. */
  setText(text: boolean): void {
    this.#write({ ...this.#content, text });
  }

  /** @throws {ShoalError} usage if there are too many. */
  add(what: Pick<Invitation, "note" | "seats" | "expiresAt">): Invitation {
    const { next, invites } = this.#content;
    if (invites.length >= INVITES_MAX) {
      throw new ShoalError("usage", `a run has at most ${INVITES_MAX} invitations; withdraw some first`);
    }
    const invite = { id: `i${next}`, token: randomToken(), ...what };
    this.#write({ ...this.#content, next: next + 1, invites: [...invites, invite] });
    return invite;
  }

  remove(id: string): boolean {
    const invites = this.#content.invites.filter((it) => it.id !== id);
    if (invites.length === this.#content.invites.length) return false;
    this.#write({ ...this.#content, invites });
    return true;
  }

  #write(content: Content): void {
    Deno.writeTextFileSync(`${this.#path}.new`, JSON.stringify(content), { mode: OWNER_ONLY });
    Deno.renameSync(`${this.#path}.new`, this.#path);
    this.#content = content;
  }
}

function readContent(path: string): Content {
  let text: string;
  try {
    if (Deno.statSync(path).size > FILE_BYTES_MAX) throw unreadable(path, "it is too long");
    text = Deno.readTextFileSync(path);
  } catch (error) {
    if (error instanceof Deno.errors.NotFound) return { open: true, next: 1, invites: [] };
    throw error;
  }
  let value: unknown = null;
  try {
    value = JSON.parse(text);
  } catch {
    // Refused below, as anything that is no list of invitations.
  }
  const parsed = v.safeParse(FILE, value);
  if (!parsed.success) throw unreadable(path, parsed.issues[0].message);
  return parsed.output;
}

/** Going on without them would open a door that the organizer had closed. */
function unreadable(path: string, reason: string): ShoalError {
  return new ShoalError(
    "bad-config",
    `${path} cannot be read: ${reason}; repair it, or remove it and invite again`,
  );
}
