// Tests of what limits ask for: each alone, their order, and that a battery between its thresholds never flaps.
import assert from "node:assert/strict";
import fc from "fast-check";
import { decide, DUTY_MIN, FREE, type Limits, NO_LIMITS, readLimits, type Situation } from "./limits.ts";

const calm: Situation = {
  ...{ plugged: true, battery: 0.8, visible: true, idle: true, minute: 12 * 60 },
  ...{ sentToday: 0, receivedToday: 0 },
};

function why(limits: Partial<Limits>, now: Partial<Situation> = {}) {
  return decide({ ...NO_LIMITS, ...limits }, { ...calm, ...now }).why;
}

Deno.test("each limit alone: it holds, and it lets go", function test() {
  const thresholds = { battery: { stop: 0.3, resume: 0.5 } };
  assert.equal(why({}, { plugged: false, battery: 0, visible: false, idle: false }), null);
  assert.equal(why({ pluggedOnly: true }, { plugged: false }), "unplugged");
  assert.equal(why({ pluggedOnly: true }), null);
  assert.equal(why(thresholds, { plugged: false, battery: 0.29 }), "battery");
  assert.equal(why(thresholds, { plugged: false, battery: 0.3 }), null);
  assert.equal(why(thresholds, { battery: 0.1 }), null, "a battery that is charged may be used");
  assert.equal(why({ onlyVisible: true }, { visible: false }), "hidden");
  assert.equal(why({ onlyIdle: true }, { idle: false }), "in-use");
  assert.equal(why({ dayUpBytes: 100 }, { sentToday: 99 }), null);
  assert.equal(why({ dayUpBytes: 100 }, { sentToday: 100 }), "day-up");
  assert.equal(why({ dayDownBytes: 100 }, { receivedToday: 101 }), "day-down");
});

Deno.test("what cannot be known limits nothing", function test() {
  const strict = { pluggedOnly: true, battery: { stop: 0.5, resume: 0.6 }, onlyIdle: true };
  assert.equal(why(strict, { plugged: null, battery: null, idle: null }), null);
});

Deno.test("hours end at their end, and may span midnight", function test() {
  const day = { hours: { from: 9 * 60, to: 17 * 60 } };
  const night = { hours: { from: 22 * 60, to: 6 * 60 } };
  const at = (minute: number) => [why(day, { minute }), why(night, { minute })];
  assert.deepEqual(at(9 * 60), [null, "hours"]);
  assert.deepEqual(at(17 * 60 - 1), [null, "hours"]);
  assert.deepEqual(at(17 * 60), ["hours", "hours"]);
  assert.deepEqual(at(22 * 60), ["hours", null]);
  assert.deepEqual(at(6 * 60 - 1), ["hours", null]);
  assert.deepEqual(at(6 * 60), ["hours", "hours"]);
  assert.equal(why({ hours: { from: 60, to: 60 } }, { minute: 60 }), null, "no hours at all is no limit");
});

Deno.test("a cap of the day ends the visit, everything else only interrupts it", function test() {
  const limits = { ...NO_LIMITS, dayUpBytes: 1, pluggedOnly: true };
  assert.deepEqual(decide(limits, { ...calm, sentToday: 1, plugged: false }), {
    verdict: "finish",
    why: "day-up",
  });
  assert.equal(decide(limits, { ...calm, plugged: false }).verdict, "wait");
});

Deno.test("a battery that waits goes on at the upper threshold only, and stops at the lower only", function test() {
  const limits = { ...NO_LIMITS, battery: { stop: 0.3, resume: 0.5 } };
  const level = fc.integer({ min: 0, max: 100 }).map((percent) => percent / 100);
  fc.assert(
    fc.property(fc.array(level, { minLength: 1, maxLength: 40 }), function flaps(levels) {
      let ruling = FREE;
      for (const battery of levels) {
        const next = decide(limits, { ...calm, plugged: false, battery }, ruling);
        if (ruling.verdict === "run" && next.verdict === "wait") assert.ok(battery < 0.3);
        if (ruling.verdict === "wait" && next.verdict === "run") assert.ok(battery >= 0.5);
        ruling = next;
      }
    }),
    { seed: 7, numRuns: 200 },
  );
});

Deno.test("kept limits are read whatever they have become", function test() {
  fc.assert(
    fc.property(fc.anything(), function reads(value) {
      const limits = readLimits(value);
      assert.ok(limits.duty >= DUTY_MIN && limits.duty <= 1);
      assert.deepEqual(readLimits(limits), limits);
    }),
    { seed: 7, numRuns: 300 },
  );
  assert.deepEqual(readLimits(null), NO_LIMITS);
  assert.deepEqual(readLimits({ duty: 0, battery: { stop: 0.6, resume: 0.2 }, upBytesPerS: 1 }), {
    ...NO_LIMITS,
    duty: DUTY_MIN,
    battery: { stop: 0.6, resume: 0.6 },
    upBytesPerS: 50_000,
  });
  const typical: Limits = {
    ...{ duty: 0.4, pluggedOnly: true, memoryBytes: 5e8, upBytesPerS: 1e6, downBytesPerS: 2e6 },
    ...{ dayUpBytes: 1e9, dayDownBytes: 2e9, battery: { stop: 0.3, resume: 0.6 } },
    ...{ onlyIdle: true, onlyVisible: true, hours: { from: 60, to: 120 } },
  };
  assert.deepEqual(readLimits(JSON.parse(JSON.stringify(typical))), typical);
});
