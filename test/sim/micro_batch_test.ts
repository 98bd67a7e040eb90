// Runs whose planner chooses the size of micro-batches, again and again while peers and the coordinator come and go: the weights are
// those of one process that follows the same sizes, bit for bit, and every step has its sequences.
import assert from "node:assert/strict";
import { initParams } from "../../peer/model/init.ts";
import { specOf, stageLayout, wholeModel } from "../../peer/model/layout.ts";
import { createState } from "../../peer/exact/state.ts";
import { withSize } from "../../coordinator/plan/planner_batch.ts";
import { trainOn } from "../support/one_process.ts";
import { pick } from "../support/random.ts";
import { compareWithWhole } from "./compare.ts";
import { createWorld, tinyConfig, tinyCorpus, VOCABULARY } from "./support.ts";
import type { World } from "./world.ts";

const STEPS = 8;
const WORLDS = 16;

/** In every third world two steps overlap. */
const SCHEDULES = ["dynamic", "auto", "2bw"] as const;

const CONFIG = tinyConfig({
  ...{ micro_batch: "auto", batch_size: 2, gradient_accumulation_steps: 8, eval_iters: 4, eval_interval: 3 },
  ...{ max_iters: STEPS, lr_decay_iters: STEPS, min_peers: 3, n_stage: 0, shadows: true },
});

/** The sizes with which each step was computed, in order; the last is the one that was committed. */
function watchSizes(world: World): number[][] {
  const sizes: number[][] = Array.from({ length: STEPS }, () => []);
  world.observers.push({
    finished: ({ core: { state: { config } } }, job) => {
      if (job.job !== "op" || job.pass !== "train" || job.kind !== "F") return;
      assert.equal(config.batch_size * config.gradient_accumulation_steps, 16);
      assert.equal(config.batch_size * config.eval_iters, 8);
      if (sizes[job.step]!.at(-1) !== config.batch_size) sizes[job.step]!.push(config.batch_size);
    },
  });
  return sizes;
}

/** Peers that come and go, a coordinator that is killed, often between a decision and its view, and an organizer who plans anew. */
function disturb(world: World): void {
  const { random } = world;
  const soon = () => 300 + random() * 2500;
  for (let k = 0; k < 2; k++) {
    world.at(soon(), () => void world.join());
    world.at(soon(), () => world.process.take({ type: "admin", action: "replan" }));
    world.at(soon(), () => world.crash(pick(random, world.alive())?.id ?? ""));
  }
  const kind = pick(random, ["view", "config", "commit"]);
  world.at(soon(), () =>
    world.crashCoordinator({
      before: (effect) => effect.do === "persist" && effect.record.kind === kind,
      ...{ downMs: 100 + random() * 500, tear: random() < 0.5, lose: random() < 0.5 },
    }));
}

Deno.test("micro-batch: whatever sizes are chosen in 16 worlds, the weights are those of one process with the same sizes", async () => {
  const spec = specOf(CONFIG, VOCABULARY), stage = wholeModel(spec);
  const seen = new Set<number>();
  let [changing, compared] = [0, 0];
  for (let seed = 1; seed <= WORLDS; seed++) {
    const config = { ...CONFIG, schedule: SCHEDULES[seed % 3]! };
    const world = createWorld(config, seed, 3);
    const sizes = watchSizes(world);
    disturb(world);
    const finished = await world.run();
    await world.drain(2000);
    const label = `seed ${seed}, sizes ${JSON.stringify(sizes)}`;
    const { state: { committed, phase, reason } } = world.coordinator;
    assert.ok(finished, `${label}: stuck at step ${committed} in ${phase}: ${reason}`);
    const last = sizes.map((it) => it.at(-1)!);
    const state = createState(stageLayout(spec, stage), initParams(spec, stage, CONFIG.seed));
    for (const [step, size] of last.entries()) {
      await trainOn({ config: withSize(config, size), spec, corpus: tinyCorpus(), state, until: step + 1 });
      seen.add(size);
    }
    if (new Set(last).size > 1) changing++;
    const of = world.alive().map((peer) => compareWithWhole(spec, peer.holder, state.params, label));
    // A coordinator that dies at the very end finds its run finished, and nobody to ask.
    if (of.reduce((sum, tensors) => sum + tensors, 0) >= spec.n_layer) compared++;
  }
  assert.ok(compared >= 0.9 * WORLDS, `${compared} worlds were compared`);
  assert.ok(seen.size >= 3 && changing >= 3, `sizes ${[...seen]}; ${changing} worlds changed theirs`);
});
