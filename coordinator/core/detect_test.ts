// Tests of the detector: quick for steady peers, patient with starved ones, two levels in order, and blind to every time in
// which the coordinator itself stood still or its clock jumped.
import assert from "node:assert/strict";
import fc from "fast-check";
import {
  beat,
  type Beats,
  type Ear,
  GAPS_KEPT,
  GAPS_NEEDED,
  judge,
  listen,
  silenceLimits,
} from "./detect.ts";

const MOST = 15_000;
const PATIENCE = { mostMs: MOST, busyMs: 60_000 };
const TICK = 250;
const RUNS = { seed: 31, numRuns: 500 };

function repeated(gap: number, count = GAPS_NEEDED): number[] {
  return new Array(count).fill(gap);
}

Deno.test("nothing is known of a newcomer: the longest limit holds", () => {
  for (const gaps of [[], repeated(250, GAPS_NEEDED - 1)]) {
    assert.deepEqual(silenceLimits(gaps, MOST), { suspectMs: MOST, evictMs: MOST });
  }
});

Deno.test("a steady peer is suspected and missed within a second and a half, a starved one gets its time", () => {
  assert.deepEqual(silenceLimits(repeated(250), MOST), { suspectMs: 750, evictMs: 1_250 });
  const starved = Array.from({ length: 32 }, (_, i) => i % 2 === 0 ? 1_000 : 2_000);
  assert.deepEqual(silenceLimits(starved, MOST), {
    suspectMs: 500 + 2_000 + 6 * 1_000,
    evictMs: 1_000 + 2_000 + 6 * 1_000,
  });
  assert.equal(silenceLimits(repeated(60_000, 32), MOST).evictMs, MOST);
});

Deno.test("a stall that ended is no alarm when it comes again, and is forgotten with its gap", () => {
  const gaps = [1_900, ...repeated(250, GAPS_KEPT - 1)];
  assert.deepEqual(silenceLimits(gaps, MOST), { suspectMs: 1_900, evictMs: 3_800 });
  let beats: Beats = { at: 0, gaps };
  beats = beat(beats, 250);
  assert.equal(silenceLimits(beats.gaps, MOST).evictMs, 1_250);
});

Deno.test("gaps are kept up to their number", () => {
  let beats: Beats | undefined;
  for (let i = 0; i <= GAPS_KEPT + 10; i++) beats = beat(beats, i * 250);
  assert.equal(beats?.gaps.length, GAPS_KEPT);
  assert.equal(beats?.at, (GAPS_KEPT + 10) * 250);
  assert.deepEqual(beat(beats, 90_000, true), { at: 90_000, gaps: beats?.gaps });
});

Deno.test("first suspected, then gone; whoever compiles or loads has only the longer patience", () => {
  const beats = { at: 1_000, gaps: repeated(250) };
  const at = (silence: number, busyAt?: number) =>
    judge({ ...beats, ...(busyAt === undefined ? {} : { busyAt }) }, 1_000 + silence, PATIENCE);
  assert.deepEqual([750, 751, 1_250, 1_251].map((silence) => at(silence)), [
    ...["alive", "suspect", "suspect", "gone"],
  ]);
  for (const busyAt of [0, 1_000, 3_000]) {
    const verdicts = [1_251, 60_000, 60_001].map((silence) => at(silence, busyAt));
    assert.deepEqual(verdicts, ["alive", "alive", "gone"], `busy since ${busyAt}`);
  }
  assert.equal(at(3_000, 3_001), "gone", "it was silent before it had anything to compile");
});

Deno.test("any gaps: suspicion comes before eviction, and no gap that was seen is an alarm", () => {
  const gaps = fc.array(fc.integer({ min: 0, max: 7_000 }), { minLength: GAPS_NEEDED, maxLength: GAPS_KEPT });
  fc.assert(
    fc.property(gaps, (list) => {
      const { suspectMs, evictMs } = silenceLimits(list, MOST);
      assert.ok(suspectMs <= evictMs && evictMs <= MOST);
      assert.ok(suspectMs >= 500 && suspectMs >= Math.max(...list));
      assert.ok(evictMs >= 1_000 && evictMs >= Math.min(MOST, 2 * Math.max(...list)));
    }),
    RUNS,
  );
});

/** A peer that beats and a coordinator that ticks; the wall clock is moved by `jump` before one of the ticks. */
function verdictsAfter(jump: number, beating: boolean): string[] {
  let ear: Ear | null = null;
  let now = 1_000_000;
  let beats: Beats | undefined;
  const round = () => {
    ear = listen(ear, now += TICK);
    beats = beat(beats, ear.ms);
  };
  for (let i = 0; i < 40; i++) round();
  now += jump;
  const verdicts: string[] = [];
  for (let i = 0; i < 8; i++) {
    ear = listen(ear, now += TICK);
    verdicts.push(judge(beats!, ear!.ms, PATIENCE));
    if (beating) beats = beat(beats, ear!.ms);
  }
  return verdicts;
}

Deno.test("a coordinator that slept, or whose clock jumped either way, judges nobody by that time", () => {
  for (const jump of [0, 900, 5_000, 3_600_000, -3_600_000]) {
    assert.deepEqual(new Set(verdictsAfter(jump, true)), new Set(["alive"]), `a living peer, jump ${jump}`);
    assert.equal(verdictsAfter(jump, false).at(-1), "gone", `a dead peer, jump ${jump}`);
  }
});

Deno.test("a coordinator that is always late still finds the dead, only later", () => {
  let ear: Ear | null = null;
  let now = 0;
  const beats = { at: 0, gaps: repeated(250) };
  ear = listen(ear, now);
  let ticks = 0;
  while (judge(beats, ear.ms, PATIENCE) !== "gone") {
    ear = listen(ear, now += 2_000);
    ticks++;
  }
  assert.equal(ticks, 3);
});

Deno.test("listening time never goes back and never runs ahead of the clock", () => {
  fc.assert(
    fc.property(fc.array(fc.integer({ min: -10_000, max: 10_000 }), { maxLength: 50 }), (steps) => {
      let now = 50_000;
      let ear = listen(null, now);
      for (const step of steps) {
        const before = ear;
        ear = listen(ear, now += step);
        assert.ok(ear.ms >= before.ms && ear.ms - before.ms <= Math.max(0, step));
      }
    }),
    RUNS,
  );
});
