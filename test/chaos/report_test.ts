// The soak's verdict: what counts as survived, and what the table says.
import assert from "node:assert/strict";
import { parseFlags } from "./main.ts";
import { reportOf, soakTable } from "./report.ts";
import type { SoakResult } from "./soak.ts";

const COMPARISON = { step: 900, found: "aa", expected: "aa", equal: true, losses: [] };

const RESULT: SoakResult = {
  seconds: 61.2,
  injuries: [
    { kind: "kill", stallMs: 1200, stepsLost: 0, mayLose: false },
    { kind: "kill", stallMs: null, stepsLost: 0, mayLose: false },
    { kind: "kill two", stallMs: 400, stepsLost: 7, mayLose: true },
  ],
  comparison: COMPARISON,
  failure: null,
  peerFailures: [],
};

Deno.test("losing both holders may cost steps; the run has survived", () => {
  const { summary, faults } = reportOf(RESULT, 5);
  assert.deepEqual(
    [summary.survived, summary.lost_steps, summary.lost_steps_beyond_promise, summary.faults],
    [true, 0, 7, 3],
  );
  assert.deepEqual(faults.map(({ kind, count, stepsLost }) => [kind, count, stepsLost]), [
    ["kill", 1, 0],
    ["kill two", 1, 7],
  ]);
});

Deno.test("a lost step, other weights and a failed peer are each a failure, and the table says which", () => {
  const lost = { ...RESULT, injuries: [{ kind: "leave", stallMs: 10, stepsLost: 2, mayLose: false }] };
  assert.equal(reportOf(lost, 5).summary.survived, false);
  assert.match(soakTable(reportOf(lost, 5)), /1 faults in 61 s, 900 steps, 2 lost\n/);
  const other = { ...RESULT, comparison: { ...COMPARISON, expected: "bb", equal: false } };
  assert.equal(reportOf(other, 5).summary.survived, false);
  assert.match(soakTable(reportOf(other, 5)), /DIFFER .* aa, not bb/);
  const failed = { ...RESULT, peerFailures: ["peer 3 ended with exit code 1"] };
  assert.equal(reportOf(failed, 5).summary.survived, false);
  assert.match(soakTable(reportOf(failed, 5)), /\npeer 3 ended with exit code 1$/);
});

Deno.test("a run that did not recover says from what, and has neither steps nor hashes", () => {
  const report = reportOf({ ...RESULT, comparison: null, failure: "waited too long" }, 5);
  const { survived, steps, hash_equal } = report.summary;
  assert.deepEqual([survived, steps, hash_equal], [false, null, null]);
  assert.match(soakTable(report), /unknown steps, .*\nthe run did NOT recover: waited too long$/);
});

Deno.test("the table has a row per kind, in seconds", () => {
  const lines = soakTable(reportOf(RESULT, 5)).split("\n");
  assert.match(lines[0]!, /^fault +count +stall p50 s +p95 s +max s +steps lost$/);
  assert.match(lines[1]!, /^kill +1 +1\.20 +1\.20 +1\.20 +0$/);
  assert.match(lines.at(-2)!, /0 lost \(and 7 where both holders of a stage went\)$/);
});

Deno.test("flags have defaults and bounds, and unknown ones are refused with the remedy", () => {
  const { minutes, peers, tabs, seed, loopback } = parseFlags(["--minutes=0.5", "--tabs=0"]);
  assert.deepEqual({ minutes, peers, tabs, seed, loopback }, {
    ...{ minutes: 0.5, peers: 4, tabs: 0, seed: 1, loopback: false },
  });
  assert.throws(() => parseFlags(["--minutes=0"]), /--minutes must be a number from 0.1 to 10000, got "0"/);
  assert.throws(() => parseFlags(["--tabs=1.5"]), /--tabs must be a whole number .* got "1.5"/);
  assert.throws(() => parseFlags(["--peer=3"]), /unknown flag "--peer" \(did you mean "--peers"\?\)/);
  assert.throws(() => parseFlags(["more"]), /see --help/);
});
