// The estimate behind a late question, against operations whose true time changes.
import assert from "node:assert/strict";
import { Patience } from "./patience.ts";

/** Runs an operation that takes `trueMs` on the device; what passed from its submit until its bytes were here. */
function run(patience: Patience, operation: string, trueMs: number): { restMs: number; polledMs: number } {
  const restMs = patience.before(operation);
  const waited = { restMs, polledMs: Math.max(0.1, trueMs - restMs) };
  patience.took(operation, waited);
  return waited;
}

Deno.test("an operation is asked for at once until it has run, and no timer is set for less than one is good for", () => {
  const patience = new Patience();
  assert.equal(patience.before("forward 0"), 0);
  run(patience, "forward 0", 2000);
  assert.equal(patience.before("forward 0"), 0);
  run(patience, "forward 0", 100);
  assert.equal(patience.before("forward 0"), 80);
  assert.equal(patience.before("backward 0"), 0);
  for (let i = 0; i < 3; i++) run(patience, "backward 0", 2.4);
  assert.equal(patience.before("backward 0"), 0);
});

Deno.test("a steady operation is polled for a fifth of its time and never waited for in vain", () => {
  const patience = new Patience();
  for (let i = 0; i < 2; i++) run(patience, "forward 0", 50);
  for (let i = 0; i < 10; i++) {
    const { restMs, polledMs } = run(patience, "forward 0", 50);
    assert.ok(Math.abs(restMs - 40) < 1e-9 && Math.abs(polledMs - 10) < 1e-9, `${restMs} + ${polledMs}`);
  }
});

Deno.test("an operation that was slow once is asked for in time soon after", () => {
  const patience = new Patience();
  for (let i = 0; i < 2; i++) run(patience, "forward 0", 2000);
  const waits = Array.from({ length: 8 }, () => run(patience, "forward 0", 30));
  const { restMs, polledMs } = waits.at(-1)!;
  assert.ok(restMs + polledMs <= 30.1, `still ${restMs + polledMs} ms for an operation of 30`);
});
