// The body of POST /v1/completions (OpenAI's API, "Create completion") -> what to write. Pure; it refuses by name what this
// server cannot do instead of ignoring it, and takes fields of that API that ask for nothing at their neutral value.
import type { TextRequest } from "./text_protocol.ts";

/** Tokens of one text; more would keep all others waiting. */
export const TOKENS_MAX = 8192;
/** OpenAI's default: a short answer. */
const TOKENS_DEFAULT = 16;
/** Texts to go on from in one request, and ways in which each is gone on with. */
const PROMPTS_MAX = 8;
const CHOICES_MAX = 4;
/** Tokens of all texts of one request together: they wait in line one after the other. */
const ALL_TOKENS_MAX = 4 * TOKENS_MAX;
/** Texts that end one; each is looked for in every piece. */
export const STOPS_MAX = 4;
const STOP_CHARS_MAX = 1000;

export interface Completion {
  /** The model that was asked for, if the request names one. */
  model: string | null;
  /** By the index of the choice: `n` for each prompt, with seeds that follow one another. */
  requests: TextRequest[];
  n: number;
  /** The peers of a live run write it, with the weights of now. */
  live: boolean;
  stream: boolean;
  /** With `stream`: a last piece holds the counts. */
  includeUsage: boolean;
  /** Likeliest tokens that are told of each place; null: nothing is. */
  logprobs: number | null;
}

/** A refusal in OpenAI's terms. */
export interface Problem {
  message: string;
  /** The field that is wrong, if it is one. */
  param: string | null;
}

/** Fields that would change the text in ways that this server has not; accepted where they ask for nothing. */
const NEUTRAL: Readonly<Record<string, readonly unknown[]>> = {
  best_of: [1],
  presence_penalty: [0],
  frequency_penalty: [0],
  suffix: [""],
  logit_bias: [],
};
const KNOWN = [
  ...["model", "prompt", "max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "stream"],
  ...["stream_options", "echo", "user", "n", "live", "ignore_eos", "logprobs"],
];

/** OpenAI's own limit of `logprobs`. */
const LOGPROBS_MAX = 5;

/** @param seed Taken where the request names none. */
export function readCompletion(body: unknown, seed: number): Completion | Problem {
  if (!isRecord(body)) return problem(null, "the body is not a JSON object");
  const unknown = unsupported(body);
  if (unknown !== null) return unknown;
  const prompts = readPrompts(body.prompt);
  if (isProblem(prompts)) return prompts;
  const stop = readStop(body.stop);
  if (isProblem(stop)) return stop;
  const flags = readFlags(body);
  if (isProblem(flags)) return flags;
  const { echo, ignoreEos, ...about } = flags;
  const number = numbers(body);
  const logprobs = body.logprobs === undefined || body.logprobs === null
    ? null
    : number("logprobs", { absent: 0, min: 0, max: LOGPROBS_MAX, whole: true });
  const options = {
    ...{ stop, ...(ignoreEos ? { ignoreEos } : {}), ...(echo ? { echo } : {}) },
    ...(logprobs === null ? {} : { logprobs }),
    // Whoever wants to know how likely a text is has nothing written.
    count: number("max_tokens", { absent: TOKENS_DEFAULT, min: echo ? 0 : 1, max: TOKENS_MAX, whole: true }),
    temperature: number("temperature", { absent: 1, min: 0, max: 100 }),
    topP: number("top_p", { absent: 1, min: Number.MIN_VALUE, max: 1 }),
    topK: number("top_k", { absent: 0, min: 0, max: 1_000_000, whole: true }),
    seed: number("seed", { absent: seed, min: 0, max: 0xffff_ffff, whole: true }),
  };
  const n = number("n", { absent: 1, min: 1, max: CHOICES_MAX, whole: true });
  if (number.problem !== null) return number.problem;
  const much = tooMuch(options.count, n * prompts.length);
  if (much !== null) return much;
  return { requests: requestsOf(prompts, n, options), n, logprobs, ...about };
}

function tooMuch(count: number, texts: number): Problem | null {
  if (count * texts <= ALL_TOKENS_MAX) return null;
  const use = `${texts} texts may have ${Math.floor(ALL_TOKENS_MAX / texts)} each`;
  return problem("max_tokens", `max_tokens is ${count}; ${use}`);
}

/** What the run's peers cannot do, though a checkpoint can; null: nothing. */
export function liveProblem({ requests, logprobs }: Completion): Problem | null {
  const by = "the computers of the run";
  if (logprobs !== null) {
    return problem("logprobs", `${by} do not tell logprobs; ask the checkpoint, or leave it out`);
  }
  if (requests[0]!.count > 0) return null;
  return problem("max_tokens", `max_tokens is 0, and ${by} only write; ask for 1 at least`);
}

/** Two choices of one prompt differ by their seeds alone. */
function requestsOf(
  prompts: (string | number[])[],
  n: number,
  options: Omit<TextRequest, "prompt">,
): TextRequest[] {
  return prompts.flatMap((prompt) =>
    Array.from({ length: n }, (_, i) => ({ ...options, prompt, seed: (options.seed + i) % 2 ** 32 }))
  );
}

export function isProblem(value: unknown): value is Problem {
  return isRecord(value) && "message" in value && "param" in value;
}

function problem(param: string | null, message: string): Problem {
  return { param, message };
}

function unsupported(body: Record<string, unknown>): Problem | null {
  for (const [name, value] of Object.entries(body)) {
    if (KNOWN.includes(name) || value === null) continue;
    if (!Object.hasOwn(NEUTRAL, name)) {
      return problem(name.slice(0, 60), `the field "${name.slice(0, 60)}" is not known here; leave it out`);
    }
    const neutral = NEUTRAL[name]!;
    const empty = isRecord(value) && Object.keys(value).length === 0;
    if (neutral.includes(value) || empty) continue;
    const remedy = neutral.length === 0
      ? "leave it out"
      : `leave it out or use ${JSON.stringify(neutral[0])}`;
    return problem(name, `${name} is ${shown(value)}; this server does not have it, ${remedy}`);
  }
  return null;
}

function readPrompts(value: unknown): (string | number[])[] | Problem {
  const list: unknown[] = Array.isArray(value) && !(value.length > 0 && value.every(isToken))
    ? value
    : [value];
  if (list.length > PROMPTS_MAX) {
    return problem("prompt", `prompt holds ${list.length} texts; send at most ${PROMPTS_MAX} in one request`);
  }
  if (list.length > 0 && list.every(isPrompt)) return list;
  return problem("prompt", `prompt is ${shown(value)}; give a text of at least one character, or its tokens`);
}

function isPrompt(value: unknown): value is string | number[] {
  if (typeof value === "string") return value !== "";
  return Array.isArray(value) && value.length > 0 && value.every(isToken);
}

function isToken(value: unknown): value is number {
  return typeof value === "number" && Number.isSafeInteger(value) && value >= 0;
}

function readStop(value: unknown): string[] | Problem {
  const list = value === undefined || value === null ? [] : Array.isArray(value) ? value : [value];
  const fits = list.length <= STOPS_MAX &&
    list.every((stop) => typeof stop === "string" && stop !== "" && stop.length <= STOP_CHARS_MAX);
  if (fits) return list as string[];
  const use = `use up to ${STOPS_MAX} texts of 1 to ${STOP_CHARS_MAX} characters`;
  return problem("stop", `stop is ${shown(value)}; ${use}`);
}

interface Bounds {
  absent: number;
  min: number;
  max: number;
  whole?: boolean;
}

/** Reads numbers of the body; the first that does not fit is kept as `problem`. */
function numbers(body: Record<string, unknown>) {
  const read = (name: string, { absent, min, max, whole = false }: Bounds): number => {
    const value = body[name] ?? absent;
    const fits = typeof value === "number" && value >= min && value <= max &&
      (!whole || Number.isInteger(value));
    if (fits) return value;
    const from = min === Number.MIN_VALUE ? "above 0 and up to" : `from ${min} to`;
    read.problem ??= problem(
      name,
      `${name} is ${shown(value)}; use ${whole ? "an integer" : "a number"} ${from} ${max}`,
    );
    return absent;
  };
  read.problem = null as Problem | null;
  return read;
}

interface Flags extends Omit<Completion, "requests" | "n" | "logprobs"> {
  echo: boolean;
  ignoreEos: boolean;
}

function readFlags(body: Record<string, unknown>): Flags | Problem {
  const { model = null, stream, echo, live, ignore_eos, stream_options: options = null } = body;
  if (model !== null && typeof model !== "string") return problem("model", "model is not a name");
  for (const [name, value] of Object.entries({ stream, echo, live, ignore_eos })) {
    if (value !== undefined && value !== null && typeof value !== "boolean") {
      return problem(name, `${name} is ${shown(value)}; use true or false`);
    }
  }
  const include = isRecord(options) ? options.include_usage ?? false : false;
  if ((options !== null && !isRecord(options)) || typeof include !== "boolean") {
    return problem("stream_options", "stream_options is not {include_usage: true or false}");
  }
  const given = { stream: stream === true, echo: echo === true, live: live === true };
  return { model, ...given, ignoreEos: ignore_eos === true, includeUsage: include };
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function shown(value: unknown): string {
  return (JSON.stringify(value) ?? "missing").slice(0, 60);
}
