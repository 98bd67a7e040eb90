// Tests of the detector: quick for steady peers, patient with starved ones, never quicker than its floor.
import assert from "node:assert/strict";
import { beat, type Beats, GAPS_KEPT, silenceLimitMs } from "./detect.ts";

const MOST = 15_000;

Deno.test("nothing is known of a newcomer: the longest limit holds", () => {
  assert.equal(silenceLimitMs([], MOST), MOST);
  assert.equal(silenceLimitMs(new Array(15).fill(500), MOST), MOST);
});

Deno.test("a steady peer is missed after seconds, a starved one gets its time, none more than the most", () => {
  assert.equal(silenceLimitMs(new Array(16).fill(500), MOST), 5_500);
  const starved = Array.from({ length: 32 }, (_, i) => i % 2 === 0 ? 1_000 : 2_000);
  assert.equal(silenceLimitMs(starved, MOST), 5_000 + 2_000 + 6 * 1_000);
  assert.equal(silenceLimitMs(new Array(32).fill(60_000), MOST), MOST);
});

Deno.test("one long stall among many beats changes the limit little", () => {
  const gaps = [...new Array(31).fill(500), 9_000];
  assert.equal(silenceLimitMs(gaps, MOST), 5_500);
});

Deno.test("gaps are kept up to their number", () => {
  let beats: Beats | undefined;
  for (let i = 0; i <= GAPS_KEPT + 10; i++) beats = beat(beats, i * 500);
  assert.equal(beats?.gaps.length, GAPS_KEPT);
  assert.equal(beats?.at, (GAPS_KEPT + 10) * 500);
});
