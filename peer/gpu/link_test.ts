// The shader linker: imports resolved once, nested, in order; unknown paths and cycles refused.
import assert from "node:assert/strict";
import { ShoalError } from "../wire/errors.ts";
import { spreadWorkgroups, WORKGROUPS_PER_DIMENSION_MAX } from "./library.ts";
import { linkShader } from "./link.ts";

Deno.test("linkShader inserts each file once, at its first import", () => {
  const library = { "lib/a.wgsl": "// #import lib/b.wgsl\nfn a() {}", "lib/b.wgsl": "fn b() {}" };
  const code = "// head\n// #import lib/a.wgsl\n// #import lib/b.wgsl\nfn main() {}\n";
  assert.equal(linkShader(code, library), "// head\nfn b() {}\nfn a() {}\n\nfn main() {}\n");
});

Deno.test("linkShader leaves code without imports alone", () => {
  const code = "fn main() { let import_ = 1; } // see #import lib/a.wgsl\n";
  assert.equal(linkShader(code, {}), code);
});

Deno.test("linkShader refuses an unknown path, inherited names included", () => {
  for (const path of ["lib/none.wgsl", "toString"]) {
    assert.throws(
      () => linkShader(`// #import ${path}\n`, { "lib/a.wgsl": "" }),
      (error) =>
        error instanceof ShoalError && error.code === "shader-invalid" && error.message.includes(path),
    );
  }
});

Deno.test("spreadWorkgroups covers every count within the limit per dimension", () => {
  for (const count of [0, 1, 65_535, 65_536, 200_000, 5_000_000]) {
    const [x, y, z] = spreadWorkgroups(count);
    assert.ok(x * y * z >= count && x >= 1);
    assert.ok(Math.max(x, y) <= WORKGROUPS_PER_DIMENSION_MAX);
    assert.ok(x * y - count < y || count === 0, "less than one workgroup per row is surplus");
  }
});
