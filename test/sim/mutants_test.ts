// Each guard of the protocol has a mutant without it, and the simulation must fail on it, for the reason given. The unchanged
// copy must pass, or a failure would prove nothing.
import assert from "node:assert/strict";
import { copySources, judge, MUTANTS, mutate } from "./mutants.ts";

const ROOT = decodeURIComponent(new URL("../..", import.meta.url).pathname);

Deno.test("mutants: a text must be found exactly once", () => {
  assert.equal(mutate("a b c", [["b", "x"], ["x", "$&"]], "f"), "a $& c");
  assert.throws(() => mutate("a b b", [["b", "x"]], "f"), /f: found 2 times/);
  assert.throws(() => mutate("a", [["b", "x"]], "f"), /f: found 0 times/);
});

Deno.test("mutants: the simulation notices the absence of every guard", async (t) => {
  const folder = await copySources(ROOT);
  try {
    for (const mutant of MUTANTS) {
      await t.step(mutant.name, async () => {
        const { code, violations, stderr } = await judge(folder, mutant);
        assert.equal(code, 1, `exit code ${code}: the mutant lives, or did not run\n${stderr}`);
        const noticed = violations.some((violation) => mutant.noticed.test(violation));
        assert.ok(noticed, `${mutant.noticed} is not among:\n${violations.slice(0, 5).join("\n")}`);
      });
    }
    await t.step("the copy without a change is clean", async () => {
      const [first] = MUTANTS;
      const unchanged = {
        ...first!,
        replace: [],
        scenario: "crooked,replay,calm,coordinator-crash",
        seeds: 60,
      };
      assert.deepEqual((await judge(folder, unchanged)).violations, []);
    });
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
});
