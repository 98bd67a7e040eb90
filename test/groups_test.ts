// The counting and grouping behind `npm test`: a miscount here would hide a failure everywhere.
import assert from "node:assert/strict";
import { countJunit, groupOf } from "./groups.mjs";

Deno.test("files fall into groups by folder and name", () => {
  assert.equal(groupOf("peer/net/host_test.ts"), "unit");
  assert.equal(groupOf("web/view_model_test.tsx"), "unit");
  assert.equal(groupOf("test/lint/house_test.ts"), "unit");
  assert.equal(groupOf("test/kernels/matmul_test.ts"), "kernel");
  assert.equal(groupOf("test/sim/churn_test.ts"), "sim");
  assert.equal(groupOf("test/e2e/demo_test.ts"), "e2e");
  assert.equal(groupOf("peer/net/host.ts"), null);
  assert.equal(groupOf("test/e2e/support.ts"), null);
});

Deno.test("failed, broken and skipped tests all count as failed", () => {
  const xml = `<testsuites><testsuite>
    <testcase name="a" time="0.1">
    </testcase>
    <testcase name="b"><failure message="x">&lt;skipped/&gt; in a text</failure></testcase>
    <testcase name="c"><skipped/></testcase>
    <testcase name="d"><error message="y"/></testcase>
    <testcase name="e &lt;failure&gt;"/>
  </testsuite></testsuites>`;
  assert.deepEqual(countJunit(xml), { passed: 2, failed: 3 });
  assert.deepEqual(countJunit("<testsuites></testsuites>"), { passed: 0, failed: 0 });
});

Deno.test("a real report of deno test is counted as deno test counts it", async () => {
  const folder = await Deno.makeTempDir();
  try {
    const source = `Deno.test("good", () => {});
      Deno.test("bad", () => { throw new Error("<skipped/>"); });
      Deno.test.ignore("off", () => {});`;
    await Deno.writeTextFile(`${folder}/a_test.js`, source);
    const args = ["test", "--no-config", `--junit-path=${folder}/report.xml`, `${folder}/a_test.js`];
    const { code } = await new Deno.Command(Deno.execPath(), { args, stdout: "null", stderr: "null" })
      .output();
    assert.notEqual(code, 0);
    assert.deepEqual(countJunit(await Deno.readTextFile(`${folder}/report.xml`)), { passed: 1, failed: 2 });
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
});
