// "Try the model" as data: what the form holds and how far a text has come -> fields with what is wrong with them, the text, and
// one sentence about where it stands. Pure; asks nobody. The coordinator judges again (coordinator/http/completions_request.ts).
import { count, plural } from "./format.ts";
import type { Tone } from "./view_model_notice.ts";

/** As the coordinator allows them. */
const TOKENS_MAX = 8192;
const TEMPERATURE_MAX = 100;
const TOP_K_MAX = 1_000_000;
const SEED_MAX = 0xffff_ffff;
/** Longer prompts have no window that holds them; the end of a text is what counts. */
export const PROMPT_CHARS_MAX = 20_000;

/** What the reader typed, as typed. */
export interface GenerateForm {
  prompt: string;
  length: string;
  temperature: string;
  topK: string;
  topP: string;
  /** Empty: another one each time. */
  seed: string;
  by: Writer;
}

/** The newest checkpoint on the coordinator's computer, or the computers of the run with the weights of now. */
export type Writer = "checkpoint" | "peers";

export type NumberField = Exclude<keyof GenerateForm, "prompt" | "by">;

export const FIRST_FORM: GenerateForm = {
  ...{ prompt: "", length: "200", temperature: "0.8", topK: "0", topP: "1", seed: "" },
  by: "checkpoint",
};

/** A text that is being written, or was. */
export interface Written {
  prompt: string;
  text: string;
  seed: number;
  /** Of the checkpoint that wrote; null until it is told. */
  step: number | null;
  /** Of the weights that the run's peers wrote with, in order, and how often they began anew. */
  live?: { steps: number[]; restarts: number } | null;
  tokens: number | null;
  /** While it is written, and after: null before there is anything to tell. */
  tokensPerS?: number | null;
}

export interface GenerateModel {
  form: GenerateForm;
  /** The run has peers that may write. */
  live: boolean;
  phase: "idle" | "asking" | "writing" | "done" | "stopped" | "failed";
  written: Written | null;
  /** done: whether it ended by itself or by its length. failed: what went wrong. */
  reason: "stop" | "length" | null;
  refusal: { code: string; message: string } | null;
}

export const NOTHING_WRITTEN: GenerateModel = {
  ...{ form: FIRST_FORM, live: false, phase: "idle", written: null, reason: null, refusal: null },
};

/** What the coordinator is asked for; `seed` null = it draws one here. */
export interface Wish {
  prompt: string;
  count: number;
  temperature: number;
  topK: number;
  topP: number;
  seed: number | null;
  /** The peers of the run write it. */
  live: boolean;
}

interface Rule {
  id: NumberField;
  label: string;
  hint: string;
  min: number;
  /** The least is not allowed itself. */
  above?: boolean;
  max: number;
  whole: boolean;
  optional?: boolean;
}

const RULES: readonly Rule[] = [
  { id: "length", label: "Length, tokens", hint: "", min: 1, max: TOKENS_MAX, whole: true },
  {
    ...{ id: "temperature", label: "Temperature", hint: "0 = always the likeliest" },
    ...{ min: 0, max: TEMPERATURE_MAX, whole: false },
  },
  { id: "topK", label: "Top k", hint: "0 = among all", min: 0, max: TOP_K_MAX, whole: true },
  { id: "topP", label: "Top p", hint: "1 = among all", min: 0, above: true, max: 1, whole: false },
  {
    ...{ id: "seed", label: "Seed", hint: "empty = another each time" },
    ...{ min: 0, max: SEED_MAX, whole: true, optional: true },
  },
];

export interface FieldView {
  id: NumberField;
  label: string;
  hint: string;
  value: string;
  whole: boolean;
  /** Why it cannot be used; empty if it can. */
  problem: string;
}

export interface WriterView {
  id: Writer;
  label: string;
  hint: string;
  chosen: boolean;
}

export interface GenerateView {
  /** Who may write; empty where there is no choice. */
  writers: WriterView[];
  prompt: string;
  promptHint: string;
  promptProblem: string;
  fields: FieldView[];
  maySend: boolean;
  mayStop: boolean;
  /** Where it stands; null before the first text. */
  said: { tone: Tone; text: string } | null;
  /** Of a text: how it begins and goes on, and what can be said of it. */
  output: { prompt: string; text: string; about: string } | null;
  busy: boolean;
}

export function generateView(model: GenerateModel): GenerateView {
  const { form, phase, written } = model;
  const fields = RULES.map((rule) => fieldView(rule, form[rule.id]));
  const promptHint = form.prompt === "" ? "One character is enough." : "";
  const promptProblem = problemOfPrompt(form.prompt);
  const busy = phase === "asking" || phase === "writing";
  return {
    writers: writersOf(model),
    ...{ prompt: form.prompt, promptHint, promptProblem, fields, busy, mayStop: busy },
    maySend: !busy && form.prompt !== "" && promptProblem === "" &&
      fields.every(({ problem }) => problem === ""),
    said: said(model),
    output: written === null || phase === "asking"
      ? null
      : { prompt: written.prompt, text: written.text, about: about(written) },
  };
}

function writersOf({ form, live }: GenerateModel): WriterView[] {
  if (!live) return [];
  const writers: Omit<WriterView, "chosen">[] = [
    {
      ...{ id: "checkpoint", label: "The newest checkpoint" },
      hint: "On the coordinator’s computer, one text at a time. Costs the run nothing.",
    },
    {
      ...{ id: "peers", label: "The computers of the run" },
      hint:
        "With the weights of now, each computer its own layers. Each copies them for it, and steps take a " +
        "little longer while they write. One of them sees the prompt.",
    },
  ];
  return writers.map((it) => ({ ...it, chosen: it.id === form.by }));
}

/** Null while something in the form cannot be used. */
export function wishOf({ form, live }: Pick<GenerateModel, "form" | "live">): Wish | null {
  if (!generateView({ ...NOTHING_WRITTEN, form }).maySend) return null;
  const number = (id: NumberField) => Number(form[id].trim());
  return {
    ...{ prompt: form.prompt, count: number("length"), temperature: number("temperature") },
    ...{ topK: number("topK"), topP: number("topP") },
    seed: form.seed.trim() === "" ? null : number("seed"),
    live: live && form.by === "peers",
  };
}

function fieldView(rule: Rule, value: string): FieldView {
  const { id, label, hint, whole } = rule;
  return { id, label, hint, value, whole, problem: problemOf(rule, value.trim()) };
}

function problemOf({ min, above = false, max, whole, optional = false }: Rule, text: string): string {
  if (text === "" && optional) return "";
  const value = text === "" ? NaN : Number(text);
  const fits = value <= max && (above ? value > min : value >= min) && (!whole || Number.isInteger(value));
  if (fits) return "";
  const from = above ? `above ${min} and up to` : `from ${min} to`;
  return `${whole ? "A whole number" : "A number"} ${from} ${whole ? count(max) : max}, please.`;
}

function problemOfPrompt(prompt: string): string {
  return prompt.length <= PROMPT_CHARS_MAX
    ? ""
    : `${count(prompt.length)} characters are too many; the last ${count(PROMPT_CHARS_MAX)} are enough.`;
}

/** Sentences for what a reader may meet; the coordinator's own words say the rest. */
const REFUSED: Readonly<Record<string, { tone: Tone; text: string }>> = {
  no_checkpoint: {
    tone: "info",
    text:
      "There is no checkpoint yet, and so no model to try. The run writes its first one soon; try again then.",
  },
  rate_limit_exceeded: { tone: "warn", text: "Others are being served." },
  invalid_api_key: {
    tone: "bad",
    text: "This link may not write text any more. Ask the organizer for another, or whether everybody may.",
  },
  offline: {
    tone: "warn",
    text: "The coordinator does not answer. Look whether this computer is online, then try again.",
  },
};

function said({ phase, written, reason, refusal, form, live }: GenerateModel): GenerateView["said"] {
  switch (phase) {
    case "idle":
      return null;
    case "asking":
      return {
        tone: "info",
        text: live && form.by === "peers"
          ? "Waiting for the computers of the run: each copies its layers between two steps."
          : "Waiting for the model: the first text after a checkpoint has it loaded.",
      };
    case "writing":
      return { tone: "info", text: "Writing…" };
    case "stopped":
      return { tone: "info", text: "Stopped. What was written stays here." };
    case "done":
      return {
        tone: "good",
        text: reason === "stop"
          ? "Done: the model ended the text."
          : `Done, with ${plural(written?.tokens ?? 0, "token")}.`,
      };
    case "failed":
      return refused(refusal);
  }
}

function refused(refusal: GenerateModel["refusal"]): { tone: Tone; text: string } {
  const { code, message } = refusal ?? { code: "internal", message: "Something went wrong." };
  const known = REFUSED[code];
  if (known === undefined) return { tone: "bad", text: `That failed: ${sentence(message)}` };
  // How long to wait is in its own words.
  return code === "rate_limit_exceeded" ? { ...known, text: `${known.text} ${sentence(message)}` } : known;
}

function sentence(text: string): string {
  const begun = text.slice(0, 1).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(begun) ? begun : `${begun}.`;
}

function about({ step, live = null, seed, tokens, tokensPerS = null }: Written): string {
  return [
    ...(step === null ? [] : [`checkpoint of step ${count(step)}`]),
    ...(live === null ? [] : [`weights of step ${live.steps.map(count).join(", then ")}`]),
    ...(live === null || live.restarts === 0 ? [] : [`begun anew ${plural(live.restarts, "time")}`]),
    `seed ${seed}`,
    ...(tokens === null ? [] : [plural(tokens, "token")]),
    ...(tokensPerS === null ? [] : [`${tokensPerS.toFixed(1)} tokens a second`]),
  ].join(", ");
}
