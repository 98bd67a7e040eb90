// The schedule benchmark's command line: its table, its JSON line and its refusals.
import assert from "node:assert/strict";
import { main } from "./schedule.ts";

Deno.test("the table has a row per schedule with the published slowdown", () => {
  const lines = main([]).split("\n");
  assert.match(lines[0]!, /^schedule +step s +slowdown +bubble +activations +weights$/);
  assert.equal(lines.length, 12);
  assert.match(lines.find((line) => line.startsWith("1f1b  "))!, / 3\.70 /);
  assert.match(lines.at(-1)!, /^dynamic +2\.980 +1\.55 /);
});

Deno.test("--json ends with one line that names the fastest schedule", () => {
  const report = JSON.parse(main(["--json"]).split("\n").at(-1)!);
  assert.equal(report.summary.fastest, "dynamic");
  assert.ok(report.summary.speedup_over_1f1b > 2.3);
  assert.equal(report.schedules.length, 11);
});

Deno.test("--gantt draws the schedule, --svg draws it alone", () => {
  const small = ["--stages=2", "--micro-batches=4", "--gantt=gpipe"];
  assert.match(main(small), /\ngpipe:\n0 \|F+/);
  assert.match(main([...small, "--svg"]), /^<svg [^]*<\/svg>$/);
});

Deno.test("a schedule that the sizes rule out shows the reason in the table", () => {
  assert.match(main(["--stages=3", "--micro-batches=4"]), /chimera +chimera needs P even/);
});

Deno.test("wrong flags are refused with the value and the remedy", () => {
  assert.throws(() => main(["--stages=0"]), /--stages must be a whole number from 1 to 256, got "0"/);
  assert.throws(() => main(["--latency-ms=-1"]), /--latency-ms must be .* got "-1"/);
  assert.throws(() => main(["--latency-ms="]), /got ""/);
  assert.throws(() => main(["--link=token-ring"]), /one of duplex, .* got "token-ring"/);
  assert.throws(() => main(["--gantt=nothing"]), /--gantt must be one of "gpipe", /);
  assert.throws(() => main(["--svg"]), /--svg needs --gantt NAME/);
  assert.throws(() => main(["--stage=3"]), /unknown flag "--stage"; did you mean "--stages"\?/);
  assert.throws(() => main(["stages"]), /see --help/);
});
