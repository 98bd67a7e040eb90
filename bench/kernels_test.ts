// The kernel benchmark's flags, cases and table; the measurement itself needs a device and proves nothing by passing.
import assert from "node:assert/strict";
import { parseFlags, summarise, table } from "./kernels.ts";
import { bytesOf, demoCases, flopsOf } from "./kernels_measure.ts";

const times = [
  { name: "rotary", count: 2, ms: 0.5, flops: 0, bytes: 8 },
  { name: "matmul_nn 2x3x4", count: 1, ms: 3, flops: 6e6, bytes: 8 },
];

Deno.test("the table starts with the largest share, and only products have a rate", () => {
  const lines = table(times).split("\n");
  assert.match(lines[0]!, /^kernel +runs +ms +share +GFLOP\/s$/);
  assert.match(lines[1]!, /^matmul_nn 2x3x4 +1 +3\.000 +75\.0 % +2\.00$/);
  assert.match(lines[2]!, /^rotary +2 +0\.500 +25\.0 %$/);
  assert.deepEqual(summarise(times), {
    micro_batch_ms: 4,
    slowest: "matmul_nn 2x3x4",
    slowest_share: 0.75,
    matmul_gflop_per_s: 2,
  });
});

Deno.test("the cases are the engine's kernels, each with its runs in one micro-batch", () => {
  const { cases, tensors } = demoCases({ software: true });
  const runs = new Map(cases.map(({ name, count }) => [name, count]));
  assert.equal(runs.get("attention_forward_tiled"), 1);
  // The norms of a block are computed in F, and again in W rather than kept.
  const norms = [...runs].filter(([name]) => name.startsWith("rmsnorm_forward"));
  assert.ok(norms.some(([, count]) => count > 1), `${norms}`);
  assert.equal(runs.get("matmul_nt_swiglu_registers_8x4 512x384x64"), 1);
  const quads = { preferred: ["quads 16x16"], measured: {} };
  assert.ok(demoCases({ software: true, matmul: quads }).cases.some(({ name }) => /nt_quads/.test(name)));
  const product = cases.find(({ name }) => name === "matmul_nt_swiglu_registers_8x4 512x384x64")!;
  assert.equal(flopsOf(product.dispatch), 2 * 512 * 384 * 64);
  // a [512, 64], b [384, 64], gate and up [512, 384] and their activation [512, 192].
  assert.equal(bytesOf(product.dispatch, tensors), 4 * (512 * 64 + 384 * 64 + 512 * 384 + 512 * 192));
  // b [64, 64] of the product into the stream: a, out and the residual have [512, 64] each.
  const added = cases.find(({ name }) => name === "matmul_nt_registers_8x4 512x64x64")!;
  assert.equal(bytesOf(added.dispatch, tensors), 4 * (64 * 64 + 3 * 512 * 64));
  const forward = cases.find(({ name }) => name.startsWith("attention_forward"))!;
  assert.equal(flopsOf(forward.dispatch), 4 * 512 * 64 * 65 / 2);
});

Deno.test("flags have defaults and bounds, and unknown ones are refused with the remedy", () => {
  assert.deepEqual(parseFlags(["--json", "--provider", "dawn"]), {
    ...{ rounds: 5, provider: "dawn", chromium: false, json: true, help: false },
  });
  assert.throws(() => parseFlags(["--rounds=0"]), /--rounds must be .* got "0"/);
  assert.throws(() => parseFlags(["--provider=gl"]), /one of builtin, dawn, got "gl"/);
  assert.throws(() => parseFlags(["--chromium", "--provider=dawn"]), /leave out --provider/);
  assert.throws(() => parseFlags(["--chrome"]), /unknown flag "--chrome"/);
  assert.throws(() => parseFlags(["more"]), /see --help/);
});
