// What the bench programs share: statistics, tables, and flags that are refused with the remedy.
import assert from "node:assert/strict";
import {
  aligned,
  choiceFlag,
  choicesFlag,
  flagValues,
  geometricMean,
  median,
  spread,
  wholeFlag,
} from "./support.ts";

Deno.test("the median does not mind the order, the spread is the range over the median", () => {
  assert.equal(median([9, 1, 5]), 5);
  assert.equal(median([4, 1]), 4);
  assert.ok(Number.isNaN(median([])));
  assert.equal(spread([9, 1, 5]), 8 / 5);
  assert.equal(spread([3]), 0);
  assert.ok(Math.abs(geometricMean([1, 4, 16]) - 4) < 1e-12);
});

Deno.test("the first column stands to the left, the others to the right, and no line ends with blanks", () => {
  assert.deepEqual(aligned([["a", "ms"], ["long", "1.5"], ["b", ""]]), ["a      ms", "long  1.5", "b"]);
});

Deno.test("flags are read by their options, and what is no flag is refused with the nearest one", () => {
  const options = {
    rounds: { type: "string", default: "3" },
    json: { type: "boolean", default: false },
  } as const;
  const { rounds, json } = flagValues(["--json", "--rounds=4"], options);
  assert.deepEqual({ rounds, json }, { rounds: "4", json: true });
  assert.throws(
    () => flagValues(["--round=4"], options),
    /unknown flag "--round" \(did you mean "--rounds"\?\)/,
  );
  assert.throws(() => flagValues(["more"], options), /see --help/);
});

Deno.test("values out of bounds or unknown are refused with the value and what is allowed", () => {
  assert.equal(wholeFlag("rounds", "7", [1, 7]), 7);
  for (const bad of ["0", "8", "1.5", "", "x"]) {
    const message = new RegExp(`--rounds must be a whole number from 1 to 7, got "${bad}"`);
    assert.throws(() => wholeFlag("rounds", bad, [1, 7]), message);
  }
  assert.equal(choiceFlag("link", "a", ["a", "b"]), "a");
  assert.throws(() => choiceFlag("link", "c", ["a", "b"]), /--link must be one of a, b, got "c"/);
  assert.deepEqual(choicesFlag("kinds", "b,a", ["a", "b"]), ["b", "a"]);
  assert.throws(() => choicesFlag("kinds", "a,c", ["a", "b"]), /--kinds must name some of a, b, got "c"/);
});
