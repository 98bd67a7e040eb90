// What is told of links: the shortest of the late round trips, no link that never answered, and never too many.
import assert from "node:assert/strict";
import { LinkMeter } from "./link_meter.ts";
import type { LinkStats } from "./net/link.ts";
import { MEASURES_MAX } from "./wire/measures.ts";

function stats(rttMs: number, upBytesPerS = 0): LinkStats {
  return { path: "direct", rttMs, upBytesPerS, bytesUp: 0, bytesDown: 0, framesUp: 0, framesDown: 0 };
}

Deno.test("link meter: the shortest of the last sixteen round trips, the newest rate", () => {
  const meter = new LinkMeter();
  for (const rttMs of [30, 500, 40]) meter.observe({ a: stats(rttMs) });
  assert.deepEqual(meter.figures({ a: stats(40, 7) }), [{
    peer: "a",
    rttMs: 30,
    upBytesPerS: 7,
    path: "direct",
  }]);
  for (let i = 0; i < 16; i++) meter.observe({ a: stats(60 + i) });
  assert.equal(meter.figures({ a: stats(60) })[0]!.rttMs, 60, "an old round trip still counts");
});

Deno.test("link meter: a link without an answer is not told of, one that is gone is forgotten", () => {
  const meter = new LinkMeter();
  meter.observe({ a: stats(0), b: stats(5) });
  assert.deepEqual(meter.figures({ a: stats(0), b: stats(5) }).map((it) => it.peer), ["b"]);
  meter.observe({ a: stats(0) });
  assert.deepEqual(meter.figures({ b: stats(5) }), []);
});

Deno.test("link meter: no more links than a message may hold", () => {
  const meter = new LinkMeter();
  const many = Object.fromEntries(Array.from({ length: MEASURES_MAX + 3 }, (_, i) => [`p${i}`, stats(1)]));
  meter.observe(many);
  assert.equal(meter.figures(many).length, MEASURES_MAX);
});
