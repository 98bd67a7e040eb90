// The words and the modes of the command line's output: live, plain and JSON.
import assert from "node:assert/strict";
import type { CoordinatorEventLine } from "../main.ts";
import { compact, createReporter, doneText, isLogged, progressBar, stepText } from "./report.ts";

const step: Extract<CoordinatorEventLine, { event: "step" }> = {
  event: "step",
  step: 40,
  "train/loss": 2.6123,
  lr: 3e-4,
  grad_norm: 0.912,
  tokens_per_s: 1840,
  peers: 3,
};
const done: Extract<CoordinatorEventLine, { event: "done" }> = {
  event: "done",
  step: 100,
  "train/loss": 1.5,
  "val/loss": 1.75,
  checkpoint: "runs/a/step-100",
  sample: "Call me\nIshmael",
};

function record(options: { json?: boolean; tty?: boolean; color?: boolean }) {
  const out = { log: "", data: "" };
  const reporter = createReporter({
    json: options.json ?? false,
    tty: options.tty ?? false,
    color: options.color ?? false,
    maxIters: 100,
    log: (text) => out.log += text,
    data: (text) => out.data += text,
  });
  return { out, reporter };
}

Deno.test("a step reads as one line", () => {
  assert.equal(stepText(step), "step 40 | loss 2.61 | lr 3.0e-4 | grad 0.91 | 1.8k tok/s | 3 peers");
  assert.match(stepText({ ...step, peers: 1 }), /1 peer$/);
});

Deno.test("numbers are compact and never roll over their unit", () => {
  const cases: [number, string][] = [[0, "0.0"], [9.94, "9.9"], [42, "42"], [999, "999"], [1000, "1.0k"]];
  cases.push([999_960, "1.0M"], [1_234_567, "1.2M"], [2.5e9, "2.5G"]);
  for (const [value, text] of cases) assert.equal(compact(value), text);
});

Deno.test("the bar is empty at the start, full at the end, and never overflows", () => {
  assert.equal(progressBar(0, 100), `[${"-".repeat(24)}] 0%`);
  assert.equal(progressBar(50, 100), `[${"#".repeat(12)}${"-".repeat(12)}] 50%`);
  assert.equal(progressBar(101, 100), `[${"#".repeat(24)}] 100%`);
});

Deno.test("a plain log has few lines and no long silence, with the first and the last step", () => {
  for (const max of [1, 7, 20, 300, 12_345]) {
    const steps = Array.from({ length: max }, (_, i) => i + 1).filter((at) => isLogged(at, max));
    const gaps = steps.map((at, index) => at - (steps[index - 1] ?? 0));
    assert.ok(Math.max(...gaps) <= 100);
    assert.ok(
      steps.length <= 2 + Math.max(20, max / 100) && steps.includes(1) && steps.includes(max),
      `${max}: ${steps}`,
    );
  }
});

Deno.test("on a terminal the line is redrawn and notes go above it", () => {
  const { out, reporter } = record({ tty: true });
  reporter.event(step);
  assert.equal(out.log, `\r\x1b[K[${"#".repeat(9)}${"-".repeat(15)}] 40% ${stepText(step)}`);
  out.log = "";
  reporter.note("hello");
  assert.ok(out.log.startsWith("\r\x1b[Khello\n") && out.log.endsWith(stepText(step)));
});

Deno.test("elsewhere there are no control characters", () => {
  const { out, reporter } = record({});
  reporter.event({ event: "listening", join: "http://a/#t", admin: "http://a/admin#u" });
  reporter.event(step);
  reporter.event({ event: "state", state: "training", reason: "3 peers are in" });
  reporter.event(done);
  // deno-lint-ignore no-control-regex
  assert.ok(!/[\x1b\r]/.test(out.log));
  assert.ok(out.log.includes("http://a/#t") && out.log.includes("training: 3 peers are in"));
  assert.ok(out.log.endsWith(`${doneText(done)}\n`));
  assert.equal(out.data, "");
});

Deno.test("bold is used only where colour is allowed", () => {
  const listening = { event: "listening", join: "J", admin: "A" } as const;
  const bold = record({ tty: true, color: true });
  bold.reporter.event(listening);
  assert.ok(bold.out.log.includes("\x1b[1mJ\x1b[22m"));
  const plain = record({ tty: true });
  plain.reporter.event(listening);
  assert.ok(!plain.out.log.includes("\x1b[1m"));
});

Deno.test("JSON mode writes every event as a line of data and nothing else", () => {
  const { out, reporter } = record({ json: true, tty: true });
  reporter.event(step);
  reporter.event(done);
  assert.deepEqual(out.data.trimEnd().split("\n").map((line) => JSON.parse(line)), [step, done]);
  assert.equal(out.log, "");
});
