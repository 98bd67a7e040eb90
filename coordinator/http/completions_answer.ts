// Texts of one completion request -> the answer, as one JSON object or as server-sent events. It knows neither who writes nor what
// may be asked. What must stay true: once a reader has gone away, every text of its request ends.
import { ShoalError } from "../../peer/wire/errors.ts";
import type { Completion } from "./completions_request.ts";
import { problemOf } from "./completions_problem.ts";
import type { TextEnd, TextRequest } from "./text_protocol.ts";
import { logprobsOf, type TokenChance } from "./token_chances.ts";

/** How one text came to its end. */
export interface TextResult {
  /** Of the weights that wrote last. */
  step: number;
  end: TextEnd;
  /** Written by the peers of a live run: the steps of their weights, and how often it had to begin anew. */
  live?: { steps: number[]; restarts: number };
}

export interface TextOrder {
  request: TextRequest;
  onText(text: string, chances?: readonly TokenChance[]): void;
  /** Ends the text early; the promise then rejects with the signal's reason. */
  signal: AbortSignal;
  /** It is a further text of a request that has been let in: it waits however many do. */
  patient: boolean;
}

export interface Writers {
  write(order: TextOrder): Promise<TextResult>;
  /** Texts of one request that are asked for at a time. */
  lanes: number;
}

interface Job {
  asked: Completion;
  /** What every answer and every piece of one begins with. */
  about: Record<string, unknown>;
}

interface Writing {
  /** By index, once all texts are complete. */
  results: Promise<TextResult[]>;
  /** Resolves with the first text; rejects like `results` if that fails before. What goes wrong until then has its own status. */
  begun: Promise<void>;
  /** Ends the texts: their reader went away. */
  abandon(): void;
  abandoned(): boolean;
}

interface Listener {
  onText(index: number, text: string, chances?: readonly TokenChance[]): void;
  onEnd(index: number, result: TextResult): void;
}

/**
 * A request's own signal also aborts when its answer is done, so a reader that went away shows only in the answer's stream: that is
 * why a whole answer is a stream, too.
 */
function startWriting(writers: Writers, { requests }: Completion, listener: Listener): Writing {
  const gone = new AbortController();
  let first: () => void = () => {};
  const heard = new Promise<void>((resolve) => first = resolve);
  const write = async (index: number) => {
    const onText: TextOrder["onText"] = (text, chances) => {
      listener.onText(index, text, chances);
      first();
    };
    const order = { request: requests[index]!, signal: gone.signal, patient: index >= writers.lanes };
    const result = await writers.write({ ...order, onText });
    listener.onEnd(index, result);
    return result;
  };
  const results = inLanes(requests.length, writers.lanes, write);
  // One that fails takes the others with it: half an answer is none.
  results.catch((error) => gone.abort(error));
  return {
    results,
    begun: Promise.race([heard, results.then(() => {})]),
    abandon: () => gone.abort(new ShoalError("usage", "the reader went away")),
    abandoned: () => gone.signal.aborted,
  };
}

/** Does `count` things, so many at a time, in order. */
async function inLanes<T>(count: number, lanes: number, run: (index: number) => Promise<T>): Promise<T[]> {
  const results: T[] = [];
  let next = 0;
  const lane = async () => {
    while (next < count) {
      const index = next++;
      results[index] = await run(index);
    }
  };
  await Promise.all(Array.from({ length: Math.min(lanes, count) }, lane));
  return results;
}

/** One JSON object, once all texts are complete. */
export async function answerWhole(writers: Writers, { asked, about }: Job): Promise<Response> {
  const texts = asked.requests.map(() => "");
  const likely = asked.requests.map((): TokenChance[] => []);
  const logprobs = (index: number) => asked.logprobs === null ? null : logprobsOf(likely[index]!);
  let left = false;
  const writing = startWriting(writers, asked, {
    onText: (index, text, chances = []) => {
      texts[index] += text;
      likely[index]!.push(...chances);
    },
    onEnd: () => {},
  });
  await writing.begun;
  const body = new ReadableStream<Uint8Array<ArrayBuffer>>({
    start(controller) {
      const answered = writing.results.then((results) => {
        const choices = results.map(({ end }, index) => ({
          ...choiceOf(index, texts[index]!, end.reason),
          logprobs: logprobs(index),
        }));
        return { ...about, ...madeBy(results), choices, usage: usageOf(results, asked.n) };
      }, (error) => ({ error: problemOf(error).error }));
      void answered.then((answer) => {
        if (left) return;
        controller.enqueue(new TextEncoder().encode(JSON.stringify(answer)));
        controller.close();
      });
    },
    cancel: () => {
      left = true;
      writing.abandon();
    },
  });
  return new Response(body, { headers: { "content-type": "application/json" } });
}

/**
 * Server-sent events: one per piece of text, one with the reason of each text's end, the counts if they are wanted, and [DONE].
 */
export async function answerStreamed(writers: Writers, { asked, about }: Job): Promise<Response> {
  let sink: ReadableStreamDefaultController<Uint8Array<ArrayBuffer>> | null = null;
  let left = false;
  const tell = (data: unknown) => {
    const line = typeof data === "string" ? data : JSON.stringify(data);
    if (!left) sink?.enqueue(new TextEncoder().encode(`data: ${line}\n\n`));
  };
  const body = new ReadableStream<Uint8Array<ArrayBuffer>>({
    start: (controller) => void (sink = controller),
    cancel: () => {
      left = true;
      writing.abandon();
    },
  });
  const writing = startWriting(writers, asked, {
    onText: (index, text, chances = []) => {
      const logprobs = asked.logprobs === null ? null : logprobsOf(chances);
      tell({ ...about, choices: [{ ...choiceOf(index, text, null), logprobs }] });
    },
    onEnd: (index, result) =>
      tell({ ...about, ...madeBy([result]), choices: [choiceOf(index, "", result.end.reason)] }),
  });
  await writing.begun;
  void writing.results.then((results) => {
    const usage = usageOf(results, asked.n);
    if (asked.includeUsage) tell({ ...about, ...madeBy(results), choices: [], usage });
    tell("[DONE]");
  }, (error) => tell({ error: problemOf(error).error })).then(() => {
    if (!left) sink?.close();
  });
  const headers = { "content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache" };
  return new Response(body, { headers });
}

function choiceOf(index: number, text: string, finish_reason: TextEnd["reason"] | null) {
  return { text, index, logprobs: null, finish_reason };
}

/** Tells which weights wrote: texts of one seed are equal only within a step. */
function madeBy(results: readonly TextResult[]) {
  const live = results.flatMap((result) => result.live ?? []);
  const steps = [...new Set(results.flatMap((result) => result.live?.steps ?? [result.step]))];
  const restarts = live.reduce((sum, it) => sum + it.restarts, 0);
  return {
    system_fingerprint: `step-${steps.sort((a, b) => a - b).join("-")}`,
    ...(live.length === 0 ? {} : { shoal: { live: true, steps, restarts } }),
  };
}

/** A prompt counts once, however many texts go on from it. */
function usageOf(results: readonly TextResult[], n: number) {
  const prompt_tokens = results.reduce((sum, { end }, i) => i % n === 0 ? sum + end.promptTokens : sum, 0);
  const completion_tokens = results.reduce((sum, { end }) => sum + end.tokens, 0);
  return { prompt_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens };
}
