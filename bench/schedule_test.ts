// The schedule benchmark's command line: its table, its JSON line and its refusals.
import assert from "node:assert/strict";
import { main as run } from "./schedule.ts";

const main = (args: string[]) => run(args).stdout;

Deno.test("the table has a row per schedule with the published slowdown", () => {
  const lines = main([]).split("\n");
  assert.match(lines[0]!, /^schedule +step s +slowdown +bubble +activations +weights$/);
  assert.equal(lines.length, 19);
  assert.match(lines.find((line) => line.startsWith("1f1b  "))!, / 3\.70 /);
  assert.match(lines.at(-3)!, /^dynamic +2\.980 +1\.55 /);
});

Deno.test("--json ends with one line that names the fastest schedule", () => {
  const report = JSON.parse(main(["--json"]).split("\n").at(-1)!);
  assert.equal(report.summary.fastest, "dynamic, every slot");
  assert.ok(report.summary.speedup_over_1f1b > 2.3);
  assert.equal(report.schedules.length, 18);
});

Deno.test("--gantt draws the schedule, --svg writes it, or prints it alone", () => {
  const small = ["--stages=2", "--micro-batches=4", "--gantt=gpipe"];
  assert.match(main(small), /\ngpipe:\n0 \|F+/);
  assert.match(main([...small, "--svg=-"]), /^<svg [^]*<\/svg>$/);
  const written = run(["--stages=2", "--micro-batches=4", "--svg=step.svg"]);
  assert.equal(written.file?.path, "step.svg");
  assert.match(written.file!.text, /<title id="t">dynamic<\/title>/);
  assert.match(written.stdout, /^schedule +step s/);
});

Deno.test("a message's bytes and a link's rate give its transfer time", () => {
  assert.equal(main(["--bytes=50000", "--rate=20"]), main(["--transfer-ms=20"]));
  assert.throws(() => main(["--bytes=50000"]), /belong together/);
  assert.throws(() => main(["--bytes=50000", "--rate=0"]), /more than 0/);
});

Deno.test("jitter comes from the seed", () => {
  const noisy = ["--stages=3", "--micro-batches=6", "--jitter=0.4"];
  assert.equal(main([...noisy, "--seed=2"]), main([...noisy, "--seed=2"]));
  assert.notEqual(main([...noisy, "--seed=2"]), main([...noisy, "--seed=3"]));
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
  assert.throws(() => main(["--seed=0"]), /--seed must be .* got "0"/);
  assert.throws(() => main(["--stage=3"]), /unknown flag "--stage" \(did you mean "--stages"\?\)/);
  assert.throws(() => main(["stages"]), /see --help/);
});
