// The words and the modes of the command line's output: live, plain and JSON.
import assert from "node:assert/strict";
import type { CoordinatorEventLine } from "../main.ts";
import {
  compact,
  createReporter,
  departureText,
  doneText,
  holdersText,
  isLogged,
  progressBar,
  stepText,
} from "./report.ts";

const step: Extract<CoordinatorEventLine, { event: "step" }> = {
  event: "step",
  step: 40,
  "train/loss": 2.6123,
  lr: 3e-4,
  grad_norm: 0.912,
  tokens_per_s: 1840,
  peers: 3,
  step_s: 0.5,
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

Deno.test("a departure says what it cost, and that nothing is lost only if nothing is", () => {
  const line = {
    ...{ event: "departure" as const, peer: "tab-3", how: "connection closed", step: 11 },
    ...{ stall_ms: 420, reassigned: 4, steps_lost: 0, recomputed_total: 2, recovery_bytes_total: 9 },
  };
  const left = "tab-3 left (connection closed)";
  const lossless = departureText(line);
  assert.equal(
    lossless,
    `${left} in step 12: 4 micro-batches went to others, the step came 420 ms late, nothing is lost`,
  );
  assert.equal(
    departureText({ ...line, reassigned: 0, stall_ms: 0 }),
    `${left} in step 12: the step came on time, nothing is lost`,
  );
  assert.match(
    departureText({ ...line, reassigned: 1, stall_ms: 1260 }),
    /: 1 micro-batch went .* 1\.3 s late/,
  );
  const lossy = departureText({ ...line, steps_lost: 3 });
  assert.match(lossy, /^tab-3 left .* after step 11: 3 steps are done again/);
  assert.doesNotMatch(lossy, /nothing is lost/);
  assert.match(departureText({ ...line, steps_lost: 1 }), /: 1 step is done again/);
});

Deno.test("who holds what is told as what it means for a departure", () => {
  const line = {
    ...{ event: "holders" as const, step: 5, holders: [2, 1, 2], steps_at_risk: 5 },
    snapshot: ["none" as const, "none" as const, "none" as const],
  };
  const text = (...redundancy: ("none" | "shadow" | "replica")[]) => holdersText({ ...line, redundancy });
  assert.match(text("shadow", "replica", "shadow"), /^every stage has a second holder: .* nothing is lost$/);
  assert.match(text("shadow", "none", "shadow"), /^stage 2 has one holder: if it vanishes, the steps since/);
  assert.match(text("none", "shadow", "none"), /^stages 1, 3 have one holder each: if one of them vanishes/);
  const { out, reporter } = record({});
  reporter.event({ ...line, redundancy: ["shadow", "none", "shadow"] });
  reporter.event({ event: "rollback", step: 4, steps_redone: 1 });
  assert.match(
    out.log,
    /^stage 2 has one holder: .*\nback to step 4: 1 step is done again, with the same data\n$/,
  );
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
