// The recovery benchmark's flags, tables and summary; the measurement itself needs processes and proves nothing by passing.
import assert from "node:assert/strict";
import { overheadOf, overheadTable, parseFlags, stallTable, summarise } from "./recovery.ts";
import { readConfig } from "../peer/model/config.ts";
import { type ArmResult, ARMS, type Kind, type Measured } from "./recovery_measure.ts";

function measured(kind: Kind, stalls: (number | null)[], lostSteps = 0): Measured[] {
  return stalls.map((stallMs) => ({ kind, stallMs, noticedMs: 40, lostSteps, reassigned: 3 }));
}

const MEASURED: ArmResult[] = [
  { name: "none", base: "none", peers: 2, stepMs: [100, 200, 100] },
  { name: "shadow", base: "none", peers: 2, stepMs: [104, 210, 150] },
  { name: "replica + parity", base: "shadow", peers: 2, stepMs: [208, 210, 150] },
];

Deno.test("the summary takes the worse kind of kill, and the overhead round by round", () => {
  const departures = [
    ...measured("killed-tab", [900, 1500, null]),
    ...measured("killed-deno", [400, 1800]),
    ...measured("goodbye-tab", [300, 200]),
    ...measured("frozen-deno", [9000], 2),
  ];
  const { shadow_overhead, ...rest } = summarise({ departures }, MEASURED);
  assert.deepEqual(rest, { lost_steps: 2, stall_killed_p95_s: 1.8, stall_goodbye_p95_s: 0.3 });
  assert.ok(Math.abs(shadow_overhead! - 0.05) < 1e-9, `${shadow_overhead}`);
});

Deno.test("what was not measured is null, not zero", () => {
  const { lost_steps, ...rest } = summarise({ departures: measured("left-tab", [5]) }, []);
  assert.equal(lost_steps, 0);
  assert.deepEqual(rest, { stall_killed_p95_s: null, stall_goodbye_p95_s: null, shadow_overhead: null });
  assert.equal(overheadOf("parity", MEASURED), null);
});

Deno.test("the tables have a row per kind and per level", () => {
  const departures = [...measured("killed-tab", [900, 1500]), ...measured("left-deno", [10], 1)];
  const lines = stallTable({ departures, normalStepMs: 51.4, counters: {}, failure: null }).split("\n");
  assert.equal(lines[0], "normal step 51 ms");
  assert.match(lines[2]!, /^killed-tab +2 +0\.90 +1\.50 +1\.50 +0\.04 +6 +0$/);
  assert.match(lines[3]!, /^left-deno +1 +0\.01 +0\.01 +0\.01 +0\.04 +3 +1$/);
  const levels = overheadTable(MEASURED).split("\n");
  assert.match(levels[2]!, /^shadow +2 +150 +5\.0 % over none$/);
  assert.match(levels[3]!, /^replica \+ parity +2 +208 +0\.0 % over shadow$/);
});

Deno.test("a run accepts every level's configuration, and every level's base is a level", () => {
  for (const { base, config } of ARMS) {
    assert.doesNotThrow(() => readConfig(config));
    assert.ok(ARMS.some(({ name }) => name === base), base);
  }
});

Deno.test("flags have defaults and bounds, --quick changes the defaults only, unknown ones are refused", () => {
  const { kinds, ...rest } = parseFlags(["--json", "--quick", "--rounds=4"]);
  assert.equal(kinds.length, 6);
  assert.deepEqual(rest, {
    ...{ quick: true, json: true, help: false, departures: 3, rounds: 4, steps: 15, seed: 1 },
  });
  assert.deepEqual(parseFlags(["--kinds=left-tab,killed-deno"]).kinds, ["left-tab", "killed-deno"]);
  assert.throws(() => parseFlags(["--kinds=left"]), /--kinds must name some of killed-deno, .* got "left"/);
  assert.throws(() => parseFlags(["--departures=-1"]), /--departures must be a whole number from 0 to 1000/);
  assert.throws(() => parseFlags(["--steps=1"]), /--steps must be .* got "1"/);
  assert.throws(() => parseFlags(["--round=3"]), /unknown flag "--round" \(did you mean "--rounds"\?\)/);
  assert.throws(() => parseFlags(["more"]), /see --help/);
});
