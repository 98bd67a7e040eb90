// The form for a new run: what is typed becomes what the coordinator is asked, errors stand at their fields, and a clone holds only
// what differs from the defaults.
import assert from "node:assert/strict";
import { readConfig } from "../peer/model/config.ts";
import type { RunForm } from "../peer/wire/hub.ts";
import {
  clonedForm,
  configOf,
  createView,
  emptyForm,
  estimateWish,
  runWish,
  TEMPLATES,
} from "./view_model_create.ts";

const DEFAULTS = readConfig({});
const FORM: RunForm = {
  datasets: [{
    dataset: "moby-dick",
    name: "Moby Dick",
    tokenizer: "characters",
    tokens: 1e6,
    vocabulary: 80,
  }],
  defaults: DEFAULTS,
  choices: { schedule: ["dynamic", "gpipe"] },
  measured: null,
};

Deno.test("create: text becomes the configuration's types, and an empty field is left to the coordinator", () => {
  const values = {
    n_layer: " 6 ",
    learning_rate: "1e-3",
    shadows: "false",
    dataset: "123",
    max_iters: "1,000",
  };
  assert.deepEqual(configOf({ ...values, n_head: "", n_embd: "  " }), {
    ...{ n_layer: 6, learning_rate: 0.001, shadows: false, dataset: "123", max_iters: "1,000" },
  });
});

Deno.test("create: every template is a configuration that can be trained", () => {
  for (const { id, values } of TEMPLATES) {
    const config = readConfig(configOf(values));
    assert.ok(config.n_layer >= 4, id);
  }
});

Deno.test("create: a clone holds what differs, and with the weights its shape stands fast", () => {
  const config = { ...DEFAULTS, n_layer: 8, schedule: "gpipe" as const, shadows: false };
  const model = clonedForm(FORM, { id: "a", name: "Class", publicText: true }, config);
  assert.deepEqual(model.cloneOf, { id: "a", name: "Class" });
  assert.equal(runWish(model).publicText, true);
  assert.deepEqual(model.values, { n_layer: "8", schedule: "gpipe", shadows: "false" });
  assert.deepEqual(readConfig(configOf(model.values)), config);
  assert.equal(runWish(model).weightsOf, undefined);
  const view = createView({ ...model, withWeights: true });
  const locked = [...view.simple, ...view.folded.flatMap(({ fields }) => fields)].filter((it) => it.locked);
  assert.deepEqual(locked.map(({ key }) => key).sort(), [
    ...["architecture", "block_size", "n_embd", "n_head", "n_inner", "n_kv_head", "n_layer"],
  ]);
  assert.equal(runWish({ ...model, withWeights: true }).weightsOf, "a");
});

Deno.test("create: a clone of adapters leaves it to the weights which model they belong to", () => {
  const config = { ...DEFAULTS, lora_rank: 4, lora_base: "0123456789".repeat(6) + "1234" };
  const { values } = clonedForm(FORM, { id: "a", name: "Class", publicText: false }, config);
  assert.deepEqual(values, { lora_rank: "4" });
});

Deno.test("create: an error stands at its field, unfolds what hides it, and keeps the run from being started", () => {
  const model = { ...emptyForm(FORM), name: "x" };
  assert.equal(createView({ ...model, answer: { errors: [], estimate: null } }).canCreate, true);
  const answer = {
    errors: [{ field: "n_head", message: "wrong" }, { field: "iceServers", message: "no such server" }],
    estimate: null,
  };
  const view = createView({ ...model, answer });
  const heads = view.folded.flatMap(({ fields }) => fields).find(({ key }) => key === "n_head");
  assert.deepEqual([heads?.error, view.unfold, view.canCreate], ["wrong", true, false]);
  assert.deepEqual(view.errors, ["iceServers: no such server"]);
  assert.equal(view.status, "2 values to put right first.");
  const simple = createView({
    ...model,
    answer: { errors: [{ field: "n_layer", message: "x" }], estimate: null },
  });
  assert.equal(simple.unfold, false);
});

Deno.test("create: what connected computers have measured is supposed of others, until somebody types something else", () => {
  const one = { ...FORM, measured: { peers: 1, gflops: 87.512, offerBytes: 4.2949e9 } };
  const model = emptyForm(one);
  assert.deepEqual(estimateWish(model), { config: {}, offerBytes: 4.29e9, gflops: 87.5 });
  assert.equal(createView(model).measured, "As measured by the computer that is connected now.");
  assert.match(
    createView(emptyForm({ ...one, measured: { ...one.measured, peers: 3 } })).measured,
    /the 3 computers/,
  );
  assert.equal(createView({ ...model, gflops: "100" }).measured, "");
  assert.equal(createView(emptyForm(FORM)).measured, "");
});

Deno.test("create: nothing is asked while what a computer offers is no number", () => {
  const model = emptyForm(FORM);
  assert.deepEqual(estimateWish(model), { config: {}, offerBytes: 2e9, gflops: 100 });
  for (const part of [{ offer: "" }, { offer: "two" }, { offer: "0" }, { gflops: "-1" }, { gflops: "1e9" }]) {
    assert.equal(estimateWish({ ...model, ...part }), null);
    assert.match(createView({ ...model, ...part }).errors.join(), /as numbers/);
  }
  assert.equal(createView({ ...model, refusal: "A run needs a name." }).nameError, "A run needs a name.");
});
