// The doctor's judgements on machines that this one is not, and one real examination of this one.
import assert from "node:assert/strict";
import { examine } from "./doctor.ts";
import {
  findingText,
  judgeChromium,
  judgeDeno,
  judgeDisk,
  judgeEngine,
  judgeNode,
  judgePages,
  judgeProviders,
  judgeTuning,
  judgeVulkan,
  judgeWebRtc,
} from "./doctor_findings.ts";

Deno.test("versions are judged by their numbers, not their text", () => {
  assert.equal(judgeNode("20.0.0").status, "ok");
  assert.equal(judgeNode("9.11.2").status, "fix");
  assert.equal(judgeNode(undefined).status, "note");
  assert.equal(judgeDeno("2.10.0").status, "ok");
  assert.equal(judgeDeno("2.8.3").status, "fix");
  assert.equal(judgeDeno("3.0.0").status, "ok");
});

Deno.test("a possible fall to GL is to be fixed, a missing driver is a note, on Linux only", () => {
  const linux = { os: "linux", icdFiles: ["/a.json"], backend: "vulkan" };
  assert.equal(judgeVulkan(linux).status, "ok");
  assert.equal(judgeVulkan({ ...linux, icdFiles: [] }).status, "note");
  assert.match(judgeVulkan({ ...linux, backend: undefined }).remedy ?? "", /DENO_WEBGPU_BACKEND=vulkan/);
  assert.equal(judgeVulkan({ ...linux, backend: "gl" }).status, "fix");
  assert.equal(judgeVulkan({ os: "darwin", icdFiles: [], backend: undefined }).status, "ok");
});

Deno.test("one working provider is enough, the quicker one is named", () => {
  const gpu = { name: "A GPU", software: false, readbackMs: 11, limits: "many" };
  const both = judgeProviders([
    { provider: "builtin", adapter: gpu, reason: "" },
    { provider: "dawn", adapter: { ...gpu, readbackMs: 0.2 }, reason: "" },
  ]);
  assert.deepEqual(both.map((finding) => finding.status), ["ok", "ok", "ok", "ok"]);
  assert.match(both[3]?.text ?? "", /dawn/);
  const one = judgeProviders([
    { provider: "builtin", adapter: { ...gpu, software: true }, reason: "" },
    { provider: "dawn", adapter: null, reason: "no adapter" },
  ]);
  assert.deepEqual(one.map((finding) => finding.status), ["ok", "note", "ok", "note"]);
  const none = judgeProviders([
    { provider: "builtin", adapter: null, reason: "no adapter" },
    { provider: "dawn", adapter: null, reason: "no adapter" },
  ]);
  assert.deepEqual(none.map((finding) => finding.status), ["note", "note"]);
});

Deno.test("the winners of the autotune are told, and kernels that compute wrongly are a note", () => {
  const shape = { M: 8, N: 8, K: 8 };
  const choice = { class: "nt fours small", member: "quads 16x16", slices: 1, gflops: 3.14, shape };
  const names = { adapter: "A GPU", provider: "builtin", kernelVersion: "0" };
  const good = { ...names, choices: [choice], fusions: [], excluded: [], spentMs: 12.4 };
  assert.deepEqual(judgeTuning(null), []);
  assert.deepEqual(judgeTuning(good), [
    { status: "ok", name: "kernels", text: "nt quads 16x16 3.1 GFLOP/s (12 ms of measuring)" },
  ]);
  const excluded = [{ kernel: "matmul_nn_quads_16x16", reason: "its sums are wrong" }];
  const [bad] = judgeTuning({ ...good, choices: [], excluded });
  assert.equal(bad?.status, "note");
  assert.match(bad?.text ?? "", /^none was measured.*matmul_nn_quads_16x16: its sums are wrong/);
  assert.match(bad?.remedy ?? "", /report/);
});

Deno.test("what only some verbs need is a note, never a fix", () => {
  const absent = [judgeChromium(null), judgeDisk(1000), judgePages(false)];
  absent.push(judgeWebRtc({ connected: false, reason: "timeout" }));
  assert.deepEqual(absent.map((finding) => finding.status), ["note", "note", "note", "note"]);
  const there = [
    judgeChromium("Chromium 1"),
    judgeDisk(1e12),
    judgePages(true),
    judgeWebRtc({ connected: true }),
  ];
  assert.deepEqual(there.map((finding) => finding.status), ["ok", "ok", "ok", "ok"]);
});

Deno.test("the engine is told with its reason; one on the processor could be faster elsewhere", () => {
  const gpu = judgeEngine({ engine: "wgsl (builtin): 3 ms a block", adapter: "A GPU" });
  assert.deepEqual(gpu, { status: "ok", name: "engine", text: "wgsl (builtin): 3 ms a block; on A GPU" });
  for (const engine of ["tfjs-wasm: no WebGPU adapter", "cpu"]) {
    const { status, text } = judgeEngine({ engine, adapter: "this processor" });
    assert.equal(status, "note");
    assert.ok(text.startsWith(engine));
  }
});

Deno.test("a finding is one line, with its remedy", () => {
  assert.equal(findingText({ status: "ok", name: "deno", text: "2.9.6" }), "ok    deno            2.9.6");
  const fix = findingText({ status: "fix", name: "deno", text: "1.0.0", remedy: "run npm ci" });
  assert.equal(fix, "fix   deno            1.0.0 -> run npm ci");
});

Deno.test("this machine has an adapter and connects two peers", async () => {
  const findings = await Array.fromAsync(examine());
  const of = (name: string) => findings.find((finding) => finding.name === name);
  assert.ok(of("adapter"), findings.map(findingText).join("\n"));
  assert.match(of("limits")?.text ?? "", /MiB/);
  assert.match(of("kernels")?.text ?? "", /GFLOP/);
  assert.match(of("engine")?.text ?? "", /^(wgsl|tfjs-wasm).*: [\d.]+ ms a block/);
  assert.equal(of("webrtc")?.status, "ok", findings.map(findingText).join("\n"));
  assert.equal(of("deno")?.status, "ok");
});
