// The verb: text as it comes on stdout, notes for people on stderr, one object with --json, mistakes with their code.
import assert from "node:assert/strict";
import { ShoalError } from "../../peer/wire/errors.ts";
import { inTempFolder, writeTiny } from "../../test/support/checkpoint.ts";
import { generate } from "./generate.ts";

async function run(
  flags: Record<string, string>,
  stop?: string[],
): Promise<{ data: string[]; notes: string[] }> {
  const data: string[] = [], notes: string[] = [];
  const repeated = stop === undefined ? {} : { repeated: { stop } };
  await generate({ flags, config: {}, positionals: [], ...repeated }, {
    data: (text) => data.push(text),
    note: (text) => notes.push(text),
  });
  return { data, notes };
}

Deno.test("generate: streams prompt and text; the same seed writes the same; --json is one line", () =>
  inTempFolder(async (folder) => {
    const path = await writeTiny(folder);
    const flags = { checkpoint: folder, prompt: "ab", count: "5", seed: "3" };
    const { data, notes } = await run(flags);
    assert.equal(data[0], "ab", "the prompt comes first, before anything is computed");
    assert.deepEqual([data.length, data.at(-1)], [8, "\n"]);
    const text = data.join("").slice(2, -1);
    assert.equal([...text].length, 5);
    assert.match(notes[0]!, /^step 7 of .*step-000000007$/);
    assert.match(notes[1]!, /^5 tokens in [\d.]+ s \(\d+ per second\)$/);
    const again = await run({ ...flags, json: "true" });
    const { seconds, ...line } = JSON.parse(again.data.join(""));
    const told = { checkpoint: path, step: 7, prompt: "ab", text, finish_reason: "length" };
    assert.deepEqual(line, { ...told, prompt_tokens: 2, tokens: 5 });
    assert.ok(seconds >= 0 && again.data.length === 1 && again.notes.length === 0);
    assert.notEqual((await run({ ...flags, seed: "4" })).data.join(""), data.join(""));
    assert.notEqual((await run({ ...flags, top_p: "0.05" })).data.join(""), data.join(""));
  }));

Deno.test("generate: the first of several stop texts ends it; more than four are refused", () =>
  inTempFolder(async (folder) => {
    await writeTiny(folder);
    const flags = { checkpoint: folder, prompt: "ab", count: "30", seed: "3", json: "true" };
    const line = async (stop?: string[]) => JSON.parse((await run(flags, stop)).data.join(""));
    const { text } = await line(), [early, late] = [text.slice(4, 7), text.slice(20, 25)];
    const stopped = await line([late, early]);
    assert.deepEqual([stopped.text, stopped.finish_reason], [text.slice(0, text.indexOf(early)), "stop"]);
    await assert.rejects(run(flags, ["a", "b", "c", "d", "e"]), /--stop is given 5 times; use up to 4/);
  }));

Deno.test("generate: says when the window slides and when a prompt does not fit", () =>
  inTempFolder(async (folder) => {
    await writeTiny(folder);
    const base = { checkpoint: folder, count: "6" };
    assert.doesNotMatch((await run({ ...base, prompt: "ab" })).notes[1]!, /window|only/);
    assert.match((await run({ ...base, prompt: "abc" })).notes[1]!, /longer than the window of 8 tokens/);
    assert.match((await run({ ...base, prompt: "abcdefgab" })).notes[1]!, /only the last 8 tokens count/);
  }));

Deno.test("generate: mistakes have a code and the value", () =>
  inTempFolder(async (folder) => {
    await writeTiny(folder);
    const cases: [Record<string, string>, string, RegExp][] = [
      [{ prompt: "Z" }, "bad-corpus", /character "Z"/],
      [{ prompt: "a", top_p: "0" }, "usage", /--top_p is 0/],
      [{ prompt: "a", top_p: "1.5" }, "usage", /--top_p is "1.5"/],
      [{ prompt: "a", checkpoint: `${folder}/none` }, "bad-checkpoint", /holds no checkpoint/],
      [{ prompt: "" }, "usage", /--prompt is missing/],
    ];
    for (const [flags, code, pattern] of cases) {
      await assert.rejects(
        run({ checkpoint: folder, ...flags }),
        (error) => error instanceof ShoalError && error.code === code && pattern.test(error.message),
      );
    }
  }));
