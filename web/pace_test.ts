// Tests of how often the pages ask and draw, on a clock that only the test moves.
import assert from "node:assert/strict";
import fc from "fast-check";
import { DRAW_MS_MIN, latestOnly, poll, POLL_MS, POLL_MS_MAX, pollDelayMs, type Timers } from "./pace.ts";

class FakeTimers implements Timers {
  #nowMs = 0;
  #waiting: { atMs: number; run: () => void }[] = [];

  now(): number {
    return this.#nowMs;
  }

  after(ms: number, run: () => void): void {
    this.#waiting.push({ atMs: this.#nowMs + ms, run });
  }

  advance(ms: number): void {
    const untilMs = this.#nowMs + ms;
    while (true) {
      this.#waiting.sort((a, b) => a.atMs - b.atMs);
      const next = this.#waiting[0];
      if (!next || next.atMs > untilMs) break;
      this.#waiting.shift();
      this.#nowMs = next.atMs;
      next.run();
    }
    this.#nowMs = untilMs;
  }
}

Deno.test("polls back off to a bound and start at one second", function test() {
  assert.equal(pollDelayMs(0), POLL_MS);
  assert.deepEqual([1, 2, 3].map(pollDelayMs), [2000, 4000, 8000]);
  assert.equal(pollDelayMs(1000), POLL_MS_MAX);
});

Deno.test("a success ends the back-off, and stop ends the polling", async function test() {
  const outcomes = ["failed", "failed", "ok", "failed", "stop"] as const;
  const waits: number[] = [];
  let asked = 0;
  await poll(
    () => Promise.resolve(outcomes[asked++] ?? "stop"),
    (ms) => Promise.resolve(void waits.push(ms)),
  );
  assert.deepEqual(waits, [2000, 4000, 1000, 2000]);
  assert.equal(asked, outcomes.length);
});

Deno.test("the first value shows at once, a burst only as its newest value", function test() {
  const timers = new FakeTimers();
  const seen: number[] = [];
  const offer = latestOnly((value: number) => seen.push(value), timers);
  timers.advance(1);
  [1, 2, 3].forEach(offer);
  assert.deepEqual(seen, [1]);
  timers.advance(DRAW_MS_MIN);
  assert.deepEqual(seen, [1, 3]);
  timers.advance(DRAW_MS_MIN);
  offer(4);
  assert.deepEqual(seen, [1, 3, 4]);
});

Deno.test("never more than four updates in a second, and the last value always arrives", function test() {
  fc.assert(
    fc.property(
      fc.array(fc.integer({ min: 0, max: 400 }), { minLength: 1, maxLength: 60 }),
      function run(gaps) {
        const timers = new FakeTimers();
        const shown: { atMs: number; value: number }[] = [];
        const offer = latestOnly((value: number) => shown.push({ atMs: timers.now(), value }), timers);
        gaps.forEach(function next(gap, index) {
          timers.advance(gap);
          offer(index);
        });
        timers.advance(DRAW_MS_MIN);
        assert.equal(shown.at(-1)?.value, gaps.length - 1);
        for (let i = 1; i < shown.length; i += 1) {
          assert.ok((shown[i]?.atMs ?? 0) - (shown[i - 1]?.atMs ?? 0) >= DRAW_MS_MIN);
        }
      },
    ),
    { seed: 11 },
  );
});
