// Each house rule with an example it must refuse and one it must let pass, and the plugin's place in deno.json.
/// <reference lib="deno.unstable" />
import assert from "node:assert/strict";
import plugin, { FILE_LINES_MAX, FUNCTION_LINES_MAX, importProblem, resolveImport } from "./house.ts";

function problems(file: string, source: string): string[] {
  return Deno.lint.runPlugin(plugin, file, source).map((diagnostic) => diagnostic.id);
}

Deno.test("purity refuses clocks, randomness, timers and the outside world in pure folders", () => {
  const impure = [
    "export const t = Date.now();",
    "export const d = new Date();",
    "export const r = Math.random();",
    "export const p = performance.now();",
    "setTimeout(() => {}, 1);",
    "crypto.getRandomValues(new Uint8Array(1));",
    "export const e = Deno.env;",
    "export const g = navigator.gpu;",
    "fetch('/x');",
  ];
  for (const source of impure) {
    assert.deepEqual(problems("peer/core/a.ts", source), ["house/purity"], source);
    assert.deepEqual(problems("peer/net/a.ts", source), [], source);
    assert.deepEqual(problems("peer/core/a_test.ts", source), [], source);
  }
});

Deno.test("purity lets a member or a key of the same name pass", () => {
  const source = "export const x = { fetch: 1, Date: 2 }; export const y = x.fetch + x.Date + Math.sqrt(2);";
  assert.deepEqual(problems("coordinator/plan/a.ts", source), []);
});

Deno.test("only the exact core is refused inexact functions", () => {
  const source = "export const y = Math.exp(1);";
  assert.deepEqual(problems("peer/exact/a.ts", source), ["house/purity"]);
  assert.deepEqual(problems("coordinator/plan/a.ts", source), []);
});

Deno.test("relative imports resolve from the importing file", () => {
  assert.equal(resolveImport("web/app.tsx", "../peer/browser.ts"), "peer/browser.ts");
  assert.equal(resolveImport("peer/wire/run.ts", "./errors.ts"), "peer/wire/errors.ts");
  assert.equal(resolveImport("web/app.tsx", "preact"), null);
});

Deno.test("imports follow the layers", () => {
  const refused: [string, string][] = [
    ["peer/wire/a.ts", "../model/layout.ts"],
    ["peer/core/a.ts", "../net/host.ts"],
    ["peer/core/a.ts", "node:fs"],
    ["coordinator/main.ts", "../peer/engine/wgsl.ts"],
    ["coordinator/http/a.ts", "../../peer/net/link.ts"],
    ["web/app.tsx", "../peer/worker.ts"],
    ["peer/peer.ts", "../coordinator/main.ts"],
  ];
  const allowed: [string, string][] = [
    ["peer/wire/a.ts", "./errors.ts"],
    ["peer/core/a.ts", "../schedule/executor.ts"],
    ["peer/model/a.ts", "valibot"],
    ["coordinator/main.ts", "../peer/model/config.ts"],
    ["coordinator/cli/main.ts", "../../peer/deno.ts"],
    ["coordinator/main_test.ts", "../peer/engine/cpu.ts"],
    ["web/app.tsx", "../peer/browser.ts"],
    ["web/app.tsx", "../peer/wire/status.ts"],
  ];
  for (const [from, specifier] of refused) {
    assert.notEqual(importProblem(from, specifier, false), null, `${from} ${specifier}`);
    assert.deepEqual(problems(from, `import { a } from "${specifier}"; export const b = a;`), [
      "house/imports",
    ]);
    assert.deepEqual(problems(from, `export { a } from "${specifier}";`), ["house/imports"]);
    assert.deepEqual(problems(from, `export * from "${specifier}";`), ["house/imports"]);
    assert.deepEqual(problems(from, `export const a = import("${specifier}");`), ["house/imports"]);
  }
  for (const [from, specifier] of allowed) {
    assert.deepEqual(problems(from, `import { a } from "${specifier}"; export const b = a;`), [], specifier);
  }
});

Deno.test("a type-only import cannot make pure code impure, but keeps its layer", () => {
  const source = (path: string) => `import type { A } from "${path}"; export type B = A;`;
  assert.deepEqual(problems("peer/core/a.ts", source("../net/link.ts")), []);
  assert.deepEqual(problems("coordinator/core/a.ts", source("../../peer/net/link.ts")), ["house/imports"]);
  assert.deepEqual(problems("peer/wire/a.ts", source("../net/link.ts")), ["house/imports"]);
});

Deno.test("long files and long functions are refused at one line too many", () => {
  const file = (lines: number) => "export const a = 1;\n".repeat(lines);
  assert.deepEqual(problems("peer/a.ts", file(FILE_LINES_MAX)), []);
  assert.deepEqual(problems("peer/a.ts", file(FILE_LINES_MAX + 1)), ["house/size"]);
  const body = (lines: number) => "  f();\n".repeat(lines - 2);
  const shapes: [string, string][] = [
    ["export function f() {\n", "}\n"],
    ["export const g = () => {\n", "};\n"],
    ["export const h = function () {\n", "};\n"],
  ];
  for (const [head, tail] of shapes) {
    assert.deepEqual(problems("peer/a.ts", head + body(FUNCTION_LINES_MAX) + tail), []);
    assert.deepEqual(problems("peer/a.ts", head + body(FUNCTION_LINES_MAX + 1) + tail), ["house/size"]);
  }
});

Deno.test("default exports are for configuration files", () => {
  assert.deepEqual(problems("peer/a.ts", "export default 1;"), ["house/named-exports"]);
  assert.deepEqual(problems("vite.config.ts", "export default {};"), []);
});

Deno.test("deno.json switches the plugin on", () => {
  const config = JSON.parse(Deno.readTextFileSync(new URL("../../deno.json", import.meta.url)));
  assert.deepEqual(config.lint.plugins, ["./test/lint/house.ts"]);
});
