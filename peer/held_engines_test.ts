// Two engines of one stage (schedule 2bw): each step computes with its own weights, whatever the other is doing, and an evaluation
// with the newest.
import assert from "node:assert/strict";
import { createCpuEngine } from "./engine/cpu.ts";
import type { StageBuild, StageInput } from "./engine/engine.ts";
import { withDelay } from "./exact/delay.ts";
import { createState } from "./exact/state.ts";
import type { Held } from "./held.ts";
import {
  buildEngines,
  destroyEngines,
  engineOf,
  enginesOf,
  loadEngines,
  loadNewest,
} from "./held_engines.ts";
import { readConfig } from "./model/config.ts";
import { initParams } from "./model/init.ts";
import { stageLayout, wholeModel } from "./model/layout.ts";
import { engineBytes, holderBytes } from "./model/stage_memory.ts";
import type { ModelSpec } from "./wire/run.ts";

const SPEC: ModelSpec = {
  ...{ vocab_size: 7, block_size: 3, n_layer: 1, n_head: 1, n_kv_head: 1, n_embd: 4, n_inner: 6 },
  ...{ tie_word_embeddings: false, rope_theta: 100, norm_eps: 1e-5 },
};
const STAGE = wholeModel(SPEC);
const BUILD: StageBuild = {
  ...{ spec: SPEC, stage: STAGE, batchSize: 1, slots: 1, codecForward: "raw32", codecBackward: "raw32" },
};
const PLAN = { ...STAGE, inflight: 1, replicas: [{ peer: "a", microBatches: [0] }] };
const INPUT: StageInput = { tokens: Uint32Array.of(1, 2, 3), targets: Uint32Array.of(2, 3, 4) };
const create = (build: StageBuild) => Promise.resolve(createCpuEngine(build));

/** A state of three steps whose older weights are others. */
function stateOf() {
  const state = withDelay(createState(stageLayout(SPEC, STAGE), initParams(SPEC, STAGE, 1)), true);
  state.before!.params.set(initParams(SPEC, STAGE, 2));
  return { ...state, step: 3 };
}

async function lossWith(params: Float32Array): Promise<number> {
  const engine = createCpuEngine(BUILD);
  await engine.load(params);
  return (await engine.forward(null, INPUT)).loss!;
}

Deno.test("engines: two steps are computed at once with their own weights, and evaluated with the newest", async () => {
  const state = stateOf();
  const held: Pick<Held, "engine" | "odd" | "plan" | "state"> = {
    engine: null,
    odd: null,
    plan: PLAN,
    state,
  };
  assert.throws(() => engineOf(held, { pass: "train", step: 3 }), /is a shadow here/);
  await buildEngines(held, BUILD, { delayed: true, create });
  await loadEngines(held);
  const [older, newest] = [await lossWith(state.before!.params), await lossWith(state.params)];
  assert.notEqual(older, newest);
  const at = (step: number, pass: "train" | "eval" = "train") => engineOf(held, { pass, step });
  assert.equal((await at(3).forward(0, INPUT)).loss, older);
  assert.equal((await at(4).forward(0, INPUT)).loss, newest);
  assert.equal((await at(3, "eval").forward(null, INPUT)).loss, newest);
  // Step 3 is applied: its slots are free, and the step after the next has the weights that it made.
  const next = initParams(SPEC, STAGE, 3);
  held.state = { ...state, step: 4, params: next, before: { ...state.before!, params: state.params } };
  await loadNewest(held);
  assert.equal((await at(5).forward(0, INPUT)).loss, await lossWith(next));
  await at(4).backward(0, null);
  assert.equal(await at(4).weightGrad(0).then((grad) => grad.length), state.layout.size);
  const engines = enginesOf(held);
  assert.deepEqual([engines.length, new Set([at(4), at(5), ...engines]).size], [2, 2]);
  await buildEngines(held, BUILD, { delayed: true, create });
  assert.deepEqual(enginesOf(held), engines, "an engine was built twice");
  destroyEngines(held);
  await assert.rejects(at(4).forward(null, INPUT), /destroyed/);
});

Deno.test("engines: a stage takes twice the engine's memory, and room for older weights and a second sum", async () => {
  const held: Pick<Held, "engine" | "odd"> = { engine: null, odd: null };
  await buildEngines(held, BUILD, { delayed: true, create });
  const allocated = enginesOf(held).map((engine) =>
    Object.values(engine.memory()).reduce((a, b) => a + b, 0)
  );
  const each = engineBytes("cpu", BUILD);
  assert.deepEqual(allocated, [each, each]);
  const shape = { n_layer: 1, n_head: 1, n_kv_head: 1, n_embd: 4, n_inner: 6, block_size: 3 };
  const bytes = (schedule: string) => {
    const config = readConfig({ ...shape, batch_size: 1, codec_forward: "raw32", schedule });
    return holderBytes(STAGE, { slots: 1, recompute: "none" }, { spec: SPEC, config, kind: "cpu" });
  };
  assert.equal(bytes("2bw") - bytes("dynamic"), each + 8 * stageLayout(SPEC, STAGE).size);
});

Deno.test("engines: any other schedule has one, for all steps", async () => {
  const state = withDelay(stateOf(), false);
  const held: Pick<Held, "engine" | "odd" | "plan" | "state"> = {
    engine: null,
    odd: null,
    plan: PLAN,
    state,
  };
  await buildEngines(held, BUILD, { delayed: false, create });
  await loadEngines(held);
  assert.equal(held.odd, null);
  assert.equal(engineOf(held, { pass: "train", step: 3 }), engineOf(held, { pass: "train", step: 4 }));
  assert.equal(engineOf(held, { pass: "eval", step: 3 }), held.engine);
  assert.equal((await held.engine!.forward(null, INPUT)).loss, await lossWith(state.params));
  held.state = { ...state, step: 4, params: initParams(SPEC, STAGE, 3) };
  await loadNewest(held);
  assert.equal((await held.engine!.forward(null, INPUT)).loss, await lossWith(held.state.params));
});
