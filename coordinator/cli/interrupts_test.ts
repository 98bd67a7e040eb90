// The echo rule of Ctrl-C: one press through several processes is one press.
import assert from "node:assert/strict";
import { ECHO_MS, PressCounter } from "./interrupts.ts";

Deno.test("the first press is soft, its echoes are nothing, the second is hard", () => {
  const counter = new PressCounter();
  assert.equal(counter.press(1000), "soft");
  assert.equal(counter.press(1001), "echo");
  assert.equal(counter.press(1000 + ECHO_MS), "echo");
  assert.equal(counter.press(1000 + 2 * ECHO_MS), "hard");
});

Deno.test("a press at time zero counts too", () => {
  const counter = new PressCounter();
  assert.equal(counter.press(0), "soft");
  assert.equal(counter.press(ECHO_MS), "hard");
});
