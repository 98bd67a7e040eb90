// Tests of the form of limits: what is shown is what holds, what is typed is what is meant, and what cannot hold says so.
import assert from "node:assert/strict";
import fc from "fast-check";
import { DUTY_MIN, type Limits, NO_LIMITS } from "../peer/wire/limits.ts";
import { strict } from "./fixtures_tab.ts";
import {
  type Features,
  type Field,
  type FieldId,
  limitsView,
  rulingSentence,
  withField,
} from "./view_model_tab_limits.ts";

const all: Features = { battery: true, idle: true, wakeLock: true };

function fieldsOf(limits: Limits, features = all): Field[] {
  const { simple, advanced } = limitsView(limits, features);
  return [...simple, ...advanced.flatMap(({ fields }) => fields)];
}

function shown(field: Field): string {
  return field.kind === "check" ? String(field.on) : field.value;
}

Deno.test("what a field shows, typed in again, changes nothing", function test() {
  for (const limits of [NO_LIMITS, strict]) {
    for (const field of fieldsOf(limits)) {
      assert.deepEqual(withField(limits, field.id, shown(field)), limits, field.id);
    }
  }
});

Deno.test("the form filled in field by field gives the limits it shows", function test() {
  let limits = NO_LIMITS;
  for (const field of fieldsOf(strict)) limits = withField(limits, field.id, shown(field));
  assert.deepEqual(limits, strict);
  for (const field of fieldsOf(strict)) {
    const none = field.kind === "check" ? "false" : field.kind === "range" ? "100" : "";
    limits = withField(limits, field.id, none);
  }
  assert.deepEqual(limits, NO_LIMITS);
});

Deno.test("whatever is typed, the limits make sense", function test() {
  const ids = fieldsOf(NO_LIMITS).map(({ id }) => id);
  fc.assert(
    fc.property(
      fc.array(fc.tuple(fc.constantFrom(...ids), fc.oneof(fc.string(), fc.integer().map(String))), {
        maxLength: 8,
      }),
      function sensible(changes) {
        const limits = changes.reduce((kept, [id, text]) => withField(kept, id, text), NO_LIMITS);
        assert.ok(limits.duty >= DUTY_MIN && limits.duty <= 1);
        assert.ok(limits.upBytesPerS === null || limits.upBytesPerS >= 50_000);
        assert.ok(limits.battery === null || limits.battery.stop <= limits.battery.resume);
        assert.ok(limits.hours === null || limits.hours.from < 1440 && limits.hours.to < 1440);
      },
    ),
    { seed: 11, numRuns: 200 },
  );
});

Deno.test("one threshold brings the other; one time alone limits nothing yet", function test() {
  assert.deepEqual(withField(NO_LIMITS, "batteryStop", "30").battery, { stop: 0.3, resume: 0.4 });
  assert.deepEqual(withField(NO_LIMITS, "batteryResume", "50").battery, { stop: 0.4, resume: 0.5 });
  assert.deepEqual(withField(strict, "batteryStop", "70").battery, { stop: 0.7, resume: 0.7 });
  assert.deepEqual(withField(NO_LIMITS, "from", "22:30").hours, { from: 1350, to: 1350 });
  assert.equal(withField(strict, "to", "").hours, null);
});

Deno.test("what this browser cannot tell is switched off and says why", function test() {
  const bare = { battery: false, idle: false, wakeLock: false };
  const off = fieldsOf(NO_LIMITS, bare).filter(({ disabled }) => disabled);
  assert.deepEqual(off.map(({ id }) => id), ["pluggedOnly", "batteryStop", "batteryResume", "onlyIdle"]);
  assert.ok(off.some(({ help }) => /does not tell how the computer is powered/.test(help)));
  assert.ok(fieldsOf(NO_LIMITS).every(({ disabled }) => !disabled));
});

Deno.test("every reason to wait has a sentence that says when it ends", function test() {
  const reasons = ["battery", "unplugged", "hours", "hidden", "in-use", "day-up", "day-down"] as const;
  for (const why of reasons) {
    assert.match(rulingSentence({ verdict: "wait", why }, strict), /goes on (at|when)|ends at midnight/, why);
  }
  assert.equal(rulingSentence({ verdict: "run", why: null }, strict), "");
  assert.match(rulingSentence({ verdict: "wait", why: "hours" }, strict), /22:00/);
});

Deno.test("the summary names each limit that is set", function test() {
  assert.equal(limitsView(NO_LIMITS, all).summary, "No limits are set.");
  const { summary } = limitsView(strict, all);
  const parts = [
    "50% of",
    "800 MB",
    "500 kB/s up",
    "2 MB/s down",
    "2 GB up",
    "4 GB down",
    "plugged",
    "30%",
    "22:00",
  ];
  for (const part of [...parts, "06:30", "in front", "idle"]) assert.ok(summary.includes(part), part);
  const ids: FieldId[] = fieldsOf(strict).map(({ id }) => id);
  assert.equal(new Set(ids).size, ids.length);
});
