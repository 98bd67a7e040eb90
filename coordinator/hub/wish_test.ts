// What is said of a form's fields: each by itself, then how they fit together, always with the field that should be changed.
import assert from "node:assert/strict";
import { firstError, judge } from "./wish.ts";

const TEXTS = [
  { dataset: "moby-dick", name: "Moby Dick", tokenizer: "characters", tokens: 1_000_000, vocabulary: 80 },
  { dataset: "corpus:0123456789abcdef", name: "Short", tokenizer: "characters", tokens: 300, vocabulary: 20 },
];

function fields(wish: Record<string, unknown>): string[] {
  const judged = judge(wish, TEXTS);
  return judged.ok ? [] : judged.errors.map(({ field }) => field);
}

Deno.test("wish: every wrong value is told at once, each with its field and a remedy", () => {
  const wish: Record<string, unknown> = { n_layer: "x", learning_rate: -1, schedule: "fast", n_layers: 3 };
  const judged = judge(wish, TEXTS);
  assert.ok(!judged.ok);
  const byField = Object.fromEntries(judged.errors.map(({ field, message }) => [field, message]));
  assert.deepEqual(Object.keys(byField).sort(), ["learning_rate", "n_layer", "n_layers", "schedule"]);
  assert.match(byField["n_layer"]!, /^"x" cannot be used; use an integer from 1 to 256$/);
  assert.match(byField["schedule"]!, /one of dynamic, /);
  assert.match(byField["n_layers"]!, /nearest known one is n_layer$/);
  assert.match(firstError(judged.errors), /n_layer: "x"/);
});

Deno.test("wish: values that do not fit together are told at the one to change", () => {
  assert.deepEqual(fields({ n_embd: 63 }), ["n_embd"]);
  assert.deepEqual(fields({ n_head: 4, n_kv_head: 3 }), ["n_head"]);
  assert.deepEqual(fields({ n_stage: 9 }), ["n_stage"]);
  assert.deepEqual(fields({ min_lr: 1 }), ["min_lr"]);
  assert.deepEqual(fields({ warmup_iters: 50, max_iters: 20 }), ["warmup_iters"]);
  assert.deepEqual(fields({ dtype: "f16", n_embd: 48 }), ["n_embd"]);
  assert.deepEqual(fields({ dataset: "corpus:0123456789abcdef" }), ["block_size"]);
  assert.deepEqual(fields({ dataset: "corpus:0123456789abcdef", block_size: 8 }), []);
});

Deno.test("wish: a text is one of the list and no path, and so is its tokenizer", () => {
  for (const dataset of ["/etc/passwd", "../text.txt", "corpus:ffffffffffffffff", "moby-dick "]) {
    assert.deepEqual(fields({ dataset }), ["dataset"], dataset);
  }
  assert.deepEqual(fields({ tokenizer: "/root/tokenizer.json" }), ["tokenizer"]);
  const judged = judge({ n_layer: 3 }, TEXTS);
  assert.ok(judged.ok);
  assert.deepEqual([judged.config.n_layer, judged.dataset.vocabulary], [3, 80]);
});
