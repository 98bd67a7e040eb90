// Sizes of micro-batches: the same sequences whatever the size, never slower than the present one as predicted, never beyond memory.
import assert from "node:assert/strict";
import fc from "fast-check";
import { equalPeers } from "../../test/support/swarm_requests.ts";
import { readConfig } from "../../peer/model/config.ts";
import type { RunConfig } from "../../peer/wire/run.ts";
import { plan } from "./planner.ts";
import {
  chooseSize,
  SIZE_GAIN,
  type SizeJudgement,
  SIZES_TRIED_MAX,
  sizesOf,
  withSize,
} from "./planner_batch.ts";

function configOf(changes: Partial<RunConfig> = {}): RunConfig {
  const size = { batch_size: 8, gradient_accumulation_steps: 8, eval_iters: 8 };
  return readConfig({ n_layer: 2, block_size: 4, micro_batch: "auto", ...size, ...changes });
}

/** Seconds of a step on a line of P equal peers: (N + P - 1) (a + b c), and what fits. */
function lineOf(
  of: { peers: number; fixed: number; each: number; most?: number; suggestion?: number | null },
) {
  const asked: number[] = [];
  const judge = ({ batch_size: b, gradient_accumulation_steps: N }: RunConfig): SizeJudgement => {
    asked.push(b);
    const { peers, fixed, each, most = Infinity, suggestion = null } = of;
    const seconds = b > most ? null : (N + peers - 1) * (fixed + b * each);
    return { seconds, reason: b > most ? `${b} are too many.` : "", suggestion };
  };
  return { judge, asked };
}

function bestOf(config: RunConfig, judge: (config: RunConfig) => SizeJudgement): number {
  return Math.min(...sizesOf(config).map((size) => judge(withSize(config, size)).seconds ?? Infinity));
}

Deno.test("sizes: those that divide a step's sequences and an evaluation's, within what a configuration may have", () => {
  assert.deepEqual(sizesOf(configOf()), [1, 2, 4, 8, 16, 32, 64]);
  assert.deepEqual(sizesOf(configOf({ eval_iters: 3 })), [1, 2, 4, 8], "24 and 64");
  assert.deepEqual(sizesOf(configOf({ batch_size: 3, gradient_accumulation_steps: 5, eval_iters: 1 })), [
    1,
    3,
  ]);
  assert.deepEqual(sizesOf(configOf({ batch_size: 4, gradient_accumulation_steps: 256, eval_iters: 1 })), [
    4,
  ]);
  const halves = { dtype: "f16", n_embd: 32, n_head: 4, n_kv_head: 4, block_size: 2 } as const;
  assert.deepEqual(sizesOf(configOf(halves)), [2, 4, 8, 16, 32, 64], "two rows of halves are not four");
  const { batch_size, gradient_accumulation_steps, eval_iters } = withSize(configOf({ eval_iters: 2 }), 2);
  assert.deepEqual([batch_size, gradient_accumulation_steps, eval_iters], [2, 32, 8]);
});

Deno.test("sizes: a pipeline that idles gets smaller micro-batches, one that pays much for each gets larger ones", () => {
  const idle = chooseSize(configOf(), lineOf({ peers: 8, fixed: 0.001, each: 0.01 }).judge).choice!;
  assert.equal(idle.config.batch_size, 1);
  assert.equal(
    idle.sentence,
    "1 sequence per micro-batch, 64 of them: 0.781 s per step; 8 x 8 would take 1.22 s; 2 x 32 would take 0.819 s.",
  );
  const dear = chooseSize(configOf(), lineOf({ peers: 2, fixed: 0.1, each: 0.001 }).judge).choice!;
  assert.deepEqual([dear.config.batch_size, dear.config.gradient_accumulation_steps], [64, 1]);
});

Deno.test("sizes: the formula's size is looked at first, so that far ones are found within the plans that are made", () => {
  const config = configOf({ batch_size: 1, gradient_accumulation_steps: 256, eval_iters: 256 });
  const { judge, asked } = lineOf({ peers: 2, fixed: 0.1, each: 0.001, suggestion: 128 });
  const { choice } = chooseSize(config, judge);
  assert.ok(new Set(asked).size <= SIZES_TRIED_MAX && asked[1] === 128);
  assert.equal(choice!.judged.seconds, bestOf(config, judge));
});

Deno.test("sizes: a few per cent are no reason to leave the present one, and the sentence says what they would be", () => {
  const flat = lineOf({ peers: 2, fixed: 0.004, each: 0.01 });
  const { choice } = chooseSize(configOf(), flat.judge);
  assert.ok(bestOf(configOf(), flat.judge) < choice!.judged.seconds!, "nothing was to be had");
  assert.equal(choice!.config.batch_size, 8);
  assert.match(choice!.sentence, /^8 sequences per micro-batch, 8 of them: .*; 4 x 16 would take /);
});

Deno.test("sizes: what does not fit becomes the largest that does, or a quicker one; nothing fits nothing", () => {
  const tight = lineOf({ peers: 1, fixed: 1, each: 0.001, most: 2 });
  const { choice } = chooseSize(configOf(), tight.judge);
  assert.equal(choice!.config.batch_size, 2);
  assert.match(choice!.sentence, /; 8 x 8 cannot be had: 8 are too many; 1 x 64 would take /);
  const staying = chooseSize(configOf(), lineOf({ peers: 9, fixed: 0, each: 1, most: 4 }).judge, {
    stay: true,
  });
  assert.equal(staying.choice!.config.batch_size, 4, "no further than it must");
  const none = chooseSize(configOf(), lineOf({ peers: 1, fixed: 1, each: 1, most: 0 }).judge);
  assert.deepEqual([none.choice, none.present.reason], [null, "8 are too many."]);
});

Deno.test("sizes: whatever peers take, a step keeps its sequences, is not predicted slower, and fits", () => {
  const line = fc.record({
    peers: fc.integer({ min: 1, max: 12 }),
    fixed: fc.double({ min: 0, max: 1, noNaN: true }),
    each: fc.double({ min: 1e-4, max: 1, noNaN: true }),
    most: fc.integer({ min: 0, max: 64 }),
    suggestion: fc.option(fc.integer({ min: 1, max: 100 })),
  });
  const shape = fc.record({
    batch_size: fc.integer({ min: 1, max: 24 }),
    gradient_accumulation_steps: fc.integer({ min: 1, max: 24 }),
    eval_iters: fc.integer({ min: 1, max: 12 }),
  });
  fc.assert(
    fc.property(line, shape, fc.boolean(), (of, sizes, stay) => {
      const config = configOf(sizes);
      const { judge, asked } = lineOf(of);
      const { choice, present } = chooseSize(config, judge, { stay });
      const count = new Set(asked).size;
      // Halving takes log2 of the sizes at most, whatever was to be tried.
      assert.ok(count <= SIZES_TRIED_MAX + Math.ceil(Math.log2(sizesOf(config).length + 1)));
      if (choice === null) {
        assert.ok(sizesOf(config).every((size) => size > config.batch_size || size > of.most));
        return;
      }
      const { batch_size: b, gradient_accumulation_steps: N, eval_iters } = choice.config;
      assert.equal(b * N, config.batch_size * config.gradient_accumulation_steps);
      assert.equal(b * eval_iters, config.batch_size * config.eval_iters);
      assert.deepEqual({ ...choice.config, ...sizes }, config, "nothing else changes");
      assert.ok(b <= of.most);
      if (b === config.batch_size) return;
      if (present.seconds === null) assert.ok(config.batch_size > of.most);
      else assert.ok(!stay && choice.judged.seconds! <= present.seconds * SIZE_GAIN);
    }),
    { seed: 12 },
  );
});

Deno.test("sizes: the formula's size grows with the share of a block that is fixed", () => {
  const asked = equalPeers([4, 4], { n_stage: 2, batch_size: 2, gradient_accumulation_steps: 16 });
  const suggested = (fixedShare: number) => {
    const peers = asked.peers.map((peer) => ({
      ...{ ...peer, engines: peer.engines.map((engine) => ({ ...engine, fixedShare })) },
    }));
    const found = plan({ ...asked, peers, link: () => ({ latency: 0, bytesPerS: 1e8 }) });
    assert.ok(found.kind === "plan");
    return found.batchSuggestion?.batchSize ?? 2;
  };
  const [none, half, most] = [suggested(0), suggested(0.5), suggested(0.9)];
  assert.ok(none === 2 && half > none && most > half, `${none} ${half} ${most}`);
});
