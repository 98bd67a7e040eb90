// The organizer's texts as data: each state has its words, progress counts what is under way, and a form says what is missing.
import assert from "node:assert/strict";
import type { CorpusInfo } from "../peer/wire/corpora.ts";
import { corporaView, draftOf, newsOf } from "./view_model_corpora.ts";

const INFO: CorpusInfo = {
  ...{
    id: "0123456789abcdef",
    name: "a.jsonl",
    format: "jsonl",
    tokenizer: "gpt2",
    column: "body",
    bytes: 2000,
  },
  ...{
    bytesTotal: 4000,
    bytesDone: 500,
    documents: 3,
    tokens: 120,
    vocabulary: 0,
    state: "preparing",
    error: null,
  },
  usedBy: [],
};
const limits = { bytes: 1e6, tokenizerBytes: 1000 };

function rowOf(part: Partial<CorpusInfo>) {
  const answer = { corpora: [{ ...INFO, ...part }], tokenizers: [], limits };
  return corporaView({ answer, draft: null, sending: false, refusal: "" }).rows[0]!;
}

Deno.test("corpora view: progress is of the bytes that arrive, then of those that are cut", () => {
  assert.deepEqual(rowOf({ state: "receiving" }).progress, {
    value: 2000,
    max: 4000,
    text: "50% arrived, 2 kB of 4 kB",
  });
  assert.deepEqual(rowOf({}).progress, { value: 500, max: 2000, text: "25% cut, 500 B of 2 kB" });
  assert.deepEqual(rowOf({ state: "receiving", bytesTotal: null, bytes: 0 }).progress?.max, 1);
  for (const state of ["ready", "failed"] as const) assert.equal(rowOf({ state }).progress, null);
});

Deno.test("corpora view: what may be done depends on the state and on who uses it", () => {
  assert.equal(rowOf({}).remove, "Cancel");
  assert.equal(rowOf({ state: "ready" }).remove, "Delete");
  const used = rowOf({ state: "ready", usedBy: ["Evening class", "Night"] });
  assert.deepEqual([used.remove, used.removeText], [null, "Used by Evening class, Night"]);
  const failed = rowOf({ state: "failed", error: { code: "bad-corpus", message: "line 5: it is not JSON" } });
  assert.deepEqual([failed.remove, failed.tone, failed.word], ["Forget", "bad", "cannot be used"]);
  assert.equal(failed.error, "line 5: it is not JSON");
});

Deno.test("corpora view: facts say how it was cut", () => {
  const facts = Object.fromEntries(
    rowOf({ state: "ready", vocabulary: 50_257 }).facts.map((it) => [it.label, it.value]),
  );
  assert.deepEqual(facts, {
    ...{
      Size: "2 kB",
      Tokenizer: "GPT-2's pieces of words",
      Field: "body",
      Tokens: "120",
      Vocabulary: "50,257",
    },
    Documents: "3 documents",
  });
});

Deno.test("corpora view: a chosen file's format follows from its name, and what is missing is said", () => {
  assert.deepEqual(
    ["a.JSONL", "b.ndjson", "c.parquet", "d.txt", "e"].map((name) => draftOf({ name, size: 1 }).format),
    [
      ...["jsonl", "jsonl", "parquet", "text", "text"],
    ],
  );
  const answer = { corpora: [], tokenizers: [{ id: "00", name: "w.json" }], limits };
  const view = (part: object) => {
    const draft = { ...draftOf({ name: "a.jsonl", size: 10 }), ...part };
    return corporaView({ answer, draft, sending: false, refusal: "" }).draft!;
  };
  assert.equal(view({}).missing, null);
  assert.equal(view({}).columnLabel, "Field with the text");
  assert.equal(view({ format: "text", column: "" }).missing, null);
  assert.match(view({ column: " " }).missing!, /field or column/);
  assert.match(view({ size: 0 }).missing!, /empty/);
  assert.match(view({ size: 2e6 }).missing!, /2 MB; at most 1 MB/);
  assert.match(view({ tokenizer: "own" }).missing!, /Choose the tokenizer.json/);
  assert.equal(view({ tokenizer: "own", own: "x.json" }).missing, null);
  assert.deepEqual(view({}).tokenizers.map(({ value }) => value), ["gpt2", "char", "00", "own"]);
});

Deno.test("corpora view: what has become ready or failed is said, and nothing twice", () => {
  const ready = { ...INFO, id: "1", state: "ready" as const },
    failed = { ...INFO, name: "b.txt", state: "failed" as const };
  assert.equal(newsOf([INFO], [ready]), "a.jsonl is ready.");
  assert.equal(newsOf([INFO], [ready, failed]), "a.jsonl is ready. b.txt cannot be used.");
  assert.equal(newsOf([ready, failed], [ready, failed, INFO]), "");
});

Deno.test("corpora view: an empty list says so once it is known", () => {
  const model = { answer: { corpora: [], tokenizers: [], limits }, draft: null, sending: false, refusal: "" };
  assert.match(corporaView(model).empty!, /Moby Dick/);
  assert.equal(corporaView({ ...model, answer: null }).empty, null);
});
