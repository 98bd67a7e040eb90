// "Try the model" as data: what of a form may be sent, what is wrong with the rest, and a sentence for every end.
import assert from "node:assert/strict";
import {
  FIRST_FORM,
  type GenerateForm,
  type GenerateModel,
  generateView,
  NOTHING_WRITTEN,
  PROMPT_CHARS_MAX,
  wishOf,
} from "./view_model_generate.ts";

const form: GenerateForm = { ...FIRST_FORM, prompt: "a" };
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
    ...{ prompt: "a", count: 200, temperature: 0.8, topK: 0, topP: 1, seed: null },
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
