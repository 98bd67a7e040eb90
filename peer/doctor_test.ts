// The doctor's judgements on machines that this one is not, and one real examination of this one.
import assert from "node:assert/strict";
import { examine } from "./doctor.ts";
import {
  findingText,
  judgeChromium,
  judgeDeno,
  judgeDisk,
  judgeNode,
  judgePages,
  judgeProviders,
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

Deno.test("a missing driver and a possible fall to GL are to be fixed, on Linux only", () => {
  const linux = { os: "linux", icdFiles: ["/a.json"], backend: "vulkan" };
  assert.equal(judgeVulkan(linux).status, "ok");
  assert.equal(judgeVulkan({ ...linux, icdFiles: [] }).status, "fix");
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
  assert.deepEqual(none.map((finding) => finding.status), ["fix", "fix"]);
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
  assert.equal(of("webrtc")?.status, "ok", findings.map(findingText).join("\n"));
  assert.equal(of("deno")?.status, "ok");
});
