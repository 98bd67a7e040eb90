// The coordinator's completions as a page reads them: one request, pieces of text as they come, then how it ended. Not the form
// and not the page. Every failure leaves as a ShoalError, with the server's code; a stopped one with the signal's reason.
import { type ErrorCode, messageOf, ShoalError } from "../peer/wire/errors.ts";
import type { Wish } from "./view_model_generate.ts";

/** A line longer than this is not of this server: a piece of text is a few tokens. */
const EVENT_CHARS_MAX = 1 << 20;

export interface StreamEnd {
  reason: "stop" | "length";
  /** Of the checkpoint that wrote it; null if the server does not tell. */
  step: number | null;
  /** Of the weights that the run's peers wrote with, and how often they had to begin anew; null if a checkpoint wrote. */
  live: { steps: number[]; restarts: number } | null;
  tokens: number | null;
}

export interface StreamOptions {
  /** Where the run's addresses begin, without a slash at the end. */
  base: string;
  token: string;
  signal: AbortSignal;
  onText(text: string): void;
}

/** What is looked at of an event. */
interface Event {
  choices?: { text?: string; finish_reason?: string | null }[];
  system_fingerprint?: string;
  usage?: { completion_tokens?: number };
  shoal?: { steps: number[]; restarts: number };
  error?: { code?: string | null; message?: string };
}

/** Resolves with the end of the text. `seed` must be drawn by the caller, who shows it. */
export async function streamText(
  wish: Wish & { seed: number },
  { base, token, signal, onText }: StreamOptions,
): Promise<StreamEnd> {
  const response = await send(wish, { base, token, signal });
  const end: StreamEnd = { reason: "length", step: null, live: null, tokens: null };
  for await (const event of eventsOf(response, { base, signal })) {
    if (event.error !== undefined) throw errorOf(event.error);
    const [choice] = event.choices ?? [];
    if (choice?.text) onText(choice.text);
    if (choice?.finish_reason === "stop") end.reason = "stop";
    const [, step] = /^step-(\d+)$/.exec(event.system_fingerprint ?? "") ?? [];
    if (step !== undefined && event.shoal === undefined) end.step = Number(step);
    const { steps, restarts } = event.shoal ?? {};
    if (steps !== undefined && restarts !== undefined) end.live = { steps, restarts };
    end.tokens = event.usage?.completion_tokens ?? end.tokens;
  }
  return end;
}

async function send(
  { prompt, count, temperature, topK, topP, seed, live }: Wish & { seed: number },
  { base, token, signal }: Pick<StreamOptions, "base" | "token" | "signal">,
): Promise<Response> {
  const asked = {
    prompt,
    max_tokens: count,
    temperature,
    top_k: topK,
    top_p: topP,
    seed,
    ...(live ? { live } : {}),
  };
  let response: Response;
  try {
    response = await fetch(`${base}/v1/completions`, {
      method: "POST",
      headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
      body: JSON.stringify({ ...asked, stream: true, stream_options: { include_usage: true } }),
      ...{ signal, cache: "no-store" },
    });
  } catch (cause) {
    throw signal.aborted ? signal.reason : offline(base, cause);
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => null) as Event | null;
  throw errorOf(body?.error ?? { code: "offline", message: `The answer was status ${response.status}.` });
}

/** Server-sent events, each with one line of data, up to [DONE]. @throws {ShoalError} offline if they end before it */
async function* eventsOf(
  response: Response,
  { base, signal }: Pick<StreamOptions, "base" | "signal">,
): AsyncGenerator<Event> {
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) throw offline(base, "the answer ended in mid-text");
      rest += value;
      if (rest.length > EVENT_CHARS_MAX) throw offline(base, "the answer is not one of a coordinator");
      const events = rest.split("\n\n");
      rest = events.pop()!;
      for (const event of events) {
        const data = event.replace(/^data: /, "");
        if (data === "[DONE]") return;
        yield JSON.parse(data) as Event;
      }
    }
  } catch (error) {
    throw error instanceof ShoalError || signal.aborted ? error : offline(base, error);
  } finally {
    void reader.cancel().catch(() => {});
  }
}

function offline(base: string, cause: unknown): ShoalError {
  return new ShoalError("offline", `no answer from ${new URL(base).host} (${messageOf(cause)})`, { cause });
}

function errorOf({ code, message = "" }: NonNullable<Event["error"]>): ShoalError {
  return new ShoalError((code ?? "internal") as ErrorCode, message);
}
