// The estimate behind a late question: from earlier runs, quick to fall, slow to rise.
import assert from "node:assert/strict";
import { Patience } from "./patience.ts";

Deno.test("an operation is asked for at once until it has run, and never wakes a timer for less than one is good for", () => {
  const patience = new Patience();
  assert.equal(patience.before("forward 0"), 0);
  patience.took("forward 0", 100);
  assert.equal(patience.before("forward 0"), 90);
  assert.equal(patience.before("backward 0"), 0);
  patience.took("backward 0", 2.1);
  assert.equal(patience.before("backward 0"), 0);
});

Deno.test("one quick run shortens the wait, one slow run lengthens it by a twentieth at most", () => {
  const patience = new Patience();
  patience.took("forward 0", 100);
  patience.took("forward 0", 20);
  assert.equal(patience.before("forward 0"), 18);
  patience.took("forward 0", 1000);
  assert.ok(Math.abs(patience.before("forward 0") - 18 * 1.05) < 1e-9);
});
