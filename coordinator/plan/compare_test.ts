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
    const fastest = rows.reduce((best, row) => row.result.makespan < best.result.makespan ? row : best);
    assert.equal(fastest.name, "dynamic");
  }
});

Deno.test("sizes that rule a schedule out give the reason instead of numbers", () => {
  const rows = compareSchedules({ ...SETTING, stages: 3, microBatches: 7 });
  const reasons = new Map(rows.flatMap((row) => "reason" in row ? [[row.name, row.reason]] : []));
  assert.deepEqual([...reasons.keys()], ["interleaved, 2 chunks", "chimera", "dualpipe"]);
  assert.match(reasons.get("chimera")!, /P=3, N=7/);
});

Deno.test("one stage has no hops and no bubble", () => {
  const rows = rowsByName({ ...SETTING, stages: 1 });
  assert.ok(Math.abs(rows.get("dynamic")!.slowdown - 1) < 1e-9);
});
