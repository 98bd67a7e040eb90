// OpenAI's completions API over a checkpoint: POST /v1/completions, streamed or not, and GET /v1/models. Requests are bounded
// before they are read, wait in a bounded queue (text_service.ts), and fail in OpenAI's shape, so that its clients understand.
import type { Context, Hono } from "hono";
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";
import { type Completion, isProblem, readCompletion } from "./completions_request.ts";
import { BusyError, type TextResult, type TextService } from "./text_service.ts";

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
}

/** Adds the routes under /v1. */
export function addCompletionRoutes(app: Hono, options: CompletionsOptions): void {
  const begun = seconds();
  const described = { id: options.model, object: "model", created: begun, owned_by: options.owner };
  app.get("/v1/models", async (c) => {
    if (!options.authorised(c.req.raw)) return wrongKey();
    const data = await options.checkpoint() === null ? [] : [described];
    return c.json({ object: "list", data });
  });
  app.get("/v1/models/:model", (c) => {
    if (!options.authorised(c.req.raw)) return wrongKey();
    const model = c.req.param("model");
    return model === options.model ? c.json(described) : noModel(model, options);
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
  if (asked.model !== null && asked.model !== options.model) return noModel(asked.model, options);
  const about = {
    id: `cmpl-${crypto.randomUUID().replaceAll("-", "")}`,
    ...{ object: "text_completion", created: seconds(), model: options.model },
  };
  const answer = asked.stream ? streamed : whole;
  return await withNewest(options, (path) => answer(options.service, { asked, path, about }));
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

interface Job {
  asked: Completion;
  path: string;
  /** What every answer and every piece of one begins with. */
  about: Record<string, unknown>;
}

interface Writing {
  result: Promise<TextResult>;
  /** Resolves with the first text; rejects like `result` if it fails before. What goes wrong until then has its own status. */
  begun: Promise<void>;
  /** Ends the text: its reader went away. */
  abandon(): void;
  abandoned(): boolean;
}

/**
 * A request's own signal also aborts when its answer is done, so a reader that went away shows only in the answer's stream: that is
 * why a whole answer is a stream, too.
 */
function startWriting(service: TextService, { asked, path }: Job, onText: (text: string) => void): Writing {
  const gone = new AbortController();
  let first: () => void = () => {};
  const heard = new Promise<void>((resolve) => first = resolve);
  const result = service.write({
    ...{ path, request: asked.request, signal: gone.signal },
    onText: (text) => {
      onText(text);
      first();
    },
  });
  return {
    result,
    begun: Promise.race([heard, result.then(() => {})]),
    abandon: () => gone.abort(new ShoalError("usage", "the reader went away")),
    abandoned: () => gone.signal.aborted,
  };
}

/** One JSON object, once the text is complete. */
async function whole(service: TextService, job: Job): Promise<Response> {
  let text = job.asked.echo ? echoOf(job.asked) : "";
  const writing = startWriting(service, job, (piece) => text += piece);
  await writing.begun;
  const body = new ReadableStream<Uint8Array<ArrayBuffer>>({
    start(controller) {
      const answered = writing.result.then((result) => {
        const choice = { text, index: 0, logprobs: null, finish_reason: result.end.reason };
        return { ...job.about, ...fingerprint(result), choices: [choice], usage: usageOf(result) };
      }, (error) => ({ error: problemOf(error).error }));
      void answered.then((answer) => {
        if (writing.abandoned()) return;
        controller.enqueue(new TextEncoder().encode(JSON.stringify(answer)));
        controller.close();
      });
    },
    cancel: () => writing.abandon(),
  });
  return new Response(body, { headers: { "content-type": "application/json" } });
}

/** Server-sent events: one per piece of text, one with the reason of the end, the counts if they are wanted, and [DONE]. */
async function streamed(service: TextService, job: Job): Promise<Response> {
  const { asked, about } = job;
  let sink: ReadableStreamDefaultController<Uint8Array<ArrayBuffer>> | null = null;
  const tell = (data: unknown) => {
    const line = typeof data === "string" ? data : JSON.stringify(data);
    sink?.enqueue(new TextEncoder().encode(`data: ${line}\n\n`));
  };
  const piece = (text: string, finish_reason: string | null) =>
    tell({ ...about, choices: [{ text, index: 0, logprobs: null, finish_reason }] });
  const writing = startWriting(service, job, (text) => {
    if (!writing.abandoned()) piece(text, null);
  });
  const body = new ReadableStream<Uint8Array<ArrayBuffer>>({
    start: (controller) => void (sink = controller),
    cancel: () => writing.abandon(),
  });
  if (asked.echo) piece(echoOf(asked), null);
  await writing.begun;
  void writing.result.then((result) => {
    piece("", result.end.reason);
    if (asked.includeUsage) tell({ ...about, ...fingerprint(result), choices: [], usage: usageOf(result) });
    tell("[DONE]");
  }, (error) => {
    if (!writing.abandoned()) tell({ error: problemOf(error).error });
  }).then(() => {
    if (!writing.abandoned()) sink?.close();
  });
  const headers = { "content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache" };
  return new Response(body, { headers });
}

/** Tokens as a prompt are not turned into text again: whoever sent them has it. */
function echoOf({ request: { prompt } }: Completion): string {
  return typeof prompt === "string" ? prompt : "";
}

/** Tells which checkpoint wrote: texts of one seed are equal only within a step. */
function fingerprint({ step }: TextResult) {
  return { system_fingerprint: `step-${step}` };
}

function usageOf({ end: { promptTokens, tokens } }: TextResult) {
  return { prompt_tokens: promptTokens, completion_tokens: tokens, total_tokens: promptTokens + tokens };
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

interface Refusal {
  message: string;
  param?: string | null;
  type?: string;
  code?: string | null;
}

/** An error in OpenAI's shape: {error: {message, type, param, code}}. */
export function refusal(status: number, refused: Refusal, headers: Record<string, string> = {}): Response {
  const { message, type = "invalid_request_error", param = null, code = null } = refused;
  return Response.json({ error: { message, type, param, code } }, { status, headers });
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

function noCheckpoint(): Response {
  const message = "the run has no checkpoint yet; try again after its first";
  const headers = { "retry-after": String(RETRY_NO_CHECKPOINT_S) };
  return refusal(503, { message, type: "server_error", code: "no_checkpoint" }, headers);
}

function failure(error: unknown): Response {
  const { status, error: refused, headers } = problemOf(error);
  return refusal(status, refused, headers);
}

function problemOf(error: unknown): { status: number; error: Refusal; headers?: Record<string, string> } {
  const message = messageOf(error);
  if (error instanceof BusyError) {
    const refused = { message, type: "rate_limit_error", code: "rate_limit_exceeded" };
    return { status: 429, error: refused, headers: { "retry-after": String(error.retrySeconds) } };
  }
  const code = error instanceof ShoalError ? error.code : "internal";
  // What the prompt holds is the caller's; everything else is the server's.
  if (code === "usage" || code === "bad-corpus") {
    return { status: 400, error: { message, type: "invalid_request_error", param: null, code } };
  }
  const status = code === "offline" ? 503 : 500;
  return { status, error: { message, type: "server_error", param: null, code } };
}
