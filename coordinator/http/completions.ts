// OpenAI's completions API over a checkpoint, or over the peers of a live run: POST /v1/completions, streamed or not, and GET /v1/models. Requests are bounded
// before they are read, wait in a bounded queue (text_service.ts), and fail in OpenAI's shape, so that its clients understand.
import type { Context, Hono } from "hono";
import { ShoalError } from "../../peer/wire/errors.ts";
import { answerStreamed, answerWhole, type Writers } from "./completions_answer.ts";
import { problemOf, refusal } from "./completions_problem.ts";
import { isProblem, liveProblem, readCompletion } from "./completions_request.ts";
import type { TextService } from "./text_service.ts";

/** A prompt longer than this has no window that holds it. */
const BODY_BYTES_MAX = 1 << 20;
/** How often a request looks for a newer checkpoint when the one it chose is gone; each was the newest when it was chosen. */
const AGAIN_MAX = 5;
/** When to ask again for the first checkpoint. */
const RETRY_NO_CHECKPOINT_S = 30;

export interface CompletionsOptions {
  service: TextService;
  /** Whether the request carries a token that may use the model. */
  authorised(request: Request): boolean;
  /** Name of the only model. */
  model: string;
  owner: string;
  /** Folder of the checkpoint that writes now; null if there is none yet. */
  checkpoint(): Promise<string | null>;
  /** The peers of a live run, which write with the weights of now; absent: there is no run. */
  live?: LiveWriters;
}

export interface LiveWriters extends Writers {
  /** There are peers that have a model. */
  ready(): boolean;
}

/** Adds the routes under /v1. */
export function addCompletionRoutes(app: Hono, options: CompletionsOptions): void {
  const begun = seconds();
  const described = { id: options.model, object: "model", created: begun, owned_by: options.owner };
  app.get("/v1/models", async (c) => {
    if (!options.authorised(c.req.raw)) return wrongKey();
    const kept = await options.checkpoint() === null ? [] : [described];
    const live = options.live?.ready() === true ? [{ ...described, id: liveName(options) }] : [];
    return c.json({ object: "list", data: [...kept, ...live] });
  });
  app.get("/v1/models/:model", (c) => {
    if (!options.authorised(c.req.raw)) return wrongKey();
    const model = c.req.param("model");
    const known = model === options.model || (model === liveName(options) && options.live !== undefined);
    return known ? c.json({ ...described, id: model }) : noModel(model, options);
  });
  app.post("/v1/completions", async (c) => {
    if (!options.authorised(c.req.raw)) return wrongKey();
    try {
      return await complete(c, options);
    } catch (error) {
      return failure(error);
    }
  });
}

async function complete(c: Context, options: CompletionsOptions): Promise<Response> {
  const body = await readBody(c.req.raw);
  if (body === null) {
    const message = `the body is longer than ${BODY_BYTES_MAX} bytes; send a shorter prompt`;
    return refusal(413, { message, code: "request_too_large" });
  }
  const asked = readCompletion(parseJson(body), randomSeed());
  if (isProblem(asked)) return refusal(400, asked);
  const live = asked.live || asked.model === liveName(options);
  if (asked.model !== null && asked.model !== options.model && !live) return noModel(asked.model, options);
  const beyond = live ? liveProblem(asked) : null;
  if (beyond !== null) return refusal(400, beyond);
  const about = {
    id: `cmpl-${crypto.randomUUID().replaceAll("-", "")}`,
    ...{ object: "text_completion", created: seconds(), model: live ? liveName(options) : options.model },
  };
  const answer = asked.stream ? answerStreamed : answerWhole;
  if (live) return options.live === undefined ? notLive() : await answer(options.live, { asked, about });
  return await withNewest(options, (path) => {
    const write: Writers["write"] = (order) => options.service.write({ ...order, path });
    return answer({ write, lanes: 1 }, { asked, about });
  });
}

/** A quick run may have removed a checkpoint before it was read: then the newest one by now is taken. */
async function withNewest(
  options: CompletionsOptions,
  answer: (path: string) => Promise<Response>,
): Promise<Response> {
  for (let again = 0;; again++) {
    const path = await options.checkpoint();
    if (path === null) return noCheckpoint();
    try {
      return await answer(path);
    } catch (error) {
      const unread = error instanceof ShoalError && error.code === "bad-checkpoint";
      if (!unread || again === AGAIN_MAX || await options.checkpoint() === path) throw error;
    }
  }
}

/** The body as text; null if it is too long, whatever length it declares. */
async function readBody(request: Request): Promise<string | null> {
  const pieces: Uint8Array[] = [];
  let length = 0;
  for await (const piece of request.body ?? []) {
    length += piece.length;
    if (length > BODY_BYTES_MAX) return null;
    pieces.push(piece);
  }
  return await new Blob(pieces as Uint8Array<ArrayBuffer>[]).text();
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function seconds(): number {
  return Math.floor(Date.now() / 1000);
}

function randomSeed(): number {
  return crypto.getRandomValues(new Uint32Array(1))[0]!;
}

function wrongKey(): Response {
  const message =
    'the API key is missing or wrong; send the token of the link as "Authorization: Bearer TOKEN"';
  return refusal(401, { message, code: "invalid_api_key" });
}

function noModel(model: string, options: CompletionsOptions): Response {
  const message = `there is no model ${JSON.stringify(model.slice(0, 100))}; use "${options.model}"`;
  return refusal(404, { message, param: "model", code: "model_not_found" });
}

function notLive(): Response {
  const message = "this server has a checkpoint and no peers; leave out live";
  return refusal(400, { message, param: "live" });
}

/** The model as the run's peers have it now. */
function liveName({ model }: CompletionsOptions): string {
  return `${model}:live`;
}

function noCheckpoint(): Response {
  const message = "the run has no checkpoint yet; try again after its first";
  const headers = { "retry-after": String(RETRY_NO_CHECKPOINT_S) };
  return refusal(503, { message, type: "server_error", code: "no_checkpoint" }, headers);
}

function failure(error: unknown): Response {
  const { status, error: refused, headers } = problemOf(error);
  return refusal(status, refused, headers);
}
