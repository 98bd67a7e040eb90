// A pipeline of two stages of which the first makes its steps on the GPU: ten steps next to the same run with the exact core,
// a checkpoint in the middle that goes on as if nothing had happened, and a holder that goes back to the exact core. The peers'
// benches (Holder) are driven by hand, one operation after the other, so that only the optimizer differs.
import assert from "node:assert/strict";
import type { Job, JobResult } from "../../peer/core/peer_state.ts";
import type { StageBuild } from "../../peer/engine/engine.ts";
import { createWgslEngine } from "../../peer/engine/wgsl.ts";
import { stateHash } from "../../peer/exact/hash.ts";
import { Holder } from "../../peer/holder.ts";
import { initParams } from "../../peer/model/init.ts";
import { specOf, splitLayers } from "../../peer/model/layout.ts";
import type { StateFile, StateSource } from "../../peer/wire/control.ts";
import { haveOf } from "../../peer/reconnect.ts";
import { UNREAD_STATE } from "../../peer/wire/values.ts";
import type { OptimizerId, RecomputeId, View } from "../../peer/wire/run.ts";
import { tinyConfig, tinyCorpus, VOCABULARY } from "../sim/support.ts";
import { onAdapter, relL2, testDevice } from "./support.ts";

const gpu = await testDevice();

const STEPS = 10;
const PEERS = ["a", "b"] as const;
/**
 * Against the exact core with raw32: the loss of each of ten steps, nats, and the parameters after them, relative. Both sum and
 * step in f32, but the exact core rounds a gradient to 2^-27 of its block's peak first; where a moment is near zero AdamW
 * makes that as large as any step.
 */
const LOSS_BOUND = 1e-5;
const PARAMS_BOUND = 1e-5;

const config = tinyConfig({
  ...{ n_layer: 2, n_head: 4, n_kv_head: 2, n_embd: 16, n_inner: 20, block_size: 6, batch_size: 2 },
  ...{ gradient_accumulation_steps: 3, max_iters: STEPS, lr_decay_iters: STEPS, warmup_iters: 2 },
  ...{ learning_rate: 3e-3, reduce: "raw32" },
});
const spec = specOf(config, VOCABULARY);

function viewOf(first: OptimizerId, cut = 1, recompute: RecomputeId = "none"): View {
  const all = Array.from({ length: config.gradient_accumulation_steps }, (_, m) => m);
  const stages = splitLayers(spec, [1, 1]).map((stage, s) => ({
    ...{ ...stage, inflight: 2, recompute, replicas: [{ peer: PEERS[s]!, microBatches: all }] },
    ...(s === 0 ? { optimizer: first } : {}),
  }));
  const codecs = { codecForward: config.codec_forward, codecBackward: config.codec_backward };
  return { gen: cut, cut, baseStep: 0, stages, schedule: "dynamic", ...codecs };
}

type Files = Map<number, { bytes: Uint8Array; hash: string }>;
type WithoutCut<T> = T extends unknown ? Omit<T, "cut"> : never;

class Pair {
  readonly losses: number[] = [];
  readonly benches: Holder[];
  /** States that may be fetched. */
  files: Files = new Map();
  fetched = 0;
  #view: View;

  private constructor(view: View) {
    this.#view = view;
    this.benches = PEERS.map((self) => {
      const createEngine = (build: StageBuild) => createWgslEngine(gpu, build);
      const fetchState = (_: number, { stage }: StateFile) => {
        this.fetched++;
        return Promise.resolve(this.files.get(stage)!.bytes);
      };
      return new Holder({ self, config, spec, corpus: tinyCorpus(), createEngine, fetchState });
    });
  }

  static async load(view: View, source: { step: number; files: Files } | null = null): Promise<Pair> {
    const pair = new Pair(view);
    await pair.reload(view, source);
    return pair;
  }

  /** A new cut of the same layers, from a source if there is one. */
  async reload(view: View, source: { step: number; files: Files } | null): Promise<void> {
    this.#view = view;
    if (source !== null) this.files = source.files;
    const files = [...source?.files ?? []].map(([stage, { bytes, hash }]): StateFile => {
      const { firstLayer, endLayer, embed, head } = view.stages[stage]!;
      return { stage, firstLayer, endLayer, embed, head, bytes: bytes.length, hash };
    });
    const from: StateSource | null = source === null ? null : { step: source.step, files };
    for (const stage of [0, 1]) await this.#run(stage, { job: "load", view, source: from, stages: [stage] });
  }

  #run(stage: number, job: WithoutCut<Job>): Promise<JobResult> {
    return this.benches[stage]!.run({ ...job, cut: this.#view.cut } as Job);
  }

  async #op(stage: number, step: number, op: { kind: "F" | "B" | "W"; m: number }): Promise<JobResult> {
    const { gen } = this.#view;
    const where = { gen, pass: "train" as const, step, stage, microBatch: op.m, slot: op.m % 2 };
    const result = await this.#run(stage, { job: "op", kind: op.kind, ...where });
    const toStage = stage + (op.kind === "F" ? 1 : -1);
    if (op.kind !== "W" && this.benches[toStage] !== undefined) this.#send(stage, toStage, { step, ...op });
    return result;
  }

  #send(
    fromStage: number,
    toStage: number,
    { step, kind, m }: { step: number; kind: string; m: number },
  ): void {
    const { gen, cut } = this.#view;
    const { header, payload } = this.benches[fromStage]!.frame({
      ...{ to: PEERS[toStage]!, kind: kind === "F" ? "activation" : "gradient", cut, gen, pass: "train" },
      ...{ step, fromStage, toStage, microBatch: m, set: [], range: null, recovery: false },
    });
    const sent = { ...header, incarnation: 1 };
    assert.equal(this.benches[toStage]!.check(sent, payload), null);
    this.benches[toStage]!.keep(sent, payload, PEERS[fromStage]!);
  }

  async train(steps: number): Promise<JobResult[]> {
    const applied: JobResult[] = [];
    for (let i = 0; i < steps; i++) {
      const step = this.losses.length;
      const count = config.gradient_accumulation_steps;
      let loss = 0;
      for (const bench of this.benches) bench.begin(this.benches.indexOf(bench), "train", step);
      for (let m = 0; m < count; m++) {
        await this.#op(0, step, { kind: "F", m });
        loss += (await this.#op(1, step, { kind: "F", m })).loss! / count;
        for (const stage of [1, 0]) await this.#op(stage, step, { kind: "B", m });
        // One B more before each W: gradients must not be mixed up.
        if (m > 0) await this.#weightGrads(step, m - 1);
      }
      await this.#weightGrads(step, count - 1);
      this.losses.push(loss);
      applied.push(...await this.#finish(step));
    }
    return applied;
  }

  async #weightGrads(step: number, m: number): Promise<void> {
    for (const stage of [0, 1]) await this.#op(stage, step, { kind: "W", m });
  }

  async #finish(step: number): Promise<JobResult[]> {
    let gradNormSq = 0;
    for (const stage of [0, 1]) {
      await this.#run(stage, { job: "sum", step, stage, parts: [], shards: null });
      const facts = await this.#run(stage, { job: "seal", step, stage, tied: null, countTied: stage === 0 });
      assert.deepEqual([facts.saturated, facts.nonFinite], [0, 0]);
      gradNormSq += facts.gradNormSq!;
    }
    const results: JobResult[] = [];
    for (const stage of [0, 1]) {
      results.push(await this.#run(stage, { job: "apply", step, stage, gradNormSq, upload: true, keep: 8 }));
    }
    return results;
  }

  async export(): Promise<{ step: number; files: Files }> {
    const step = this.losses.length;
    const files: Files = new Map();
    for (const stage of [0, 1]) {
      files.set(stage, (await this.#run(stage, { job: "export", step, stage })).file!);
    }
    return { step, files };
  }

  /** The first stage's state is wanted by somebody else. */
  async endGpu(): Promise<JobResult> {
    return await this.#run(0, { job: "exact", step: this.losses.length, stage: 0 });
  }

  unload(): void {
    for (const bench of this.benches) bench.unload();
  }
}

function hashes({ files }: { files: Files }): string[] {
  return [...files.values()].map(({ hash }) => hash);
}

async function paramsOf(pair: Pair): Promise<Float32Array[]> {
  await pair.endGpu();
  return pair.benches.map((bench) => bench.states()[0]!.params);
}

for (const recompute of ["none", "block"] as const) {
  Deno.test(
    onAdapter(gpu, `ten steps on the GPU equal ten of the exact core, recompute ${recompute}`),
    async () => {
      const exact = await Pair.load(viewOf("exact", 1, recompute));
      const onGpu = await Pair.load(viewOf("gpu", 1, recompute));
      await exact.train(STEPS);
      const applied = await onGpu.train(STEPS);
      assert.deepEqual(applied.map(({ hash }) => hash === UNREAD_STATE).slice(0, 4), [
        true,
        false,
        true,
        false,
      ]);
      const off = onGpu.losses.map((loss, step) => Math.abs(loss - exact.losses[step]!));
      assert.ok(Math.max(...off) <= LOSS_BOUND, `losses are off by ${off.join(", ")}`);
      assert.equal(onGpu.benches[0]!.states()[0]!.params.length, 0, "the state is on the GPU alone");
      const [first, wanted] = [await paramsOf(onGpu), await paramsOf(exact)];
      for (const stage of [0, 1]) {
        const error = relL2(first[stage]!, wanted[stage]!);
        const moved = relL2(
          wanted[stage]!,
          initParams(spec, exact.benches[stage]!.instances()[0]!.plan, config.seed),
        );
        assert.ok(moved > 1000 * PARAMS_BOUND, `the steps move the parameters by ${moved} only`);
        assert.ok(error <= PARAMS_BOUND, `stage ${stage + 1}: parameters are off by ${error}`);
      }
      for (const pair of [exact, onGpu]) pair.unload();
    },
  );
}

Deno.test(onAdapter(gpu, "a checkpoint of a state on the GPU is resumed with the same bits"), async () => {
  const through = await Pair.load(viewOf("gpu"));
  await through.train(STEPS / 2);
  const checkpoint = await through.export();
  await through.train(STEPS / 2);
  const resumed = await Pair.load(viewOf("gpu", 2), checkpoint);
  assert.equal(resumed.fetched, 2);
  resumed.losses.push(...through.losses.slice(0, STEPS / 2));
  assert.deepEqual(hashes(await resumed.export()), hashes(checkpoint), "what was loaded is what is exported");
  await resumed.train(STEPS / 2);
  assert.deepEqual(resumed.losses, through.losses);
  assert.deepEqual(hashes(await resumed.export()), hashes(await through.export()));
  for (const pair of [through, resumed]) pair.unload();
});

Deno.test(
  onAdapter(gpu, "a holder goes back to the exact core between two steps, and to the GPU with a new cut"),
  async () => {
    const pair = await Pair.load(viewOf("gpu", 1, "block"));
    await pair.train(3);
    const before = await pair.export();
    const { state, plan } = pair.benches[0]!.instances()[0]!;
    const have = haveOf(viewOf("gpu"), spec, { plans: [plan], states: [state] });
    assert.deepEqual(have.stages, [{ stage: 0, step: 3, hash: UNREAD_STATE, logged: false }]);
    const { hash } = await pair.endGpu();
    assert.deepEqual([hash, ...hashes(await pair.export()).slice(1)], hashes(before), "nothing is lost");
    const exact = await Pair.load(viewOf("exact", 1, "block"), before);
    exact.losses.push(...pair.losses);
    const [held] = pair.benches[0]!.instances();
    assert.equal(held!.optimizer, null);
    const bytes = pair.benches[0]!.memoryBytes();
    const [first] = await pair.train(1);
    assert.equal(first!.hash, stateHash(held!.state), "from here on every state has its hash");
    await exact.train(1);
    assert.deepEqual(hashes(await pair.export()), hashes(await exact.export()), "and the exact core's bits");
    // The same bits are here: nothing is fetched, whichever way they come.
    await pair.reload(viewOf("gpu", 2, "block"), await pair.export());
    assert.equal(pair.benches[0]!.instances()[0]!.state.params.length, 0);
    assert.ok(pair.benches[0]!.memoryBytes() < bytes, "the exact state's bytes are free");
    await pair.train(1);
    await pair.reload(viewOf("exact", 3, "block"), await pair.export());
    assert.equal(pair.fetched, 0);
    assert.ok(pair.benches[0]!.instances()[0]!.engine!.optimizer === undefined, "an engine without the room");
    await pair.train(1);
    for (const it of [pair, exact]) it.unload();
  },
);
