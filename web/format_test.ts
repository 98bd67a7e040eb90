// Tests of how numbers are written: rounding never shows a figure of four digits, and nothing is ever blank.
import assert from "node:assert/strict";
import fc from "fast-check";
import {
  bytes,
  clock,
  count,
  duration,
  layers,
  loss,
  magnitude,
  NOT_YET,
  parametersText,
  percent,
  plural,
  sentenceCase,
  significant,
  trainingText,
} from "./format.ts";

const SEED = { seed: 20260314 };

Deno.test("bytes use decimal units and three figures", function test() {
  assert.equal(bytes(0), "0 B");
  assert.equal(bytes(999), "999 B");
  assert.equal(bytes(1000), "1 kB");
  assert.equal(bytes(3_400_000), "3.4 MB");
  assert.equal(bytes(999_999), "1 MB");
  assert.equal(bytes(25_440_000), "25.4 MB");
  assert.equal(bytes(-5), "0 B");
});

Deno.test("magnitudes are words", function test() {
  assert.equal(magnitude(428_800), "429 thousand");
  assert.equal(magnitude(6_360_000), "6.36 million");
  assert.equal(magnitude(12), "12");
});

Deno.test("what is trained is said with what stands beside it", function test() {
  assert.equal(parametersText({ params: 12_000 }), "12 thousand parameters");
  const run = { params: 12_000, baseParams: 1_200_000 };
  assert.equal(parametersText(run), "12 thousand parameters of adapters beside 1.2 million frozen ones");
  assert.equal(trainingText({ params: 12_000 }), "training a language model with 12 thousand parameters");
  assert.equal(
    trainingText(run),
    "fine-tuning a language model with 1.2 million parameters (12 thousand more are trained)",
  );
});

Deno.test("a scaled figure always lies below 1000, up to the largest unit", function test() {
  fc.assert(
    fc.property(fc.double({ min: 0, max: 9e14, noNaN: true }), function below(value) {
      const figure = Number(bytes(value).split(" ")[0]);
      assert.ok(figure < 1000, bytes(value));
    }),
    SEED,
  );
});

Deno.test("durations change unit without a gap", function test() {
  assert.equal(duration(0.42), "0.4 ms");
  assert.equal(duration(182.4), "182 ms");
  assert.equal(duration(999.6), "1 s");
  assert.equal(duration(1440), "1.4 s");
  assert.equal(duration(59_990), "1 min 0 s");
  assert.equal(duration(125_000), "2 min 5 s");
  assert.equal(duration(3 * 3_600_000 + 10 * 60_000), "3 h 10 min");
  assert.equal(duration(48 * 3_600_000 - 60_000), "47 h 59 min");
  assert.equal(duration(153 * 3_600_000 + 53 * 60_000), "6 days 9 h");
  assert.equal(duration(NaN), NOT_YET);
});

Deno.test("missing values are words", function test() {
  assert.equal(loss(null), NOT_YET);
  assert.equal(loss(undefined), NOT_YET);
  assert.equal(loss(NaN), NOT_YET);
  assert.equal(loss(1.4478), "1.448");
  assert.equal(significant(null), NOT_YET);
  assert.equal(significant(Infinity), NOT_YET);
});

Deno.test("small significant values are written in powers of ten", function test() {
  assert.equal(significant(5.82e-4), "5.82e-4");
  assert.equal(significant(0.73123), "0.7312");
  assert.equal(significant(0), "0");
});

Deno.test("100% means complete", function test() {
  assert.equal(percent(1999, 2000), "99%");
  assert.equal(percent(2000, 2000), "100%");
  assert.equal(percent(3000, 2000), "100%");
  assert.equal(percent(1, 0), "0%");
});

Deno.test("counts, plurals and layers read as a person counts", function test() {
  assert.equal(count(1_234_567), "1,234,567");
  assert.equal(plural(1, "peer"), "1 peer");
  assert.equal(plural(0, "peer"), "0 peers");
  assert.equal(plural(3, "micro-batch"), "3 micro-batches");
  assert.equal(layers(2, 4), "layers 3 to 4");
  assert.equal(layers(2, 3), "layer 3");
  assert.equal(layers(2, 2), "no layers");
});

Deno.test("clock times have eight characters", function test() {
  assert.match(clock(Date.UTC(2026, 2, 14, 9, 26, 53)), /^\d\d:26:53$/);
});

Deno.test("a typed name may begin a sentence", function test() {
  assert.equal(sentenceCase("the demo on this computer"), "The demo on this computer");
  assert.equal(sentenceCase("élan"), "Élan");
  assert.equal(sentenceCase(""), "");
});
