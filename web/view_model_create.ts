// The form for a new run as data: what is typed -> fields, what the coordinator found wrong with each, and what the run would take.
// Pure. A field that is left empty is not sent: the coordinator's default counts, which its placeholder shows.
import type {
  Estimate,
  EstimateAnswer,
  EstimateWish,
  FieldError,
  RunForm,
  RunWish,
} from "../peer/wire/hub.ts";
import type { RunConfig } from "../peer/wire/run.ts";
import { bytes, count, duration, layers, magnitude, plural } from "./format.ts";
import type { Fact } from "./view_model_tab.ts";

type Key = keyof RunConfig;

/** What has been typed, by field; an absent or empty one is left to the coordinator. */
export type Values = Partial<Record<Key, string>>;

export interface CreateModel {
  /** Null until the coordinator has told what there is. */
  form: RunForm | null;
  name: string;
  listed: boolean;
  /** Whoever has the join link may write text with the model. */
  publicText: boolean;
  values: Values;
  /** Gigabytes that each computer is supposed to offer. */
  offer: string;
  /** Billions of operations a second that each is supposed to have. */
  gflops: string;
  /** The run that this one is like; null: from a template. */
  cloneOf: { id: string; name: string } | null;
  /** Begins with the other run's weights. */
  withWeights: boolean;
  /** The coordinator's newest answer; null before the first. */
  answer: EstimateAnswer | null;
  /** A further answer is on its way. */
  asking: boolean;
  /** Why it was not made, or not reckoned; empty: nothing is wrong. */
  refusal: string;
  sending: boolean;
}

export interface Template {
  id: string;
  title: string;
  text: string;
  values: Values;
}

/** What an estimate begins with: a tab's usual offer, and a laptop's graphics unit. */
export const OFFER_GB = "2";
export const GFLOPS = "100";

export const TEMPLATES: readonly Template[] = [
  {
    id: "tiny",
    title: "Tiny",
    text: "Learns to spell in minutes, on any computer. To see that everything works.",
    values: {},
  },
  {
    id: "small",
    title: "Small",
    text: "Writes half-sentences after an hour or two on a few laptops. A class can watch it learn.",
    values: {
      ...{ n_layer: "6", n_head: "6", n_kv_head: "2", n_embd: "192", n_inner: "512", block_size: "128" },
      ...{
        gradient_accumulation_steps: "8",
        learning_rate: "0.001",
        max_iters: "2000",
        eval_interval: "200",
      },
    },
  },
  {
    id: "medium",
    title: "GPT-2 small’s size",
    text: "85 million parameters and more, over several computers with graphics cards. Days, not hours.",
    values: {
      ...{ n_layer: "12", n_head: "12", n_kv_head: "12", n_embd: "768", n_inner: "2048", block_size: "256" },
      ...{ gradient_accumulation_steps: "16", learning_rate: "0.0006", max_iters: "20000" },
      ...{ eval_interval: "500", checkpoint_interval: "500", dtype: "f16" },
    },
  },
];

interface Label {
  label: string;
  help?: string;
}

/** Labels in people's words; the key stands beside each, for those who know it from the command line. */
const LABELS: Partial<Record<Key, Label>> = {
  dataset: { label: "Text to learn" },
  architecture: { label: "Kind of model" },
  n_layer: { label: "Layers", help: "More layers, more computers that can share them." },
  n_embd: { label: "Width" },
  n_head: { label: "Attention heads", help: "Divide the width." },
  n_kv_head: { label: "Key and value heads", help: "Divide the attention heads." },
  n_inner: { label: "Inner width" },
  block_size: { label: "Context, tokens" },
  batch_size: { label: "Sequences per micro-batch" },
  gradient_accumulation_steps: { label: "Micro-batches per step" },
  micro_batch: {
    label: "Cut into micro-batches",
    help:
      "auto: in the size that suits the computers; a step trains on as many sequences as with the two above.",
  },
  max_iters: { label: "Steps" },
  learning_rate: { label: "Learning rate" },
  min_peers: { label: "Computers to wait for", help: "Training begins when so many are there." },
  warmup_iters: { label: "Warm-up steps" },
  min_lr: { label: "Last learning rate" },
  weight_decay: { label: "Weight decay" },
  grad_clip: { label: "Longest gradient" },
  eval_interval: { label: "Steps between evaluations" },
  checkpoint_interval: { label: "Steps between checkpoints" },
  sample_chars: { label: "Length of samples" },
  seed: { label: "Seed" },
  n_stage: { label: "Stages", help: "0: the planner decides." },
  schedule: {
    label: "Schedule",
    help: "auto: the fastest by simulation. 2bw is asynchronous: gradients come from weights one step old.",
  },
  dtype: { label: "Numbers in memory" },
  codec_forward: { label: "Activations on the way" },
  codec_backward: { label: "Gradients on the way" },
  recompute: { label: "Computed again to save memory" },
  optimizer: { label: "Optimizer" },
  lora_rank: {
    label: "Rank of adapters",
    help: "Above 0 the other run's weights stay as they are, and small matrices beside them are trained.",
  },
  lora_alpha: { label: "Weight of adapters", help: "Their product counts this over the rank." },
  lora_targets: { label: "Matrices with adapters", help: "Such as q_proj,v_proj." },
};

const ALWAYS: Key[] = ["dataset", "n_layer", "n_embd", "block_size", "max_iters", "min_peers"];
const FOLDED: { title: string; keys: Key[] }[] = [
  { title: "Model", keys: ["architecture", "n_head", "n_kv_head", "n_inner"] },
  {
    title: "Training",
    keys: [
      ...["batch_size", "gradient_accumulation_steps", "micro_batch", "learning_rate", "min_lr"] as const,
      ...[
        "warmup_iters",
        "weight_decay",
        "grad_clip",
        "eval_interval",
        "checkpoint_interval",
        "sample_chars",
        "seed",
      ] as const,
    ],
  },
  {
    title: "Computers and links",
    keys: ["n_stage", "schedule", "dtype", "codec_forward", "codec_backward", "recompute", "optimizer"],
  },
  { title: "Adapters (LoRA)", keys: ["lora_rank", "lora_alpha", "lora_targets"] },
];

export interface FieldView {
  key: Key;
  label: string;
  help: string;
  value: string;
  /** What counts while it is empty. */
  usual: string;
  /** Null: typed freely. */
  options: { value: string; text: string }[] | null;
  error: string | null;
  /** It cannot be another one with the weights that are taken over. */
  locked: boolean;
}

export interface CreateView {
  title: string;
  simple: FieldView[];
  folded: { title: string; fields: FieldView[] }[];
  /** Something in the folded part is wrong: it has to be seen. */
  unfold: boolean;
  nameError: string | null;
  /** What is wrong beside the fields. */
  errors: string[];
  estimate: EstimateView | null;
  /** Why those figures are supposed of a computer; may be empty. */
  measured: string;
  /** One line for who waits, or listens. */
  status: string;
  canCreate: boolean;
}

export interface EstimateView {
  headline: string;
  fits: boolean;
  facts: Fact[];
  stages: { key: number; name: string; holds: string; memory: string; peers: string }[];
  supposed: string;
}

/** What shapes the weights, and so cannot differ from theirs. */
const SHAPE: readonly Key[] = [
  ...["architecture", "n_layer", "n_embd", "n_head", "n_kv_head", "n_inner", "block_size"] as const,
];

/** What computers are supposed to have: as those that are connected, if there are any. */
function supposedOf(form: RunForm | null): Pick<CreateModel, "offer" | "gflops"> {
  const measured = form?.measured ?? null;
  if (measured === null) return { offer: OFFER_GB, gflops: GFLOPS };
  return {
    offer: String(Number((measured.offerBytes / 1e9).toPrecision(3))),
    gflops: String(Number(measured.gflops.toPrecision(3))),
  };
}

export function emptyForm(form: RunForm | null): CreateModel {
  return {
    ...{ form, name: "", listed: false, publicText: false, values: {}, ...supposedOf(form), cloneOf: null },
    ...{ withWeights: false, answer: null, asking: false, refusal: "", sending: false },
  };
}

/** The form filled in as another run is; what equals a default stays empty. */
export function clonedForm(
  form: RunForm,
  { publicText, ...of }: { id: string; name: string; publicText: boolean },
  config: RunConfig,
): CreateModel {
  const differing = Object.entries(config).filter(([key, value]) =>
    // Which weights adapters belong to follows from those that are taken over.
    key in form.defaults && key !== "lora_base" && typeof value !== "object" &&
    value !== form.defaults[key as Key]
  );
  const values = Object.fromEntries(differing.map(([key, value]) => [key, String(value)]));
  return { ...emptyForm(form), name: `${of.name} again`, publicText, values, cloneOf: of };
}

/** Text as the configuration's type: numbers and switches where it reads as one, else text, which the coordinator judges. */
export function configOf(values: Values): Record<string, unknown> {
  const typed = Object.entries(values).filter(([, text]) => text.trim() !== "");
  return Object.fromEntries(typed.map(([key, text]) => {
    const plain = text.trim();
    if (plain === "true" || plain === "false") return [key, plain === "true"];
    // "1,000" and "1e3x" stay text, so that the answer can name them as they were typed.
    const number = Number(plain);
    return [key, key !== "dataset" && Number.isFinite(number) ? number : plain];
  }));
}

/** Null while what is supposed of the computers is no number. */
export function estimateWish({ values, offer, gflops }: CreateModel): EstimateWish | null {
  const [gigabytes, speed] = [Number(offer), Number(gflops)];
  if (!(gigabytes >= 0.016 && gigabytes <= 1000) || !(speed >= 0.1 && speed <= 1e6)) return null;
  return { config: configOf(values), offerBytes: Math.round(gigabytes * 1e9), gflops: speed };
}

export function runWish({ name, listed, publicText, values, cloneOf, withWeights }: CreateModel): RunWish {
  const weights = cloneOf !== null && withWeights ? { weightsOf: cloneOf.id } : {};
  return { name: name.trim(), listed, publicText, config: configOf(values), ...weights };
}

export function createView(model: CreateModel): CreateView {
  const { form, answer, name, refusal, sending, cloneOf } = model;
  const errors = answer?.errors ?? [];
  const nameless = refusal !== "" && name.trim() === "";
  const field = (key: Key) => fieldView(key, model, errors);
  const folded = FOLDED.map(({ title, keys }) => ({ title, fields: keys.map(field) }));
  const shown = new Set<string>([...ALWAYS, ...FOLDED.flatMap(({ keys }) => keys)]);
  const elsewhere = errors.filter((error) => !shown.has(error.field)).map(sentence);
  const supposed = estimateWish(model) === null
    ? ["Say how much memory and speed a computer has, as numbers."]
    : [];
  return {
    title: cloneOf === null ? "Start a run" : `A run like ${cloneOf.name}`,
    simple: ALWAYS.map(field),
    folded,
    unfold: folded.some(({ fields }) => fields.some(({ error }) => error !== null)),
    nameError: nameless ? refusal : null,
    errors: [...elsewhere, ...supposed, ...(refusal === "" || nameless ? [] : [refusal])],
    estimate: answer?.estimate ? estimateView(answer.estimate, model) : null,
    measured: measuredText(model),
    status: statusOf(model, errors),
    canCreate: form !== null && !sending && errors.length === 0,
  };
}

function statusOf(model: CreateModel, errors: FieldError[]): string {
  const { form, answer, asking, sending } = model;
  if (form === null) return "Asking what there is to choose from…";
  if (sending) return "Making the run…";
  if (errors.length > 0) return `${plural(errors.length, "value")} to put right first.`;
  if (estimateWish(model) === null) return "";
  return asking || answer === null ? "Reckoning what it would take…" : "";
}

function sentence({ field, message }: FieldError): string {
  return field === "" ? message : `${field}: ${message}`;
}

function fieldView(key: Key, model: CreateModel, errors: FieldError[]): FieldView {
  const { form, values, withWeights, cloneOf } = model;
  const { label, help = "" } = LABELS[key] ?? { label: key };
  const usual = String(form?.defaults[key] ?? "");
  return {
    ...{ key, label, help, usual, value: values[key] ?? "", options: optionsOf(key, model) },
    error: errors.find(({ field }) => field === key)?.message ?? null,
    locked: cloneOf !== null && withWeights && SHAPE.includes(key),
  };
}

function optionsOf(key: Key, { form }: CreateModel): FieldView["options"] {
  if (form === null) return null;
  if (key === "dataset") {
    return form.datasets.map(({ dataset, name, tokens, tokenizer }) => ({
      value: dataset === form.defaults.dataset ? "" : dataset,
      text: `${name} (${magnitude(tokens)} tokens, ${tokenizer})`,
    }));
  }
  const choices = form.choices[key];
  if (choices === undefined) return null;
  const usual = String(form.defaults[key]);
  return choices.map((choice) => ({ value: choice === usual ? "" : choice, text: choice }));
}

function estimateView(estimate: Estimate, model: CreateModel): EstimateView {
  const { gflops, offer } = model;
  const { peersNeeded, reason, peers, stages, stepSeconds, totalSeconds } = estimate;
  const each = `${offer} GB each`;
  const seconds = (value: number | null) => value === null ? "does not fit" : duration(value * 1000);
  return {
    fits: peersNeeded !== null,
    headline: peersNeeded === null ? reason : `Needs ${plural(peersNeeded, "computer")} with ${each}.`,
    facts: [
      { label: "Parameters", value: magnitude(estimate.params) },
      { label: "All on one computer", value: bytes(estimate.wholeBytes) },
      { label: "Tokens per step", value: count(estimate.tokensPerStep) },
      { label: "One step", value: seconds(stepSeconds) },
      { label: "To the end", value: seconds(totalSeconds) },
      { label: "The text is read", value: times(estimate.epochs) },
      { label: "One checkpoint", value: bytes(estimate.checkpointBytes) },
    ],
    stages: stages.map(({ firstLayer, endLayer, bytes: size, peers: held }, index) => ({
      ...{ key: index, name: `Stage ${index + 1}`, holds: layers(firstLayer, endLayer) },
      ...{ memory: bytes(size), peers: plural(held, "computer") },
    })),
    supposed:
      `Supposed: ${
        plural(peers, "computer")
      } with ${each} and ${gflops} billion operations a second, 20 ms ` +
      "apart, 5 MB/s. What computers measure when they join takes the place of this.",
  };
}

/** Where the two figures come from that computers are supposed to have; empty where somebody has typed others. */
function measuredText({ form, offer, gflops }: CreateModel): string {
  const measured = form?.measured ?? null, usual = supposedOf(form);
  if (measured === null || usual.offer !== offer || usual.gflops !== gflops) return "";
  return measured.peers === 1
    ? "As measured by the computer that is connected now."
    : `The middle of what the ${measured.peers} computers that are connected now have measured.`;
}

function times(value: number): string {
  return value < 10 ? `${Number(value.toPrecision(2))} times` : `${count(value)} times`;
}
