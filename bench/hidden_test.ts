// The hidden-tab benchmark's flags, table and summary; the measurement itself needs a window and proves nothing by passing.
import assert from "node:assert/strict";
import { parseFlags, summarise, type Turn, turnTable } from "./hidden.ts";

function turn(side: Turn["side"], stepMs: number, pressMs: number[] = [], state: string = side): Turn {
  return { side, state, stepMs, pressMs };
}

Deno.test("a hidden turn is compared with its neighbours, so that a machine that slows down does not count", () => {
  const turns = [
    turn("visible", 100, [24, 40]),
    turn("hidden", 165),
    turn("visible", 200, [16]),
    turn("hidden", 330),
    turn("visible", 400),
  ];
  assert.deepEqual(summarise(turns), { hidden_over_visible: 1.1, press_to_paint_ms: 40, told_truth: true });
  assert.deepEqual(turnTable(turns).split("\n")[1]?.split(/  +/), ["visible", "visible", "100.0", "40"]);
});

Deno.test("a tab that was not hidden, and nothing measured, are said to be so", () => {
  assert.equal(summarise([turn("visible", 1), turn("hidden", 1, [], "visible")]).told_truth, false);
  assert.deepEqual(summarise([]), { hidden_over_visible: null, press_to_paint_ms: null, told_truth: true });
});

Deno.test("flags have bounds, and unknown ones are refused", () => {
  assert.deepEqual(parseFlags([]), { rounds: 5, steps: 20, engine: "auto", json: false, help: false });
  assert.equal(parseFlags(["--engine=cpu"]).engine, "cpu");
  for (const bad of ["--rounds=0", "--steps=2", "--engine=abacus", "--step=3"]) {
    assert.throws(() => parseFlags([bad]), { code: "usage" }, bad);
  }
});
