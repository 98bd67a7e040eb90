// The recorded hashes of the golden scenario, for both grids; browser tests compare with the same file.
import assert from "node:assert/strict";
import golden from "../../test/fixtures/exact/golden.json" with { type: "json" };
import { runGoldenScenario } from "./golden.ts";

Deno.test("golden: ten steps of the exact core give the recorded hashes", () => {
  assert.equal(golden.hashes.length, 40);
  assert.deepEqual(runGoldenScenario(), golden.hashes);
});

Deno.test("golden: ten steps with the coarse grid give their recorded hashes", () => {
  assert.equal(golden.int8.length, 40);
  assert.deepEqual(runGoldenScenario("int8"), golden.int8);
});
