// The pulse of a link under a hand-made clock: what counts as life, how the limit follows the past, and that a thread's own
// stop is never held against the other end.
import assert from "node:assert/strict";
import fc from "fast-check";
import {
  PAST_NEEDED_MS,
  PING_INTERVAL_MS,
  Pulse,
  SILENCE_LEAST_MS,
  SILENCE_MOST_MS,
  SILENCE_UNKNOWN_MS,
} from "./pulse.ts";

/** Looks at its times until `until`; the silence and the time of the first look that found too much of it. */
function watch(pulse: Pulse, from: number, until: number): { at: number; silence: number } | null {
  for (let at = from + PING_INTERVAL_MS; at <= until; at += PING_INTERVAL_MS) {
    const silence = pulse.look(at, 0, 0);
    if (silence !== null) return { at, silence };
  }
  return null;
}

/** A link that heard something at each look for long enough to have a past. */
function living(): { pulse: Pulse; now: number } {
  const pulse = new Pulse(0);
  let now = 0;
  while (now < PAST_NEEDED_MS) {
    now += PING_INTERVAL_MS;
    assert.equal(pulse.look(now, 0, 0), null);
    pulse.heard(now + 5);
  }
  return { pulse, now };
}

Deno.test("pulse: a new link gets more time than one with a past", () => {
  const fresh = watch(new Pulse(0), 0, 20_000);
  assert.ok(fresh!.silence > SILENCE_UNKNOWN_MS && fresh!.silence <= SILENCE_UNKNOWN_MS + PING_INTERVAL_MS);
  const { pulse, now } = living();
  const old = watch(pulse, now, now + 20_000);
  assert.ok(old!.silence > SILENCE_LEAST_MS && old!.silence <= SILENCE_LEAST_MS + PING_INTERVAL_MS);
});

Deno.test("pulse: a stall that ended makes the next one bearable, up to the most and for a while", () => {
  const { pulse, now } = living();
  pulse.heard(now + 1_900);
  assert.equal(pulse.limitMs(now + 1_900), 2 * (1_900 - 5));
  pulse.heard(now + 20_000);
  assert.equal(pulse.limitMs(now + 20_000), SILENCE_MOST_MS);
  assert.equal(pulse.limitMs(now + 200_000), SILENCE_LEAST_MS);
});

Deno.test("pulse: a look that comes late is this thread's own stop, and the count starts again", () => {
  const { pulse, now } = living();
  const back = now + 30_000;
  assert.equal(pulse.look(back, 0, 0), null);
  const found = watch(pulse, back, back + 20_000);
  assert.ok(found!.at > back + SILENCE_LEAST_MS);
});

Deno.test("pulse: only a backlog that shrinks is a sign of life, for each of our own pings leaves the buffer", () => {
  const { pulse, now } = living();
  let at = now;
  let buffered = 400_000;
  for (let i = 0; i < 40; i++, buffered -= 10_000) {
    at += PING_INTERVAL_MS;
    assert.equal(pulse.look(at, 400_000, buffered), null, "a draining link was given up");
  }
  let sent = 400_000;
  let silence: number | null = null;
  for (let i = 0; i < 40 && silence === null; i++) {
    at += PING_INTERVAL_MS;
    sent += 16;
    silence = pulse.look(at, sent, 0);
  }
  assert.ok(silence !== null && silence <= SILENCE_LEAST_MS + 2 * PING_INTERVAL_MS, `${silence}`);
});

Deno.test("pulse: whatever the past, a dead link is found within the most, and one that speaks in time never", () => {
  const gaps = fc.array(fc.integer({ min: 1, max: 1_900 }), { minLength: 1, maxLength: 80 });
  const property = fc.property(gaps, (list) => {
    const pulse = new Pulse(0);
    let now = 0;
    let look = PING_INTERVAL_MS;
    for (const gap of list) {
      now += gap;
      for (; look <= now; look += PING_INTERVAL_MS) assert.equal(pulse.look(look, 0, 0), null);
      pulse.heard(now);
    }
    const found = watch(pulse, look - PING_INTERVAL_MS, now + 20_000);
    assert.ok(found !== null && found.silence <= SILENCE_MOST_MS + PING_INTERVAL_MS);
    assert.ok(found.silence > SILENCE_LEAST_MS);
  });
  fc.assert(property, { seed: 20_261, numRuns: 500 });
});
