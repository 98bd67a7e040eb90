// `shoal generate --url`: asks a coordinator for a text that the peers of its run write, and passes it on as it comes. It computes
// nothing and reads no file; the link's token is sent to the link's own host alone.
import { type ErrorCode, messageOf, ShoalError } from "../../peer/wire/errors.ts";
import type { TextRequest } from "../http/text_protocol.ts";
import type { GenerateOutput } from "./generate.ts";

/** A line longer than this is not of a coordinator: a piece of text is a few tokens. */
const EVENT_CHARS_MAX = 1 << 20;

type Request = TextRequest & { prompt: string };

/** What is looked at of an event. */
interface Event {
  choices?: { text?: string; finish_reason?: string | null }[];
  shoal?: { steps: number[]; restarts: number };
  usage?: { prompt_tokens: number; completion_tokens: number };
  error?: { code?: string | null; message?: string };
}

interface LiveText {
  text: string;
  finish_reason: string;
  steps: number[];
  restarts: number;
  prompt_tokens: number;
  tokens: number;
}

/**
 * @param link the admin link, or the join link where everybody may write
 * @throws {ShoalError} usage for a link that is none, offline, or what the coordinator says
 */
export async function generateLive(
  link: string,
  { request, json }: { request: Request; json: boolean },
  output: GenerateOutput,
): Promise<void> {
  const begun = performance.now();
  const response = await ask(link, request);
  if (!json) output.data(request.prompt);
  const written = await readText(response, (piece) => json || output.data(piece));
  const seconds = (performance.now() - begun) / 1000;
  const { prompt } = request;
  if (json) return output.data(`${JSON.stringify({ prompt, ...written, seconds })}\n`);
  output.data("\n");
  const { tokens, steps, restarts } = written;
  const rate = (tokens / seconds).toFixed(1);
  const again = restarts === 0 ? "" : `; begun anew ${restarts} ${restarts === 1 ? "time" : "times"}`;
  const whose = `by the peers, with the weights of step ${steps.join(", then ")}`;
  output.note(`${tokens} tokens in ${seconds.toFixed(1)} s (${rate} per second) ${whose}${again}`);
}

async function ask(link: string, request: Request): Promise<Response> {
  const { base, token } = placeOf(link);
  const { prompt, count, temperature, topK, topP, seed, stop, ignoreEos = false } = request;
  const draws = { temperature, top_k: topK, top_p: topP, seed };
  const ends = { ...(stop.length > 0 ? { stop } : {}), ...(ignoreEos ? { ignore_eos: true } : {}) };
  const wish = { prompt, max_tokens: count, ...draws, ...ends };
  const how = { live: true, stream: true, stream_options: { include_usage: true } };
  let response: Response;
  try {
    response = await fetch(`${base}/v1/completions`, {
      method: "POST",
      headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
      body: JSON.stringify({ ...wish, ...how }),
    });
  } catch (cause) {
    const reason = `no answer from ${new URL(base).host}: ${messageOf(cause)}; check the link`;
    throw new ShoalError("offline", reason, { cause });
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => null) as Event | null;
  throw errorOf(body?.error ?? { code: "offline", message: `the answer was status ${response.status}` });
}

/** Where the run's addresses begin, without a slash at the end, and the token. */
function placeOf(link: string): { base: string; token: string } {
  const url = URL.canParse(link) ? new URL(link) : null;
  if (url === null || !/^https?:$/.test(url.protocol) || url.hash.length < 2) {
    throw new ShoalError("usage", `--url is "${link}"; use the admin link, with what follows its #`);
  }
  return {
    base: url.origin + url.pathname.replace(/(admin)?\/?$/, "").replace(/\/$/, ""),
    token: url.hash.slice(1),
  };
}

async function readText(response: Response, take: (piece: string) => void): Promise<LiveText> {
  const nothing = { steps: [], restarts: 0, prompt_tokens: 0, tokens: 0 };
  const result: LiveText = { text: "", finish_reason: "length", ...nothing };
  for await (const { error, choices, shoal, usage } of eventsOf(response)) {
    if (error !== undefined) throw errorOf(error);
    const [choice] = choices ?? [];
    if (choice?.text) {
      result.text += choice.text;
      take(choice.text);
    }
    result.finish_reason = choice?.finish_reason ?? result.finish_reason;
    if (shoal !== undefined) [result.steps, result.restarts] = [shoal.steps, shoal.restarts];
    if (usage !== undefined) {
      [result.prompt_tokens, result.tokens] = [usage.prompt_tokens, usage.completion_tokens];
    }
  }
  return result;
}

/** Server-sent events, each with one line of data, up to [DONE]. @throws {ShoalError} offline if they end before it */
async function* eventsOf(response: Response): AsyncGenerator<Event> {
  let rest = "";
  try {
    for await (const piece of response.body!.pipeThrough(new TextDecoderStream())) {
      rest += piece;
      if (rest.length > EVENT_CHARS_MAX) throw new ShoalError("offline", "the answer is not a coordinator's");
      const events = rest.split("\n\n");
      rest = events.pop()!;
      for (const event of events) {
        const data = event.replace(/^data: /, "");
        if (data === "[DONE]") return;
        yield JSON.parse(data) as Event;
      }
    }
  } catch (error) {
    throw error instanceof ShoalError ? error : cutOff(messageOf(error));
  }
  throw cutOff("it ended before the text did");
}

function cutOff(why: string): ShoalError {
  return new ShoalError("offline", `the coordinator's answer was cut off (${why}); ask again`);
}

function errorOf({ code, message = "" }: NonNullable<Event["error"]>): ShoalError {
  return new ShoalError((code ?? "usage") as ErrorCode, message);
}
