// Tests that a report for helpers holds what helps and nothing that opens a run or names a computer.
import assert from "node:assert/strict";
import { diagnostics, free } from "./contributor_diagnostics.ts";
import { snapshot } from "./fixtures_data.ts";
import { opened, strict } from "./fixtures_tab.ts";
import type { TabModel } from "./view_model_tab.ts";

const TOKEN = "k3v9-2mfa-hx7q-w8rt";
const AROUND = { userAgent: "Browser 1.0", protocol: 3, cores: 8, at: new Date(Date.UTC(2026, 2, 14)) };

/** Secrets in every text that comes from outside. */
const leaky: TabModel = {
  ...opened,
  limits: strict,
  name: "Ada’s laptop",
  refusal: {
    code: "offline",
    message: `no answer from https://shoal.example:8787/#${TOKEN} (192.168.1.20:8787)`,
  },
  snapshot: {
    ...snapshot,
    reason: `peer at fe80::1ff:fe23:4567:890a%eth0 and 10.0.0.7 said ${TOKEN}`,
    links: { direct: 1, relayed: 1, why: "link-timeout: no path to shoal.example:3478 or 2001:db8::7" },
  },
};

Deno.test("a report has no token, no address and no name in it", function test() {
  const report = diagnostics(leaky, AROUND, TOKEN);
  const secrets = [
    TOKEN,
    "192.168",
    "10.0.0.7",
    "fe80",
    "2001:db8",
    "shoal.example",
    "https:",
    "8787",
    "Ada",
  ];
  for (const secret of secrets) assert.ok(!report.includes(secret), `${secret} in ${report}`);
});

Deno.test("a report says what helps: phase, engine, limits, causes", function test() {
  const report = JSON.parse(diagnostics(leaky, AROUND, TOKEN));
  assert.equal(report.phase, "training");
  assert.equal(report.engine, snapshot.engine);
  assert.equal(report.limits.duty, 0.5);
  assert.equal(report.refusal, "offline");
  assert.match(report.relayed_why, /^link-timeout: no path to \(address\) or \(address\)$/);
  assert.equal(JSON.parse(diagnostics(opened, AROUND, "")).phase, undefined);
});

Deno.test("ordinary words, times and figures stay", function test() {
  for (
    const text of [
      "no direct path in 10 s",
      "step 12: loss 1.507",
      "bad-frame: length 12 of 30",
      "wgsl (builtin)",
    ]
  ) {
    assert.equal(free(text, TOKEN), text);
  }
});
