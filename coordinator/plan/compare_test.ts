// The comparison gives the published slowdowns, and says why a schedule cannot be used.
import assert from "node:assert/strict";
import { type ComparedSchedule, compareSchedules, type Setting } from "./compare.ts";

const SETTING: Setting = {
  stages: 8,
  microBatches: 32,
  forward: 0.02,
  backward: 0.02,
  weightGrad: 0.02,
  latency: 0.05,
  transfer: 0.02,
  mode: "duplex",
};

function rowsByName(setting: Setting): Map<string, ComparedSchedule> {
  const rows = compareSchedules(setting).filter((row) => "result" in row);
  return new Map(rows.map((row) => [row.name, row]));
}

Deno.test("slowdowns and memories are those of the published comparison at 50 ms", () => {
  const rows = rowsByName(SETTING);
  const expected: [name: string, slowdown: string, activations: number][] = [
    ["gpipe", "1.73", 32],
    ["1f1b", "3.70", 8],
    ["interleaved, 2 chunks", "3.76", 11.5],
    ["breadth-first, 2 chunks", "1.99", 32],
    ["chimera", "3.35", 8],
    ["1f1b, latency-aware", "1.78", 25],
    ["zb-h1", "3.34", 8],
    ["zb-h2", "2.09", 15],
    ["dualpipe", "2.27", 9],
    ["dynamic, fused backward", "1.75", 27],
    ["dynamic", "1.55", 27],
  ];
  for (const [name, slowdown, activations] of expected) {
    const row = rows.get(name)!;
    assert.equal(row.slowdown.toFixed(2), slowdown, name);
    assert.equal(row.activations, activations, name);
  }
  assert.deepEqual([rows.get("chimera")!.weights, rows.get("gpipe")!.weights], [2, 1]);
});

Deno.test("the dynamic order is the fastest on every slow link", () => {
  for (const latency of [0.025, 0.05, 0.1]) {
    const rows = [...rowsByName({ ...SETTING, latency }).values()];
    // The asynchronous one trains with old weights instead of waiting, so it is no rival.
    const flushed = rows.filter((row) => row.flush);
    const fastest = (of: ComparedSchedule[]) =>
      of.reduce((best, row) => row.seconds < best.seconds ? row : best).name;
    const single = flushed.filter((row) => row.name !== "dynamic, mirrored");
    assert.equal(fastest(single), "dynamic, every slot");
    assert.equal(fastest(single.filter((row) => row.name !== "dynamic, every slot")), "dynamic");
    // With a second stage of weights, and no more activations.
    assert.equal(fastest(flushed.filter((row) => row.name !== "dynamic, every slot")), "dynamic, mirrored");
  }
});

Deno.test("without latency the mirrored dynamic order is as fast as the best of the others, with no more than its slots", () => {
  for (const [stages, microBatches] of [[4, 8], [8, 16], [8, 32], [6, 24]] as const) {
    const rows = rowsByName({ ...SETTING, stages, microBatches, latency: 0, transfer: 0 });
    const own = rows.get("dynamic, mirrored")!;
    const others = [...rows.values()].filter((row) => row.flush && row.weights <= 2 && row !== own);
    const best = Math.min(...others.map((row) => row.seconds));
    assert.ok(own.seconds <= 1.03 * best, `${stages} stages: ${own.seconds}, ${best}`);
    assert.ok(own.activations <= rows.get("dynamic")!.activations);
  }
});

Deno.test("sizes that rule a schedule out give the reason instead of numbers", () => {
  const rows = compareSchedules({ ...SETTING, stages: 3, microBatches: 7 });
  const reasons = new Map(rows.flatMap((row) => "reason" in row ? [[row.name, row.reason]] : []));
  assert.deepEqual([...reasons.keys()], [
    "interleaved, 2 chunks",
    ...["chimera", "chimera, 2 pairs", "chimera, forward doubling", "chimera, backward halving"],
    "dualpipe",
  ]);
  assert.match(reasons.get("chimera")!, /P=3, N=7/);
});

Deno.test("one stage has no hops and no bubble", () => {
  const rows = rowsByName({ ...SETTING, stages: 1 });
  assert.ok(Math.abs(rows.get("dynamic")!.slowdown - 1) < 1e-9);
});

/** Published slowdowns at 0, 10, 25, 50 and 100 ms; P = 8, N = 32, F = B = W = 20 ms, 20 ms of transfer. */
const PUBLISHED: Record<string, string> = {
  "gpipe": "1.36 1.44 1.55 1.73 2.09",
  "1f1b": "1.93 2.28 2.81 3.70 5.47",
  "interleaved, 2 chunks": "1.62 2.05 2.69 3.76 5.89",
  "breadth-first, 2 chunks": "1.58 1.66 1.77 1.99 2.77",
  "chimera": "1.89 2.17 2.60 3.35 4.94",
  "zb-h1": "1.57 1.93 2.46 3.34 5.11",
  "zb-h2": "1.15 1.29 1.55 2.09 3.19",
  "dualpipe": "1.23 1.44 1.75 2.27 3.31",
  "dynamic, fused backward": "1.36 1.44 1.56 1.75 2.09",
  "dynamic": "1.22 1.30 1.42 1.55 1.86",
  // Not published: what slots beyond the in-flight caps are worth.
  "dynamic, every slot": "1.15 1.18 1.24 1.33 1.70",
  "dynamic, mirrored": "1.09 1.14 1.22 1.39 1.57",
};

Deno.test("every schedule at every latency is as slow as published", () => {
  const columns = [0, 0.01, 0.025, 0.05, 0.1].map((latency) => rowsByName({ ...SETTING, latency }));
  for (const [name, slowdowns] of Object.entries(PUBLISHED)) {
    assert.equal(columns.map((rows) => rows.get(name)!.slowdown.toFixed(2)).join(" "), slowdowns, name);
  }
});

Deno.test("asynchronous steps run back to back, with two versions of the weights", () => {
  const row = rowsByName({ ...SETTING, latency: 0, transfer: 0 }).get("2bw, asynchronous")!;
  assert.ok(Math.abs(row.slowdown - 1) < 1e-9, `${row.slowdown}`);
  assert.equal(row.weights, 2);
});

Deno.test("every schedule meets the same jitter, and it only slows an order down", () => {
  const calm = rowsByName(SETTING);
  const rows = rowsByName({ ...SETTING, jitter: () => () => 1.5 });
  for (const [name, row] of rows) {
    assert.ok(Math.abs(row.seconds - 1.5 * calm.get(name)!.seconds) < 1e-9, name);
  }
});
