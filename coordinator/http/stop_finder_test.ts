// However a text is cut into pieces, what comes out is the text before the stop text that is complete first, and nothing is
// let through that could still be part of one.
import assert from "node:assert/strict";
import fc from "fast-check";
import { StopFinder } from "./stop_finder.ts";

function pass(pieces: string[], stops: string[]): { out: string[]; found: boolean } {
  const finder = new StopFinder(stops);
  const out = pieces.map((piece) => finder.push(piece));
  return { out: [...out, finder.rest()], found: finder.found };
}

Deno.test("stop: the beginning of a stop text is held back until it is certain", () => {
  assert.deepEqual(pass(["a", "b", "c"], ["bx"]).out, ["a", "", "bc", ""]);
  assert.deepEqual(pass(["a", "b", "x", "c"], ["bx"]), { out: ["a", "", "", "", ""], found: true });
  assert.deepEqual(pass(["a", "b"], ["bx"]).out, ["a", "", "b"]);
  assert.deepEqual(pass(["abab", "ac"], ["abac"]).out, ["ab", "", ""]);
  assert.deepEqual(pass(["ab"], [""]), { out: ["ab", ""], found: false });
});

Deno.test("stop: of several the one that is complete first counts, wherever the pieces are cut", () => {
  const text = fc.array(fc.constantFrom("a", "b", "c"), { maxLength: 14 }).map((chars) => chars.join(""));
  const stops = fc.array(
    fc.array(fc.constantFrom("a", "b", "c"), { minLength: 1, maxLength: 4 }).map((it) => it.join("")),
    { maxLength: 4 },
  );
  fc.assert(
    fc.property(fc.array(text, { maxLength: 6 }), stops, (pieces, ends) => {
      const whole = pieces.join("");
      // Character by character: the first end at which the text ends with a stop text.
      const end = [...whole].map((_, at) => at).find((at) =>
        ends.some((stop) => whole.slice(0, at + 1).endsWith(stop))
      );
      const { out, found } = pass(pieces, ends);
      assert.equal(found, end !== undefined);
      if (end === undefined) return assert.equal(out.join(""), whole);
      const read = whole.slice(0, end + 1);
      const longest = Math.max(...ends.filter((stop) => read.endsWith(stop)).map((stop) => stop.length));
      assert.equal(out.join(""), read.slice(0, read.length - longest));
    }),
    { seed: 20261, numRuns: 3000 },
  );
});
