// What a holder keeps of a round: nothing that nobody is owed any more. Whole runs are tested elsewhere.
import assert from "node:assert/strict";
import { createCpuEngine } from "./engine/cpu.ts";
import { Holder } from "./holder.ts";
import { readConfig } from "./model/config.ts";
import { specOf } from "./model/layout.ts";
import type { View } from "./wire/run.ts";

const CONFIG = readConfig({
  ...{ n_layer: 2, n_head: 1, n_kv_head: 1, n_embd: 4, n_inner: 4, block_size: 2, batch_size: 1 },
  ...{ gradient_accumulation_steps: 1, eval_iters: 3, max_iters: 4, warmup_iters: 0, codec_forward: "raw32" },
});
const SPEC = specOf(CONFIG, 3);

function viewOf(gen: number): View {
  const rest = { inflight: 1, embed: false, head: false };
  return {
    ...{ gen, cut: 1, baseStep: 0, schedule: "dynamic", codecForward: "raw32", codecBackward: "raw32" },
    stages: [
      {
        ...rest,
        index: 0,
        firstLayer: 0,
        endLayer: 1,
        embed: true,
        replicas: [{ peer: "a", microBatches: [0] }],
      },
      {
        ...rest,
        index: 1,
        firstLayer: 1,
        endLayer: 2,
        head: true,
        replicas: [{ peer: "b", microBatches: [0] }],
      },
    ],
  };
}

Deno.test("holder: an evaluation that begins anew with every amended view keeps the frames of one", async () => {
  const holder = new Holder({
    ...{ self: "a", config: CONFIG, spec: SPEC },
    corpus: Uint8Array.from({ length: 60 }, (_, i) => i % 3),
    createEngine: (build) => Promise.resolve(createCpuEngine(build)),
    fetchState: () => assert.fail("nothing is to be fetched"),
  });
  await holder.run({ job: "load", cut: 1, view: viewOf(1), source: null, stages: [0] });
  const [held] = holder.instances();
  for (let gen = 1; gen <= 5; gen++) {
    holder.begin(0, "eval", 0);
    for (let microBatch = 0; microBatch < 3; microBatch++) {
      const op = { job: "op" as const, cut: 1, gen, pass: "eval" as const, step: 0, stage: 0, slot: null };
      await holder.run({ ...op, kind: "F", microBatch });
    }
    assert.equal(held!.outbox.size, 3, `generation ${gen}`);
  }
  holder.begin(0, "train", 0);
  assert.equal(held!.outbox.size, 0);
  holder.unload();
});

Deno.test("holder: says which stages are held whenever that has changed, so that nothing frozen outlives them", async () => {
  const told: number[][] = [];
  const holder = new Holder({
    ...{ self: "a", config: CONFIG, spec: SPEC, corpus: Uint8Array.from({ length: 60 }, () => 0) },
    createEngine: (build) => Promise.resolve(createCpuEngine(build)),
    fetchState: () => assert.fail("nothing is to be fetched"),
    onHeld: (stages) => void told.push(stages.map(({ index }) => index)),
  });
  await holder.run({ job: "load", cut: 1, view: viewOf(1), source: null, stages: [0, 1] });
  holder.release(0);
  await holder.run({ job: "load", cut: 2, view: { ...viewOf(2), cut: 2 }, source: null, stages: [1] });
  assert.deepEqual(told, [[0, 1], [1], [1]]);
  holder.unload();
});
