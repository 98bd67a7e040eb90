// The data channel benchmark's flags and its table; the measurement itself needs a browser and proves nothing by passing.
import assert from "node:assert/strict";
import { parseFlags, summarise, table } from "./data_channel.ts";

const samples = {
  port: { echo_8b_ms: [3, 1, 2], stream_64kib_mb_per_s: [10, 30, 20] },
  transferred: { echo_8b_ms: [9, 9, 4], stream_64kib_mb_per_s: [1, 1, 1] },
};

Deno.test("the summary holds medians, and the table has a row per figure", () => {
  const summary = summarise(samples);
  assert.deepEqual(summary.port, { echo_8b_ms: 2, stream_64kib_mb_per_s: 20 });
  assert.deepEqual(summary.transferred, { echo_8b_ms: 9, stream_64kib_mb_per_s: 1 });
  const lines = table(summary).split("\n");
  assert.match(lines[0]!, /^ +port +transferred$/);
  assert.match(lines[1]!, /^echo_8b_ms +2\.00 +9\.00$/);
  assert.equal(lines.length, 3);
});

Deno.test("flags have defaults and bounds, and unknown ones are refused with the remedy", () => {
  const { rounds, mib, json } = parseFlags(["--mib=64", "--json"]);
  assert.deepEqual({ rounds, mib, json }, { rounds: 5, mib: 64, json: true });
  assert.throws(() => parseFlags(["--mib=65"]), /--mib must be a whole number from 1 to 64, got "65"/);
  assert.throws(() => parseFlags(["--rounds=0"]), /--rounds must be .* got "0"/);
  assert.throws(() => parseFlags(["--round=3"]), /unknown flag "--round" \(did you mean "--rounds"\?\)/);
  assert.throws(() => parseFlags(["more"]), /see --help/);
});
