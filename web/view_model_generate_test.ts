// "Try the model" as data: what of a form may be sent, what is wrong with the rest, and a sentence for every end.
import assert from "node:assert/strict";
import {
  FIRST_FORM,
  type GenerateForm,
  type GenerateModel,
  generateView,
  NOTHING_WRITTEN,
  PROMPT_CHARS_MAX,
  wishOf as wishOfModel,
} from "./view_model_generate.ts";

const form: GenerateForm = { ...FIRST_FORM, prompt: "a" };
const wishOf = (form: GenerateForm) => wishOfModel({ form, live: true });
const written = { prompt: "a", text: "bc", seed: 5, step: null, tokens: null };

function view(part: Partial<GenerateModel>) {
  return generateView({ ...NOTHING_WRITTEN, form, ...part });
}

Deno.test("generate: a first form lacks its prompt only, and says so without a scolding", () => {
  const first = generateView(NOTHING_WRITTEN);
  assert.deepEqual([first.maySend, first.promptProblem, first.promptHint], [
    false,
    "",
    "One character is enough.",
  ]);
  assert.deepEqual(first.fields.map(({ problem }) => problem), ["", "", "", "", ""]);
  assert.equal(wishOf(FIRST_FORM), null);
  assert.deepEqual(wishOf(form), {
    ...{ prompt: "a", count: 200, temperature: 0.8, topK: 0, topP: 1, seed: null, live: false },
  });
  assert.deepEqual(wishOf({ ...form, seed: " 7 ", length: "8192" })?.seed, 7);
});

Deno.test("generate: the bounds of every number, as the coordinator has them", () => {
  const bounds: [keyof GenerateForm, string[], string[]][] = [
    ["length", ["1", "8192", " 5 "], ["0", "8193", "1.5", "", "many", "NaN"]],
    ["temperature", ["0", "100", "0.25"], ["-0.1", "100.5", "warm", "", "Infinity"]],
    ["topK", ["0", "1000000"], ["-1", "1000001", "0.5", ""]],
    ["topP", ["1", "0.0001"], ["0", "1.1", "-1", ""]],
    ["seed", ["", "0", "4294967295"], ["-1", "4294967296", "0.5", "x"]],
  ];
  for (const [id, good, bad] of bounds) {
    for (const text of good) assert.notEqual(wishOf({ ...form, [id]: text }), null, `${id} ${text}`);
    for (const text of bad) {
      const changed = view({ form: { ...form, [id]: text } });
      assert.equal(changed.maySend, false, `${id} ${text}`);
      assert.match(changed.fields.find((field) => field.id === id)!.problem, /number .* please\.$/);
      assert.equal(wishOf({ ...form, [id]: text }), null);
    }
  }
  const long = view({ form: { ...form, prompt: "x".repeat(PROMPT_CHARS_MAX + 1) } });
  assert.match(long.promptProblem, /^20,001 characters are too many/);
  assert.equal(long.maySend, false);
});

Deno.test("generate: who writes is a choice while the run has peers, and what they cost is said", () => {
  assert.deepEqual(view({}).writers, []);
  const by = (live: boolean) => wishOfModel({ form: { ...form, by: "peers" }, live })?.live;
  assert.deepEqual([by(true), by(false), wishOf(form)?.live], [true, false, false]);
  const { writers } = view({ live: true, form: { ...form, by: "peers" } });
  assert.deepEqual(writers.map(({ id, chosen }) => [id, chosen]), [["checkpoint", false], ["peers", true]]);
  assert.match(writers[1]!.hint, /steps take a little longer/);
  const asking = (form: GenerateForm) => view({ live: true, form, phase: "asking", written }).said!.text;
  assert.match(asking({ ...form, by: "peers" }), /copies its layers/);
  assert.match(asking(form), /has it loaded/);
  const live = { steps: [12, 1_340], restarts: 1 };
  const done = { ...written, live, tokens: 9, tokensPerS: 4.26 };
  assert.equal(
    view({ phase: "done", written: done }).output?.about,
    "weights of step 12, then 1,340, begun anew 1 time, seed 5, 9 tokens, 4.3 tokens a second",
  );
});

Deno.test("generate: while a text is written it may be stopped and no other asked for", () => {
  for (const phase of ["asking", "writing"] as const) {
    const it = view({ phase, written });
    assert.deepEqual([it.maySend, it.mayStop, it.busy], [false, true, true]);
  }
  assert.equal(view({ phase: "asking", written }).output, null);
  for (const phase of ["idle", "done", "stopped", "failed"] as const) {
    const it = view({ phase, written });
    assert.deepEqual([it.maySend, it.mayStop, it.busy, it.output?.text], [true, false, false, "bc"]);
  }
});

Deno.test("generate: every end has a sentence, and the text says what it is from", () => {
  const done = { phase: "done" as const, written: { ...written, step: 1341, tokens: 1 } };
  assert.equal(view({ ...done, reason: "length" }).said?.text, "Done, with 1 token.");
  assert.equal(view({ ...done, reason: "stop" }).said?.text, "Done: the model ended the text.");
  assert.equal(view(done).output?.about, "checkpoint of step 1,341, seed 5, 1 token");
  assert.equal(view({ phase: "stopped", written }).output?.about, "seed 5");
  const failed = (code: string, message: string) =>
    view({ phase: "failed", refusal: { code, message } }).said!;
  assert.deepEqual(failed("no_checkpoint", "x").tone, "info");
  assert.match(failed("no_checkpoint", "x").text, /no checkpoint yet.*try again/);
  assert.equal(
    failed("rate_limit_exceeded", "8 texts are waiting already; try again in 40 s").text,
    "Others are being served. 8 texts are waiting already; try again in 40 s.",
  );
  assert.match(failed("invalid_api_key", "x").text, /Ask the organizer/);
  assert.equal(
    failed("bad-corpus", "the prompt has “q”; leave it out").text,
    "That failed: The prompt has “q”; leave it out.",
  );
  assert.equal(view({ phase: "failed", refusal: null }).said?.tone, "bad");
});
