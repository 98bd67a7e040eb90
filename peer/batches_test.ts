// What micro-batches read, and what is told beforehand: the next step's windows of what a peer computes, at the pipeline's ends alone.
import assert from "node:assert/strict";
import { batchOf, type BatchSources, expectRound } from "./batches.ts";
import { readConfig } from "./model/config.ts";
import { batchOffsets, sliceBatch, type TokenRange, type TokenSource, windowsOf } from "./model/data.ts";
import { specOf } from "./model/layout.ts";
import type { StagePlan } from "./wire/run.ts";

const CONFIG = readConfig({ n_layer: 2, block_size: 4, batch_size: 3, max_iters: 5, seed: 9 });
const CORPUS = Uint8Array.from({ length: 400 }, (_, i) => i % 7);

class Elsewhere implements TokenSource {
  readonly length = CORPUS.length;
  readonly expected: TokenRange[][] = [];

  read({ begin, end }: TokenRange): Promise<Uint8Array> {
    return Promise.resolve(CORPUS.slice(begin, end));
  }

  expect(ranges: readonly TokenRange[]): void {
    this.expected.push([...ranges]);
  }

  takeWaitMs(): number {
    return 0;
  }
}

function sources(corpus: BatchSources["corpus"]): BatchSources {
  return { config: CONFIG, spec: specOf(CONFIG, 7), corpus };
}

function offsets(step: number, microBatch: number, split: "train" | "val" = "train"): Uint32Array {
  return batchOffsets(9, step, microBatch, { split, tokens: CORPUS.length, blockSize: 4, batchSize: 3 });
}

function stage(embed: boolean, head: boolean): StagePlan {
  const replicas = [{ peer: "me", microBatches: [0, 2] }, { peer: "you", microBatches: [1] }];
  return {
    index: 0,
    firstLayer: 0,
    endLayer: 1,
    embed,
    head,
    inflight: 1,
    replicas,
    shadows: [],
  } as unknown as StagePlan;
}

Deno.test("batches: a corpus at hand answers at once, one elsewhere with the same tokens", async () => {
  for (const pass of ["train", "eval"] as const) {
    const wanted = { pass, step: 3, microBatch: 1 };
    const here = batchOf(sources(CORPUS), wanted);
    assert.ok(!(here instanceof Promise));
    const at = pass === "train" ? offsets(3, 1) : offsets(0, 1, "val");
    assert.deepEqual(here, sliceBatch(CORPUS, at, 4));
    assert.deepEqual(await batchOf(sources(new Elsewhere()), wanted), here);
  }
});

Deno.test("batches: while a step is read the next one is expected, unless there is none, and nothing by an evaluation", () => {
  const corpus = new Elsewhere();
  void batchOf(sources(corpus), { pass: "train", step: 2, microBatch: 1 });
  assert.deepEqual(corpus.expected, [windowsOf(offsets(3, 1), 4)]);
  void batchOf(sources(corpus), { pass: "train", step: 4, microBatch: 1 });
  assert.deepEqual(corpus.expected.slice(1).flat(), []);
  const before = corpus.expected.length;
  void batchOf(sources(corpus), { pass: "eval", step: 2, microBatch: 1 });
  assert.equal(corpus.expected.length, before);
});

Deno.test("batches: a round's own micro-batches are expected at both ends, and none in the middle", () => {
  for (const [embed, head] of [[true, false], [false, true], [false, false]] as const) {
    const corpus = new Elsewhere();
    expectRound(sources(corpus), stage(embed, head), { self: "me", pass: "train", step: 1 });
    const wanted = [0, 2].flatMap((microBatch) => windowsOf(offsets(1, microBatch), 4));
    assert.deepEqual(corpus.expected, embed || head ? [wanted] : []);
  }
  expectRound(sources(CORPUS), stage(true, true), { self: "me", pass: "train", step: 1 });
});
