// The gradient benchmark: its refusals, its arithmetic, and that a very short training in both modes gives sane figures.
import assert from "node:assert/strict";
import { createCpuEngine } from "../peer/engine/cpu.ts";
import { readConfig } from "../peer/model/config.ts";
import { specOf, wholeModel } from "../peer/model/layout.ts";
import type { ReduceId } from "../peer/wire/run.ts";
import { configOf, parseFlags, summarise, table } from "./reduce.ts";
import { timeReduce, type Timing, train, type Training } from "./reduce_measure.ts";

const TINY = {
  ...{ n_layer: 1, n_head: 1, n_kv_head: 1, n_embd: 8, n_inner: 16, block_size: 8, batch_size: 2 },
  ...{ gradient_accumulation_steps: 4, max_iters: 4 },
};

function training(reduce: ReduceId, seed: number, valLoss: number): Training {
  const bytes = reduce === "int8" ? { part: 0.75, total: 1 } : { part: 4, total: 4 };
  return {
    ...{ reduce, seed, losses: [3], trainLoss: 3, valLoss, saturated: 0, firstTotal: 4 },
    bytesPerParam: bytes,
  };
}

const TIMINGS: Timing[] = [
  { reduce: "raw32", quantise: 2, encode: 1, decode: 1 },
  { reduce: "int8", quantise: 3, encode: 3, decode: 3 },
];

Deno.test("reduce bench: a short training in both modes", async () => {
  const corpus = Uint8Array.from({ length: 2000 }, (_, i) => i * i % 11);
  const spec = specOf(readConfig(TINY), 11);
  const codecs = { codecForward: "raw32", codecBackward: "raw32" } as const;
  const engine = createCpuEngine({ spec, stage: wholeModel(spec), batchSize: 2, slots: 1, ...codecs });
  const seen: number[] = [];
  const run = (reduce: ReduceId) =>
    train({ config: readConfig({ ...TINY, reduce }), spec, corpus, engine }, (step) => seen.push(step));
  const [raw, int8] = [await run("raw32"), await run("int8")];
  assert.deepEqual(seen, [0, 1, 2, 3, 0, 1, 2, 3]);
  // Both take the first step on the same data; only its rounding differs.
  assert.equal(raw.losses[0], int8.losses[0]);
  assert.ok(Math.abs(raw.valLoss - int8.valLoss) < 0.05);
  assert.ok(raw.bytesPerParam.part >= 4 && raw.bytesPerParam.total >= 4);
  assert.ok(int8.bytesPerParam.part < 1.6 && int8.bytesPerParam.total < 1.6 && int8.firstTotal > 2);
  engine.destroy();
  for (const reduce of ["raw32", "int8"] as const) {
    const { quantise, encode, decode } = timeReduce(spec, reduce);
    assert.ok([quantise, encode, decode].every((ns) => ns >= 0 && ns < Infinity));
  }
});

Deno.test("reduce bench: the summary pairs the seeds", () => {
  const trainings = [
    ...[training("raw32", 1, 2), training("int8", 1, 2.02)],
    ...[training("raw32", 2, 2.5), training("int8", 2, 2.5)],
  ];
  const summary = summarise(trainings, TIMINGS);
  assert.ok(Math.abs(summary.val_loss_difference - 0.01) < 1e-12);
  assert.ok(Math.abs(summary.val_loss_difference_error! - 0.01) < 1e-12);
  assert.deepEqual([summary.bytes_per_param_part, summary.bytes_per_param_total], [0.75, 1]);
  assert.equal(summary.quantise_slowdown, 1.5);
  assert.equal(summarise(trainings.slice(0, 2), TIMINGS).val_loss_difference_error, null);
});

Deno.test("reduce bench: the table has a line per training and per mode", () => {
  const lines = table([training("raw32", 1, 2), training("int8", 1, 2.02)], TIMINGS).split("\n");
  assert.match(lines[0]!, /^reduce +seed +train +val +part B +total B +first B +saturated$/);
  assert.match(lines[2]!, /^int8 +1 +3\.0000 +2\.0200 +0\.750 +1\.000 +4\.000 +0$/);
  assert.match(lines.at(-1)!, /^int8 +3\.00 +3\.00 +3\.00$/);
});

Deno.test("reduce bench: flags and the refusal of others", () => {
  const flags = parseFlags(["--steps=3", "--seeds=2", "--json"]);
  assert.deepEqual(flags, { steps: 3, seeds: 2, demo: false, json: true, help: false });
  assert.equal(configOf(flags, 5, "raw32").n_embd, 32);
  assert.deepEqual(
    configOf({ ...flags, demo: true }, 5, "raw32"),
    readConfig({ max_iters: 3, seed: 5, reduce: "raw32" }),
  );
  assert.throws(() => parseFlags(["--steps=0"]), /--steps must be a whole number from 2 to 10000, got "0"/);
  assert.throws(() => parseFlags(["--seeds=x"]), /--seeds must be .* got "x"/);
  assert.throws(() => parseFlags(["--step=3"]), /unknown flag "--step" \(did you mean "--steps"\?\)/);
  assert.throws(() => parseFlags(["small"]), /see --help/);
});
