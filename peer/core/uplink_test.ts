// The uplink's estimate: what was sent is a lower bound, except while the line is full.
import assert from "node:assert/strict";
import { UPLINK_LEAST_BYTES_PER_S, UplinkMeter } from "./uplink.ts";

const PRIOR = 1_000_000;

function link(bytesUp: number, rttMs = 20) {
  return { a: { bytesUp, rttMs } };
}

Deno.test("uplink: a window with more than was thought raises it, one with less changes nothing", () => {
  const meter = new UplinkMeter(PRIOR);
  meter.observe(link(0), 0);
  meter.observe(link(10), 1_000);
  assert.equal(meter.bytesPerS, PRIOR);
  meter.observe(link(4_000_010), 3_000);
  assert.equal(meter.bytesPerS, 2_000_000);
  meter.observe(link(4_000_020), 4_000);
  assert.equal(meter.bytesPerS, 2_000_000);
});

Deno.test("uplink: while round trips are far longer than usual, what is sent is what the line carries", () => {
  const meter = new UplinkMeter(PRIOR);
  meter.observe(link(0), 0);
  meter.observe(link(300_000, 500), 1_000);
  assert.equal(meter.bytesPerS, 300_000);
  // Four times the shortest, but not by much: a good line with a hiccup.
  meter.observe(link(310_000, 100), 2_000);
  assert.equal(meter.bytesPerS, 300_000);
  meter.observe(link(310_100, 500), 3_000);
  assert.equal(meter.bytesPerS, UPLINK_LEAST_BYTES_PER_S);
});

Deno.test("uplink: short windows, links that vanish and clocks that step back tell nothing", () => {
  const meter = new UplinkMeter(PRIOR);
  meter.observe(link(0), 0);
  meter.observe(link(9_000_000), 999);
  meter.observe(link(5_000_000), 1_000);
  assert.equal(meter.bytesPerS, 5_000_000);
  meter.observe({}, 3_000);
  meter.observe(link(900_000_000), 2_000);
  assert.equal(meter.bytesPerS, 5_000_000);
});
