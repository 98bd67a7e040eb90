// Which targets count: the run's own micro-batches, or every target of the range once. And the loss itself, against the
// sampler's logits.
import assert from "node:assert/strict";
import { join } from "node:path";
import { createCpuEngine } from "../../peer/engine/cpu.ts";
import type { StageBuild, StageEngine } from "../../peer/engine/engine.ts";
import { createSampler } from "../../peer/engine/sampler.ts";
import { batchOffsets, sliceBatch, splitRange } from "../../peer/model/data.ts";
import { initParams } from "../../peer/model/init.ts";
import { wholeModel } from "../../peer/model/layout.ts";
import { ShoalError } from "../../peer/wire/errors.ts";
import type { ModelSpec } from "../../peer/wire/run.ts";
import { hashPages, sourceOf, TokenFile } from "../store/token_store.ts";
import { type EvalInput, evaluate } from "./evaluation.ts";

const spec: ModelSpec = {
  ...{ vocab_size: 300, block_size: 5, n_layer: 1, n_head: 2, n_kv_head: 1, n_embd: 8, n_inner: 6 },
  ...{ tie_word_embeddings: false, rope_theta: 10000, norm_eps: 1e-5 },
};
const params = initParams(spec, wholeModel(spec), 3).map((value) => value * 20);

function input(more: Partial<EvalInput>): EvalInput {
  return {
    ...{ spec, params, config: { seed: 11, batch_size: 3 }, split: "val", iters: "all" },
    corpus: Uint16Array.from({ length: 300 }, (_, i) => i),
    bytes: (tokens) => tokens.length * 2,
    createEngine: (build) => Promise.resolve(createCpuEngine(build)),
    ...more,
  };
}

/** An engine whose loss is the mean of its targets: with a corpus of 0, 1, 2, ... a sum shows which targets counted. */
function counting(seen: number[], shapes: string[]): (build: StageBuild) => Promise<StageEngine> {
  return (build) => {
    shapes.push(`${build.batchSize}x${build.spec.block_size}`);
    const engine = createCpuEngine(build);
    return Promise.resolve(Object.assign(engine, {
      forward: (slot: number | null, { targets }: { targets?: Uint32Array }) => {
        assert.equal(slot, null, "an evaluation keeps nothing");
        seen.push(...targets!);
        return Promise.resolve({ loss: targets!.reduce((a, b) => a + b, 0) / targets!.length });
      },
    }));
  };
}

Deno.test("evaluation: all counts every target of the split once, whatever is left over", async () => {
  for (const length of [20, 21, 30, 149, 150, 151, 200, 300]) {
    for (const split of ["train", "val", "whole"] as const) {
      const corpus = Uint16Array.from({ length }, (_, i) => i);
      const { begin, end } = split === "whole" ? { begin: 0, end: length } : splitRange(length, split);
      const seen: number[] = [], shapes: string[] = [], steps: [number, number][] = [];
      const sums = await evaluate(input({
        ...{ corpus, split, createEngine: counting(seen, shapes) },
        onProgress: (done, of) => steps.push([done, of]),
      }));
      const targets = Array.from({ length: end - begin - 1 }, (_, i) => begin + 1 + i);
      assert.deepEqual(seen.toSorted((a, b) => a - b), targets, `${length} ${split}`);
      assert.equal(sums.tokens, targets.length);
      assert.equal(sums.bytes, targets.length * 2);
      const mean = targets.reduce((a, b) => a + b, 0) / targets.length;
      assert.ok(Math.abs(sums.loss - mean) < 1e-9 * mean);
      assert.equal(new Set(shapes).size, shapes.length, "a shape is built once");
      assert.deepEqual(steps.at(-1), [sums.microBatches, sums.microBatches]);
      assert.deepEqual(steps.map(([done]) => done), steps.map((_, i) => i + 1));
    }
  }
});

Deno.test("evaluation: iters reads the micro-batches of a run's own evaluation", async () => {
  const seen: number[] = [];
  const corpus = Uint16Array.from({ length: 300 }, (_, i) => i);
  await evaluate(input({ corpus, iters: 4, createEngine: counting(seen, []) }));
  const shape = { split: "val" as const, tokens: 300, blockSize: 5, batchSize: 3 };
  const expected = [0, 1, 2, 3].flatMap((m) => [
    ...sliceBatch(corpus, batchOffsets(11, 0, m, shape), 5).targets,
  ]);
  assert.deepEqual(seen, expected);
});

Deno.test("evaluation: the loss is that of the model's logits, token by token", async () => {
  const corpus = Uint16Array.from({ length: 38 }, (_, i) => (i * i * 7 + 3 * i) % 300);
  const sampler = createSampler(spec, params);
  let nats = 0;
  // 37 targets: seven windows of five (two micro-batches and one window), and a window of two.
  for (let at = 0; at < 37; at += 5) {
    const window = [...corpus.subarray(at, Math.min(at + 5, 37))];
    const logits = sampler.logits(window);
    window.forEach((_, i) => {
      const row = logits.subarray(i * 300, (i + 1) * 300);
      const sum = row.reduce((total, logit) => total + Math.exp(logit), 0);
      nats += Math.log(sum) - row[corpus[at + i + 1]!]!;
    });
  }
  const sums = await evaluate(input({ corpus, split: "whole" }));
  assert.deepEqual([sums.tokens, sums.microBatches], [37, 4]);
  assert.ok(Math.abs(sums.loss - nats / 37) < 1e-5, `${sums.loss} ${nats / 37}`);
  assert.ok(sums.loss > 1, "a loss that says nothing");
});

Deno.test("evaluation: a text on the disk has the loss that it has in memory", async () => {
  const folder = await Deno.makeTempDir({ prefix: "shoal-eval-" }), path = join(folder, "tokens.bin");
  try {
    const corpus = Uint16Array.from({ length: 400 }, (_, i) => (i * i * 7 + 3 * i) % 300);
    await Deno.writeFile(path, new Uint8Array(corpus.buffer));
    const { pages } = await hashPages(path, 64);
    const file = new TokenFile(path, { tokens: 400, bytesPerToken: 2, pages });
    for (const more of [{ iters: 3 }, { split: "whole" as const }]) {
      const [here, there] = [corpus, sourceOf(file, 2)].map((it) => evaluate(input({ ...more, corpus: it })));
      assert.deepEqual(await there, await here);
    }
    assert.equal(sourceOf(corpus, 2), corpus);
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
});

Deno.test("evaluation: a range without a target is refused", async () => {
  await assert.rejects(
    evaluate(input({ corpus: Uint16Array.of(1), split: "whole" })),
    (error) =>
      error instanceof ShoalError && error.code === "bad-corpus" && /has 1 tokens/.test(error.message),
  );
});
