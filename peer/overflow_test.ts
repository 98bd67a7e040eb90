// An overflow in halves (`dtype` f16) from the engine that has it to every holder of the total: what is sent tells of it, what is
// received is believed, and a step that is passed over leaves parameters and moments alone. What peers say of it is tested in
// peer/core, what the coordinator makes of it in coordinator/core, and whole runs in test/sim.
import assert from "node:assert/strict";
import { withOverflow } from "../test/support/overflow.ts";
import type { FrameOut } from "./core/peer_state.ts";
import { createCpuEngine } from "./engine/cpu.ts";
import { Holder } from "./holder.ts";
import { readConfig } from "./model/config.ts";
import { specOf } from "./model/layout.ts";
import type { RunConfig, View } from "./wire/run.ts";

/** What every micro-batch bears, and what none does. */
const [SMALL, TOO_LARGE] = [0, 40];
const PLACE = { cut: 1, gen: 1, step: 0, stage: 0 };

function configOf(dtype: string): RunConfig {
  return readConfig({
    ...{ n_layer: 1, n_head: 1, n_kv_head: 1, n_embd: 8, n_inner: 4, block_size: 4, batch_size: 1, dtype },
    ...{ gradient_accumulation_steps: 2, max_iters: 4, warmup_iters: 0, codec_forward: "raw32" },
  });
}

/** One stage on a (micro-batch 0) and b (micro-batch 1). */
const VIEW: View = {
  ...{ gen: 1, cut: 1, baseStep: 0, schedule: "dynamic", codecForward: "raw32", codecBackward: "raw32" },
  stages: [{
    ...{ index: 0, firstLayer: 0, endLayer: 1, embed: true, head: true, inflight: 2 },
    replicas: [{ peer: "a", microBatches: [0] }, { peer: "b", microBatches: [1] }],
  }],
};

/** A holder that has computed its micro-batch of step 0 at this scale. */
async function computed(config: RunConfig, self: "a" | "b", lossScale: number): Promise<Holder> {
  const holder = new Holder({
    ...{ self, config, spec: specOf(config, 5) },
    corpus: Uint8Array.from({ length: 60 }, (_, i) => i % 5),
    createEngine: (build) => Promise.resolve(withOverflow(createCpuEngine(build), build)),
    fetchState: () => assert.fail("nothing is to be fetched"),
  });
  await holder.run({ job: "load", cut: 1, view: VIEW, source: null, stages: [0] });
  holder.begin(0, "train", 0);
  const microBatch = self === "a" ? 0 : 1;
  for (const kind of ["F", "B", "W"] as const) {
    await holder.run({ job: "op", ...PLACE, pass: "train", kind, microBatch, slot: 0, lossScale });
  }
  return holder;
}

function sumOf(kind: "part" | "total", to: string): FrameOut {
  const set = kind === "part" ? [0] : [0, 1];
  const base = { cut: 1, gen: 1, pass: "train" as const, step: 0, fromStage: 0, toStage: 0, microBatch: 0 };
  return { ...base, to, kind, set, range: null, recovery: false };
}

function hand(from: Holder, to: Holder, frame: FrameOut): number {
  const { header, payload } = from.frame(frame);
  assert.equal(to.check({ ...header, incarnation: 1 }, payload), null);
  to.keep({ ...header, incarnation: 1 }, payload, "a");
  return header.exponent;
}

Deno.test("overflow: whoever adds a part that overflowed knows of it, and so does whoever gets the total", async () => {
  for (const [dtype, known] of [["f16", 1], ["f32", 0]] as const) {
    const config = configOf(dtype);
    const [a, b] = [await computed(config, "a", TOO_LARGE), await computed(config, "b", SMALL)];
    assert.equal(hand(a, b, sumOf("part", "b")), known, `${dtype}: what a's part tells`);
    await b.run({ job: "sum", ...PLACE, parts: [{ from: "a", gen: 1 }], shards: null });
    const sealed = await b.run({ job: "seal", ...PLACE, tied: null, countTied: true });
    assert.equal(sealed.nonFinite, known, `${dtype}: b has computed nothing that overflowed`);
    const c = await computed(config, "a", SMALL);
    assert.equal(hand(b, c, sumOf("total", "c")), known);
    const hash = sealed.hash!;
    const installed = await c.run({ job: "install", ...PLACE, from: "a", hash, countTied: true });
    assert.deepEqual([installed.hash, installed.nonFinite], [hash, known], `${dtype}: the fetched total`);
    b.begin(0, "train", 1);
    assert.equal(b.frame({ ...sumOf("part", "c") }).header.exponent, 0, "the next step begins without");
    for (const holder of [a, b, c]) holder.unload();
  }
});

Deno.test("overflow: without one nothing is told, whatever the dtype", async () => {
  const config = configOf("f16");
  const [a, b] = [await computed(config, "a", SMALL), await computed(config, "b", SMALL)];
  assert.equal(hand(a, b, sumOf("part", "b")), 0);
  await b.run({ job: "sum", ...PLACE, parts: [{ from: "a", gen: 1 }], shards: null });
  assert.equal((await b.run({ job: "seal", ...PLACE, tied: null, countTied: true })).nonFinite, 0);
  for (const holder of [a, b]) holder.unload();
});

Deno.test("overflow: a step that is passed over leaves parameters and moments, and its total in the log", async () => {
  const config = configOf("f16");
  const [a, b] = [await computed(config, "a", TOO_LARGE), await computed(config, "b", SMALL)];
  hand(a, b, sumOf("part", "b"));
  await b.run({ job: "sum", ...PLACE, parts: [{ from: "a", gen: 1 }], shards: null });
  await b.run({ job: "seal", ...PLACE, tied: null, countTied: true });
  const [before] = structuredClone(b.states());
  const apply = { job: "apply" as const, ...PLACE, gradNormSq: 1, upload: true, keep: 8 };
  await b.run({ ...apply, skip: true });
  const [after] = b.states();
  assert.equal(after!.step, 1);
  for (const key of ["params", "m", "v"] as const) assert.deepEqual(after![key], before![key], key);
  assert.notDeepEqual(after!.exponents, before!.exponents);
  assert.equal(b.instances()[0]!.log.size, 1);
  for (const holder of [a, b]) holder.unload();
});
