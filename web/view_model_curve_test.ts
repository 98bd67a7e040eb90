// Tests of the loss curve as data: the picture, the sentence and the table agree, and their sizes are bounded.
import assert from "node:assert/strict";
import fc from "fast-check";
import type { LossPoint } from "../peer/wire/status.ts";
import { losses } from "./fixtures_data.ts";
import { CURVE_POINTS_MAX, CURVE_ROWS_MAX, curveView } from "./view_model_curve.ts";

Deno.test("no losses: a sentence, and nothing to plot", function test() {
  const view = curveView([]);
  assert.equal(view.summary, "No loss has been measured yet.");
  assert.deepEqual(view.columns, [[], [], []]);
  assert.deepEqual(view.rows, []);
});

Deno.test("one point has no history to compare with", function test() {
  const view = curveView([{ step: 1, train: 4.5 }]);
  assert.equal(view.summary, "Training loss 4.500 at step 1.");
  assert.deepEqual(view.rows, [{ step: "1", train: "4.500", val: "not measured" }]);
});

Deno.test("the sentence names first, last and newest validation", function test() {
  const points: LossPoint[] = [{ step: 1, train: 4 }, { step: 2, val: 3.5 }, { step: 3, train: 3 }];
  assert.equal(
    curveView(points).summary,
    "Training loss 3.000 at step 3, from 4.000 at step 1; validation loss 3.500 at step 2.",
  );
});

Deno.test("a point without a training loss leaves a gap, not a zero", function test() {
  assert.deepEqual(curveView([{ step: 5, val: 2 }]).columns, [[5], [null], [2]]);
});

Deno.test("long histories are thinned but keep every validation point and the end", function test() {
  const points = losses(10_000);
  const [steps, , val] = curveView(points).columns;
  const validations = points.filter((point) => point.val !== undefined).length;
  assert.ok(steps.length <= CURVE_POINTS_MAX + validations + 1, String(steps.length));
  assert.equal(steps.at(-1), 10_000);
  assert.equal(val.filter((value) => value !== null).length, validations);
});

Deno.test("the table starts at the newest point, ends at the oldest, repeats none", function test() {
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 500 }), function rows(length) {
      const view = curveView(losses(length));
      assert.equal(view.rows.length, Math.min(CURVE_ROWS_MAX, length));
      assert.equal(new Set(view.rows.map((row) => row.step)).size, view.rows.length);
      assert.equal(view.rows[0]?.step, String(length));
      if (length > 1) assert.equal(view.rows.at(-1)?.step, "1");
    }),
    { seed: 7 },
  );
});
