// The coordinator's JSON interface as the pages use it. Not a cache and not a poller.
// Every failure leaves as a ShoalError with the coordinator's code, or "offline" when no answer came at all.
import { type ErrorCode, messageOf, ShoalError } from "../peer/wire/errors.ts";
import type { BanStatus, Invitations, OrganizerList } from "../peer/wire/invitations.ts";
import type { Invite, ReplanPreview, RunStatus, StepTrace } from "../peer/wire/status.ts";

/** A coordinator that takes longer is as good as offline for a page that polls every second. */
const ANSWER_TIMEOUT_MS = 8000;

export type ControlAction = "pause" | "resume" | "stop";

/** The calls of one page, all with the token of its address. */
export class Api {
  readonly #token: string;
  readonly #base: string;

  /** @param base where the run's addresses begin, without a slash at the end */
  constructor(token: string, base: string) {
    this.#token = token;
    this.#base = base;
  }

  async invite(): Promise<Invite> {
    return await (await this.#call("/api/invite")).json() as Invite;
  }

  async status(): Promise<RunStatus> {
    return await (await this.#call("/api/status")).json() as RunStatus;
  }

  /** Of the newest step of which all is known; null before the first. */
  async trace(): Promise<StepTrace | null> {
    return await (await this.#call("/api/trace")).json() as StepTrace | null;
  }

  async control(action: ControlAction): Promise<void> {
    await this.#post("/api/control", { action });
  }

  async stopAt(step: number): Promise<void> {
    await this.#post("/api/control", { action: "stop", step });
  }

  /** `reason` is told to the peer's owner; empty: none. `stay`: for how long it is kept out, if at all. */
  async evict(peer: string, reason = "", stay: { minutes?: number; ban?: boolean } = {}): Promise<void> {
    await this.#post("/api/evict", { peer, ...(reason === "" ? {} : { reason }), ...stay });
  }

  async bans(): Promise<BanStatus[]> {
    return await (await this.#call("/api/bans")).json() as BanStatus[];
  }

  async lift(ban: string): Promise<void> {
    await this.#call(`/api/bans/${encodeURIComponent(ban)}`, { method: "DELETE" });
  }

  async organizers(): Promise<OrganizerList> {
    return await (await this.#call("/api/organizers")).json() as OrganizerList;
  }

  async nameOrganizer(name: string): Promise<void> {
    await this.#post("/api/organizers", { name });
  }

  async withdrawOrganizer(id: string): Promise<void> {
    await this.#call(`/api/organizers/${encodeURIComponent(id)}`, { method: "DELETE" });
  }

  /** `stage` is counted from 1; null: it may compute any again. */
  async pin(peer: string, stage: number | null): Promise<void> {
    await this.#post("/api/pin", { peer, stage });
  }

  async drain(peer: string): Promise<void> {
    await this.#post("/api/drain", { peer });
  }

  /** What the planner would do now; with `apply` it is done at the next boundary. */
  async replan(apply: boolean): Promise<ReplanPreview> {
    return await (await this.#post("/api/replan", { apply })).json() as ReplanPreview;
  }

  async change(step: number, set: Record<string, unknown>): Promise<void> {
    await this.#post("/api/change", { step, set });
  }

  async rollBack(checkpoint: string): Promise<void> {
    await this.#post("/api/rollback", { checkpoint });
  }

  /** Reads every file of it on the coordinator; as long as that takes. */
  async verify(checkpoint: string): Promise<void> {
    await this.#call(`${checkpointPath(checkpoint)}/verify`, { method: "POST", signal: null });
  }

  async remove(checkpoint: string): Promise<void> {
    await this.#call(checkpointPath(checkpoint), { method: "DELETE" });
  }

  async invitations(): Promise<Invitations> {
    return await (await this.#call("/api/invitations")).json() as Invitations;
  }

  async makeInvitation(what: { seats: number; hours: number; note: string }): Promise<void> {
    await this.#post("/api/invitations", what);
  }

  async withdraw(id: string): Promise<void> {
    await this.#call(`/api/invitations/${encodeURIComponent(id)}`, { method: "DELETE" });
  }

  async openPublic(open: boolean): Promise<void> {
    await this.#post("/api/public", { open });
  }

  /** Whether whoever may join may write text. */
  async openText(open: boolean): Promise<void> {
    await this.#post("/api/public_text", { open });
  }

  /** The whole file; checkpoints are as large as the model, so no timeout applies. */
  async checkpointFile(name: string, file: string): Promise<Blob> {
    const path = `${checkpointPath(name)}/${encodeURIComponent(file)}`;
    return await (await this.#call(path, { signal: null })).blob();
  }

  /** A checkpoint for another program, under the name that the coordinator gives it; a folder comes as a tar. */
  async exported(checkpoint: string, format: string, dtype: string): Promise<{ blob: Blob; name: string }> {
    const path = `${checkpointPath(checkpoint)}/export/${format}?dtype=${dtype}`;
    const response = await this.#call(path, { signal: null });
    const [, name] = /filename="([^"]+)"/.exec(response.headers.get("content-disposition") ?? "") ?? [];
    return { blob: await response.blob(), name: name ?? `${checkpoint}-${format}` };
  }

  async #post(path: string, body: unknown): Promise<Response> {
    return await this.#call(path, {
      method: "POST",
      body: JSON.stringify(body),
      headers: { "content-type": "application/json" },
    });
  }

  #call(path: string, init: RequestInit = {}): Promise<Response> {
    return ask(this.#base + path, this.#token, init);
  }
}

/** @param token empty: none is shown @throws {ShoalError} with the coordinator's code, or "offline" */
export async function ask(url: string, token: string, init: RequestInit = {}): Promise<Response> {
  const headers = token === "" ? init.headers ?? {} : { ...init.headers, authorization: `Bearer ${token}` };
  const signal = init.signal === undefined ? AbortSignal.timeout(ANSWER_TIMEOUT_MS) : init.signal;
  let response: Response;
  try {
    response = await fetch(url, { ...init, headers, signal, cache: "no-store" });
  } catch (cause) {
    throw new ShoalError("offline", `no answer from ${location.host} (${messageOf(cause)})`, { cause });
  }
  if (!response.ok) throw await refusalOf(response);
  return response;
}

function checkpointPath(name: string): string {
  return `/api/checkpoints/${encodeURIComponent(name)}`;
}

/** The coordinator answers errors as {"code", "message"}; anything else came from something in between. */
async function refusalOf(response: Response): Promise<ShoalError> {
  const body: unknown = await response.json().catch(() => null);
  if (isRefusal(body)) return new ShoalError(body.code as ErrorCode, body.message);
  if (response.status === 401 || response.status === 403) {
    return new ShoalError("bad-token", "The coordinator does not accept the token in this link.");
  }
  return new ShoalError("offline", `The answer was status ${response.status}, not the coordinator's.`);
}

function isRefusal(body: unknown): body is { code: string; message: string } {
  return typeof body === "object" && body !== null && "code" in body && "message" in body &&
    typeof body.code === "string" && typeof body.message === "string";
}

/** What a caught value says, as the view models take it. */
export function refusalFrom(error: unknown): { code: string; message: string } {
  const code = typeof error === "object" && error !== null && "code" in error
    ? String(error.code)
    : "internal";
  return { code, message: messageOf(error) };
}

/** Where the addresses of the page's run begin: the folder that the page lies in, without a slash at the end. */
export function baseOf(href: string): string {
  return new URL(".", href).href.replace(/[/]$/, "");
}

/** The token after the # sign; empty if there is none. */
export function tokenOf(hash: string): string {
  return hash.replace(/^#/, "").trim();
}
