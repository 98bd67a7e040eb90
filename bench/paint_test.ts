// The paint benchmark's flags, table and summary; the measurement itself needs a window and proves nothing by passing.
import assert from "node:assert/strict";
import { type Interaction, paintTable, parseFlags, summarise } from "./paint.ts";

function presses(page: Interaction["page"], values: (number | null)[]): Interaction[] {
  return values.map((ms) => ({ page, name: "press", ms }));
}

Deno.test("what counts is the interaction that one in fifty is slower than, and what is too quick to be told is 16 ms", () => {
  const many = presses("admin", [200, 120, ...Array.from({ length: 49 }, () => null)]);
  assert.deepEqual(summarise(many, 7), {
    ...{ inp_ms: 120, contributor_inp_ms: null, admin_inp_ms: 120, interactions: 51, steps: 7 },
  });
  const both = [...presses("contributor", [24, null]), ...presses("admin", [null])];
  const summary = summarise(both, 1);
  assert.deepEqual([summary.inp_ms, summary.contributor_inp_ms, summary.admin_inp_ms], [24, 24, 16]);
  assert.equal(summarise([], 0).inp_ms, null);
  assert.deepEqual(paintTable(both).split("\n").slice(1).map((row) => row.trim().split(/  +/)), [
    ["contributor", "press", "2", "24"],
    ["admin", "press", "1", "16"],
  ]);
});

Deno.test("flags have bounds, and unknown ones are refused", () => {
  assert.deepEqual(parseFlags([]), { rounds: 10, engine: "auto", json: false, help: false });
  for (const bad of ["--rounds=0", "--engine=abacus", "--round=3"]) {
    assert.throws(() => parseFlags([bad]), { code: "usage" }, bad);
  }
});
