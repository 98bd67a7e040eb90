// The body of POST /v1/completions (OpenAI's API, "Create completion") -> what to write. Pure; it refuses by name what this
// server cannot do instead of ignoring it, and takes fields of that API that ask for nothing at their neutral value.
import type { TextRequest } from "./text_protocol.ts";

/** Tokens of one text; more would keep all others waiting. */
export const TOKENS_MAX = 8192;
/** OpenAI's default: a short answer. */
const TOKENS_DEFAULT = 16;
const STOPS_MAX = 4;
const STOP_CHARS_MAX = 1000;

export interface Completion {
  /** The model that was asked for, if the request names one. */
  model: string | null;
  request: TextRequest;
  stream: boolean;
  /** With `stream`: a last piece holds the counts. */
  includeUsage: boolean;
  /** The prompt is part of the text. */
  echo: boolean;
}

/** A refusal in OpenAI's terms. */
export interface Problem {
  message: string;
  /** The field that is wrong, if it is one. */
  param: string | null;
}

/** Fields that would change the text in ways that this server has not; accepted where they ask for nothing. */
const NEUTRAL: Readonly<Record<string, readonly unknown[]>> = {
  n: [1],
  best_of: [1],
  logprobs: [0],
  presence_penalty: [0],
  frequency_penalty: [0],
  suffix: [""],
  logit_bias: [],
};
const KNOWN = [
  ...["model", "prompt", "max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "stream"],
  ...["stream_options", "echo", "user"],
];

/** @param seed Taken where the request names none. */
export function readCompletion(body: unknown, seed: number): Completion | Problem {
  if (!isRecord(body)) return problem(null, "the body is not a JSON object");
  const unknown = unsupported(body);
  if (unknown !== null) return unknown;
  const prompt = readPrompt(body.prompt);
  if (isProblem(prompt)) return prompt;
  const stop = readStop(body.stop);
  if (isProblem(stop)) return stop;
  const number = numbers(body);
  const request = {
    ...{ prompt, stop },
    count: number("max_tokens", { absent: TOKENS_DEFAULT, min: 1, max: TOKENS_MAX, whole: true }),
    temperature: number("temperature", { absent: 1, min: 0, max: 100 }),
    topP: number("top_p", { absent: 1, min: Number.MIN_VALUE, max: 1 }),
    topK: number("top_k", { absent: 0, min: 0, max: 1_000_000, whole: true }),
    seed: number("seed", { absent: seed, min: 0, max: 0xffff_ffff, whole: true }),
  };
  if (number.problem !== null) return number.problem;
  const flags = readFlags(body);
  if (isProblem(flags)) return flags;
  return { request, ...flags };
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

function readPrompt(value: unknown): string | number[] | Problem {
  const list: unknown[] = Array.isArray(value) ? value : [];
  const one = list.length === 1 && !isToken(list[0]) ? list[0] : value;
  if (typeof one === "string" && one !== "") return one;
  if (Array.isArray(one) && one.length > 0 && one.every(isToken)) return one;
  if (list.length > 1) {
    return problem("prompt", "prompt holds several texts; send one request for each");
  }
  return problem("prompt", `prompt is ${shown(value)}; give a text of at least one character, or its tokens`);
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

function readFlags(body: Record<string, unknown>): Omit<Completion, "request"> | Problem {
  const { model = null, stream = false, echo = false, stream_options: options = null } = body;
  if (model !== null && typeof model !== "string") return problem("model", "model is not a name");
  for (const [name, value] of Object.entries({ stream, echo })) {
    if (value !== null && typeof value !== "boolean") {
      return problem(name, `${name} is ${shown(value)}; use true or false`);
    }
  }
  const include = isRecord(options) ? options.include_usage ?? false : false;
  if ((options !== null && !isRecord(options)) || typeof include !== "boolean") {
    return problem("stream_options", "stream_options is not {include_usage: true or false}");
  }
  return { model, stream: stream === true, echo: echo === true, includeUsage: include };
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function shown(value: unknown): string {
  return (JSON.stringify(value) ?? "missing").slice(0, 60);
}
