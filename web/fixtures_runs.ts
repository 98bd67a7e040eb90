// States of the runs page: the list as the organizer and as everybody sees it, and the form for a new run in its states.
// Nothing here ships with the pages.
import type { Estimate, HubRun } from "../peer/wire/hub.ts";
import { status } from "./fixtures_data.ts";
import type { Fixture } from "./fixtures_kinds.ts";
import { clonedForm, type CreateModel, emptyForm, TEMPLATES } from "./view_model_create.ts";
import type { RunsModel } from "./view_model_runs.ts";

function run(part: Partial<HubRun> & Pick<HubRun, "id" | "name">): HubRun {
  return {
    ...{
      operator: "Room 12",
      place: "open",
      busy: "",
      state: "training",
      reason: "",
      step: 340,
      maxIters: 2000,
    },
    ...{ peers: 4, params: 3_412_992, trainLoss: 1.911, valLoss: 1.974, dataset: "moby-dick", listed: false },
    publicText: false,
    createdAt: Date.UTC(2026, 2, 14, 9),
    joinLink: `https://shoal.example/r/${part.id}/#8fXQvN3s2kT5mWcJ7bRyLA`,
    adminLink: `https://shoal.example/r/${part.id}/admin#Qm4tZ8pVhS1nDkX6uEwGrw`,
    ...part,
  };
}

const away = {
  joinLink: null,
  adminLink: null,
  state: null,
  peers: 0,
  trainLoss: null,
  valLoss: null,
} as const;

const RUNS: HubRun[] = [
  run({ id: "evening-class", name: "Evening class", listed: true, publicText: true }),
  run({
    ...{ id: "night", name: "A longer one, for the nights of this week, with every computer of the library" },
    ...{ state: "waiting", reason: "waiting for peers", peers: 0, step: 0, trainLoss: null, valLoss: null },
  }),
  run({ id: "closing", name: "Morning class", busy: "archiving", reason: "writing the last checkpoint" }),
  run({ ...away, id: "done", name: "First try", place: "closed", step: 2000, reason: "it has ended" }),
  run({
    ...{
      ...away,
      id: "damaged",
      name: "Damaged",
      place: "broken",
      params: 0,
      step: 0,
      maxIters: 0,
      dataset: "",
    },
    reason:
      'the run\'s log runs/damaged/run.log cannot be used: record 3 has another checksum; "shoal resume" with ' +
      "the folder of a checkpoint goes on from there",
  }),
  run({
    ...away,
    id: "old",
    name: "Last term",
    place: "archived",
    reason: "it is put away; bring it back to go on",
  }),
];

const ESTIMATE: Estimate = {
  ...{
    params: 85_092_096,
    tokensPerStep: 8192,
    epochs: 22.8,
    wholeBytes: 5_317_019_392,
    peersNeeded: 3,
    reason: "",
  },
  ...{ peers: 3, stepSeconds: 27.7, totalSeconds: 554_000, checkpointBytes: 1_106_197_248 },
  stages: [
    { firstLayer: 0, endLayer: 4, bytes: 1_945_165_328, peers: 1 },
    { firstLayer: 4, endLayer: 8, bytes: 1_989_527_072, peers: 1 },
    { firstLayer: 8, endLayer: 12, bytes: 1_904_186_640, peers: 1 },
  ],
};

const form = {
  datasets: [
    {
      ...{ dataset: "moby-dick", name: "Moby Dick, by Herman Melville", tokenizer: "characters" },
      ...{ tokens: 1_194_902, vocabulary: 90 },
    },
    {
      ...{
        dataset: "corpus:0123456789abcdef",
        name: "Letters of the town",
        tokenizer: "GPT-2's pieces of words",
      },
      ...{ tokens: 9_120_330, vocabulary: 50_257 },
    },
  ],
  defaults: status.config,
  measured: null,
  choices: {
    architecture: ["llama", "gpt2"],
    schedule: ["dynamic", "gpipe", "1f1b"],
    dtype: ["f32", "f16"],
    codec_forward: ["raw32", "f16s", "i8b64"],
    codec_backward: ["raw32", "f16s", "i8b64"],
    micro_batch: ["fixed", "auto"],
    recompute: ["auto", "none", "attention", "block"],
    optimizer: ["auto", "exact"],
  },
};

const answered = { answer: { errors: [], estimate: ESTIMATE } };

function page(name: string, model: Partial<RunsModel>, draft: CreateModel | null = null): Fixture {
  return {
    name: `runs-${name}`,
    page: "runs",
    model: { list: null, refusal: null, note: "", ...model },
    draft,
  };
}

function creating(name: string, draft: Partial<CreateModel>): Fixture {
  return page(name, { list: { admin: true, runs: [] } }, { ...emptyForm(form), ...draft });
}

export const runs: readonly Fixture[] = [
  page("bad-token", { refusal: { code: "bad-token", message: "" } }),
  page("organizer", { list: { admin: true, runs: RUNS } }),
  page("organizer-empty", { list: { admin: true, runs: [] } }),
  page("organizer-stale", {
    list: { admin: true, runs: RUNS.slice(0, 1) },
    refusal: { code: "offline", message: "no answer from shoal.example" },
    note: "It is being put away.",
  }),
  page("everybody", {
    list: { admin: false, runs: RUNS.slice(0, 1).map((it) => ({ ...it, adminLink: null })) },
  }),
  page("nothing-open", { list: { admin: false, runs: [] } }),
  creating("create", { values: TEMPLATES[2]!.values, name: "Evening class", ...answered }),
  creating("create-refused", {
    values: { n_embd: "63", max_iters: "1,000", learning_rate: "fast" },
    answer: {
      errors: [
        { field: "max_iters", message: '"1,000" cannot be used; use an integer from 1 to 10000000' },
        { field: "learning_rate", message: '"fast" cannot be used; use a number from 0 to 10' },
      ],
      estimate: null,
    },
    refusal: "A run needs a name.",
  }),
  creating("create-too-large", {
    values: { n_layer: "48", n_embd: "4096" },
    name: "Too large",
    answer: {
      errors: [],
      estimate: {
        ...ESTIMATE,
        ...{ peersNeeded: null, stages: [], stepSeconds: null, totalSeconds: null },
        reason:
          "The model does not fit: its two ends take about 12813 MB and 12667 MB with one layer each, and the " +
          "two largest peers offer 2000 MB and 2000 MB; 21480 MB are missing.",
      },
    },
  }),
  page("clone", { list: { admin: true, runs: RUNS.slice(0, 1) } }, {
    ...clonedForm({ ...form, measured: { peers: 4, gflops: 212, offerBytes: 3.1e9 } }, {
      id: "evening-class",
      name: "Evening class",
      publicText: true,
    }, {
      ...status.config,
      n_layer: 8,
      seed: 7,
    }),
    ...{ withWeights: true, ...answered },
  }),
];
