// The memory bench's pure parts: rows are the engine's own predictions, the summary judges them, and GPT-2 small's shape
// keeps to its bounds.
import assert from "node:assert/strict";
import { wholeModel } from "../peer/model/layout.ts";
import { buildOf, type MemoryRow, predictedRow, summarise, table } from "./memory.ts";

function whole(recompute: "none" | "attention" | "block", dtype: "f32" | "f16" = "f32"): MemoryRow {
  const layer = { index: 0, firstLayer: 0, endLayer: 1, embed: true, head: true };
  const { spec } = buildOf(layer, { recompute }, 1);
  return predictedRow("whole model", buildOf(wholeModel(spec), { recompute, dtype }, 1));
}

Deno.test("memory bench: the whole model takes at most 4 GB with one micro-batch, and 2.5 GB with recomputation", () => {
  const rows = [whole("none"), whole("attention"), whole("block")];
  const { exact, whole_model_bytes: bytes, within_bounds } = summarise(rows);
  assert.deepEqual([exact, within_bounds], [null, true]);
  assert.ok(bytes["none"]! <= 4e9 && bytes["block"]! <= 2.5e9, JSON.stringify(bytes));
  assert.ok(bytes["none"]! > bytes["attention"]! && bytes["attention"]! > bytes["block"]!);
  // 123.6 million parameters on the device, once as weights and once as their gradient.
  assert.ok(bytes["block"]! > 2 * 4 * 123.5e6);
});

Deno.test("memory bench: with f16 a slot takes half the bytes, and the model less whatever is computed again", () => {
  const rows = (["none", "block"] as const).flatMap((level) => [whole(level), whole(level, "f16")]);
  const { slot_bytes: slot, whole_model_bytes: bytes } = summarise(rows);
  assert.ok(slot !== undefined && slot.share > 0.5 && slot.share < 0.51, JSON.stringify(slot));
  assert.ok(
    bytes["none f16"]! < 0.75 * bytes["none"]! && bytes["block f16"]! < bytes["block"]!,
    JSON.stringify(bytes),
  );
  assert.equal(summarise([whole("none")]).slot_bytes, undefined);
});

Deno.test("memory bench: a byte more than predicted is not exact, and a row too large is out of bounds", () => {
  const row = whole("none");
  const built = (allocated: number) => summarise([{ ...row, stage: "first third", allocated }]).exact;
  assert.deepEqual([built(row.predicted), built(row.predicted + 1)], [true, false]);
  assert.equal(summarise([{ ...row, predicted: 4e9 + 1 }]).within_bounds, false);
});

Deno.test("memory bench: the table has a line for each row and a dash where nothing was built", () => {
  const row = { ...whole("block"), params: 1_000_000, predicted: 2_500_000, allocated: 2_500_000 };
  const lines = table([row, { ...row, allocated: null }]).split("\n");
  assert.equal(lines.length, 3);
  assert.match(lines[1]!, /^whole model +block +f32 +1\.0 .* 2\.5 +2\.5 /);
  assert.match(lines[2]!, / 2\.5 +- /);
});
