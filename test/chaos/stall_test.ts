// The stall of a departure out of commit times: detection counts, what was normal before does not.
import assert from "node:assert/strict";
import { quantile, stallMs, stallRows } from "./stall.ts";

/** Commits every `gap` ms up to `count`, then after each of the `later` gaps. */
function commits(gap: number, count: number, later: number[]): number[] {
  const times = Array.from({ length: count }, (_, i) => i * gap);
  for (const each of later) times.push(times.at(-1)! + each);
  return times;
}

Deno.test("a run that goes on as before has no stall", () => {
  assert.equal(stallMs(commits(100, 30, [100, 100, 100, 100]), { fromMs: 2950, untilMs: 2960 }), 0);
});

Deno.test("the stall is the excess of the touched gap, detection included", () => {
  const times = commits(100, 30, [1600, 100, 100, 100]);
  assert.equal(stallMs(times, { fromMs: 2950, untilMs: 4000 }), 1500);
  assert.equal(stallMs(times, { fromMs: 2901, untilMs: 2902 }), 1500, "noticed early, repaired late");
});

Deno.test("a repair that shows one gap later counts, and so does one before the run has noticed", () => {
  assert.equal(stallMs(commits(100, 30, [100, 700, 100, 100]), { fromMs: 2950, untilMs: 2960 }), 600);
  const slow = commits(100, 30, [100, 100, 100, 100, 900, 100]);
  assert.equal(stallMs(slow, { fromMs: 2950, untilMs: 4150 }), 800);
  assert.equal(stallMs(slow, { fromMs: 2950, untilMs: 2960 }), 0, "another departure's gap");
});

Deno.test("one slow gap before the departure does not change what is normal", () => {
  const times = [...commits(100, 20, [5000]), ...commits(100, 20, [1100, 100, 100]).map((at) => at + 7000)];
  assert.equal(stallMs(times, { fromMs: 8950, untilMs: 8960 }), 1000);
});

Deno.test("without commits before and after, the stall is unknown", () => {
  const times = commits(100, 30, []);
  assert.equal(stallMs(times, { fromMs: 2950, untilMs: 2960 }), null);
  assert.equal(stallMs(times, { fromMs: 10, untilMs: 2000 }), null);
  assert.equal(stallMs(times, { fromMs: 2700, untilMs: 2750 }), null, "two gaps after it, three are needed");
  assert.equal(stallMs([], { fromMs: 1, untilMs: 2 }), null);
});

Deno.test("quantiles are values that occurred", () => {
  const values = [5, 1, 4, 2, 3];
  assert.deepEqual([0, 0.5, 0.8, 0.95, 1].map((q) => quantile(values, q)), [1, 3, 4, 5, 5]);
  assert.equal(quantile([], 0.5), null);
});

Deno.test("rows are grouped by kind and leave out what is unknown", () => {
  const rows = stallRows([
    ...[{ kind: "kill", ms: 10 }, { kind: "leave", ms: 3 }, { kind: "kill", ms: 30 }],
    ...[{ kind: "kill", ms: null }, { kind: "freeze", ms: null }],
  ]);
  assert.deepEqual(rows, [
    { kind: "kill", count: 2, p50Ms: 10, p95Ms: 30, maxMs: 30 },
    { kind: "leave", count: 1, p50Ms: 3, p95Ms: 3, maxMs: 3 },
  ]);
});
