// The verb: its figures agree with one another and with the loss, bytes are those of UTF-8, mistakes are named.
import assert from "node:assert/strict";
import { ShoalError } from "../../peer/wire/errors.ts";
import { inTempFolder, writeTiny } from "../../test/support/checkpoint.ts";
import { type EvalResult, runEval } from "./eval.ts";

async function run(flags: Record<string, string>) {
  const data: string[] = [], notes: string[] = [], progress: string[] = [];
  const output = {
    data: (text: string) => data.push(text),
    note: (text: string) => notes.push(text),
    progress: (text: string) => progress.push(text),
  };
  await runEval({ flags: { engine: "cpu", ...flags }, config: {}, positionals: [] }, output);
  return { data: data.join(""), notes, progress };
}

// One byte, two bytes, three bytes.
const VOCAB = ["a", "b", "é", "水"];

Deno.test("eval: loss, perplexity and bits per byte of every token of a text", () =>
  inTempFolder(async (folder) => {
    await writeTiny(folder, { vocab: VOCAB });
    const dataset = `${folder}/text.txt`;
    const text = "abé水".repeat(11) + "a";
    await Deno.writeTextFile(dataset, text);
    const { data, progress } = await run({ checkpoint: folder, dataset, split: "whole", json: "true" });
    const result: EvalResult = JSON.parse(data);
    // Every character but the first is a target: 44 of 7 bytes per four, without the first "a" and with the last.
    assert.deepEqual([result.tokens, result.bytes], [44, new TextEncoder().encode(text).length - 1]);
    assert.deepEqual([result.step, result.split, result.dataset], [7, "whole", dataset]);
    assert.ok(Math.abs(result.perplexity - Math.exp(result.loss)) < 1e-9);
    assert.ok(Math.abs(result.bits_per_byte - result.loss * 44 / 77 / Math.log(2)) < 1e-9);
    assert.ok(result.loss > 0.5 && result.seconds > 0);
    assert.equal(progress.at(-1), "", "the progress line is cleared in the end");
    const plain = await run({ checkpoint: folder, dataset, split: "whole" });
    assert.match(plain.data, new RegExp(`loss +${result.loss.toFixed(4)} nats`));
    assert.match(plain.data, new RegExp(`bits per byte +${result.bits_per_byte.toFixed(4)}`));
    assert.match(plain.notes[0]!, /step 7 of .* on cpu/);
  }));

Deno.test("eval: without more it reads what the run's own evaluation reads; every engine agrees", () =>
  inTempFolder(async (folder) => {
    await writeTiny(folder, { vocab: VOCAB, config: { eval_iters: 3 } });
    const dataset = `${folder}/text.txt`;
    await Deno.writeTextFile(dataset, "abé水b".repeat(60));
    const ask = async (flags: Record<string, string>): Promise<EvalResult> =>
      JSON.parse((await run({ checkpoint: folder, dataset, json: "true", ...flags })).data);
    const [own, more, wasm] = [await ask({}), await ask({ iters: "4" }), await ask({ engine: "tfjs-wasm" })];
    assert.deepEqual([own.micro_batches, own.tokens], [3, 3 * 2 * 8]);
    assert.equal(more.micro_batches, 4);
    assert.match(wasm.engine, /tfjs-wasm/);
    // f32 against double precision.
    assert.ok(Math.abs(wasm.loss - own.loss) < 1e-4, `${wasm.loss} ${own.loss}`);
    const all = await ask({ all: "true", split: "train", engine: "tfjs-wasm" });
    const reference = await ask({ all: "true", split: "train" });
    assert.equal(all.tokens, 269);
    assert.ok(Math.abs(all.loss - reference.loss) < 1e-4);
  }));

Deno.test("eval: mistakes have a code and the remedy", () =>
  inTempFolder(async (folder) => {
    await writeTiny(folder, { vocab: VOCAB, config: { dataset: `${folder}/gone.txt` } });
    const foreign = `${folder}/foreign.txt`;
    await Deno.writeTextFile(foreign, "abc".repeat(100));
    const cases: [Record<string, string>, string, RegExp][] = [
      [{}, "bad-corpus", /gone.txt" cannot be read.*name the text with --dataset/],
      [{ dataset: foreign }, "bad-corpus", /character "c"/],
      [{ split: "test" }, "usage", /--split is "test"; use val, train, whole/],
      [{ iters: "3", all: "true" }, "usage", /exclude each other/],
      [{ iters: "3", split: "whole" }, "usage", /draws from val or train/],
      [{ iters: "0" }, "usage", /--iters is "0"/],
      [{ engine: "gpu" }, "usage", /engine "gpu"/],
    ];
    for (const [flags, code, pattern] of cases) {
      await assert.rejects(
        run({ checkpoint: folder, ...flags }),
        (error) => error instanceof ShoalError && error.code === code && pattern.test(error.message),
      );
    }
  }));
