// The schedule 2bw on live peers: two steps overlap, and whoever goes, the weights are those of one process that computes each
// gradient with weights one step old. Random faults by the thousand are the scenario "2bw".
import assert from "node:assert/strict";
import { initParams } from "../../peer/model/init.ts";
import { specOf, stageLayout, wholeModel } from "../../peer/model/layout.ts";
import { createState } from "../../peer/exact/state.ts";
import { trainOn } from "../support/one_process.ts";
import { pick } from "../support/random.ts";
import { compareWithWhole } from "./compare.ts";
import { assertEqualsReference, createWorld, tinyConfig, tinyCorpus, VOCABULARY } from "./support.ts";
import type { World } from "./world.ts";

async function finish(label: string, world: World): Promise<void> {
  const finished = await world.run();
  await world.drain(2000);
  const { state } = world.coordinator;
  assert.ok(finished, `${label}: stuck at step ${state.committed} in ${state.phase}: ${state.reason}`);
}

/** Operations of a step that ended before the step before it was committed, by kind. */
function watchEarly(world: World): Record<string, number> {
  const early: Record<string, number> = { F: 0, B: 0, W: 0 };
  world.observers.push({
    finished: (_, job) => {
      if (job.job !== "op" || job.pass !== "train") return;
      if (job.step > world.coordinator.state.committed) early[job.kind]!++;
    },
  });
  return early;
}

const QUIET = { max_iters: 6, lr_decay_iters: 6, eval_interval: 100 };

Deno.test("2bw: forwards, backwards and weight gradients of a step run before the step before it is committed", async () => {
  for (const schedule of ["2bw", "dynamic"]) {
    const config = tinyConfig({ ...QUIET, schedule, gradient_accumulation_steps: 5 });
    const world = createWorld(config, 1, 3);
    const early = watchEarly(world);
    await finish(schedule, world);
    const counts = Object.values(early);
    if (schedule === "dynamic") assert.deepEqual(counts, [0, 0, 0]);
    else assert.ok(counts.every((count) => count > 5), JSON.stringify(early));
    await assertEqualsReference(world, config, schedule);
  }
});

Deno.test("2bw: a peer that dies with two steps open costs no step and no bit, on one to three stages", async () => {
  for (const [n_stage, N] of [[1, 3], [2, 5], [3, 7]] as const) {
    for (const seed of [1, 2, 3, 4]) {
      const label = `${n_stage} stages, seed ${seed}`;
      const config = tinyConfig({
        ...{ ...QUIET, schedule: "2bw", n_stage, min_peers: n_stage + 1, shadows: true },
        gradient_accumulation_steps: N,
      });
      const world = createWorld(config, seed, n_stage + 1);
      let open = false;
      const crash = (tries: number) => {
        const { round } = world.coordinator.state;
        if (round?.ahead !== true && tries > 0) return world.at(world.clock.now + 20, () => crash(tries - 1));
        open = round?.ahead === true;
        world.crash(pick(world.random, world.alive())!.id);
      };
      world.at(250 + 40 * seed * n_stage, () => crash(100));
      await finish(label, world);
      assert.ok(open, `${label}: there was but one step open`);
      assert.equal(world.coordinator.state.stepsRedone, 0, label);
      await assertEqualsReference(world, config, label);
    }
  }
});

Deno.test("2bw: taken up and left in the middle of a run, each step follows the rule that it was opened under", async () => {
  const config = tinyConfig({ ...QUIET, max_iters: 7, schedule: "dynamic", n_stage: 2, min_peers: 2 });
  const world = createWorld(config, 5, 2);
  for (const [step, schedule] of [[2, "2bw"], [5, "dynamic"]] as const) {
    world.at(10, () => world.process.take({ type: "admin", action: "change", step, set: { schedule } }));
  }
  await finish("changed", world);
  const spec = specOf(config, VOCABULARY);
  const stage = wholeModel(spec);
  const state = createState(stageLayout(spec, stage), initParams(spec, stage, config.seed));
  for (const [until, schedule] of [[2, "dynamic"], [5, "2bw"], [7, "dynamic"]] as const) {
    await trainOn({ config: { ...config, schedule }, spec, corpus: tinyCorpus(), state, until });
  }
  let compared = 0;
  for (const peer of world.alive()) compared += compareWithWhole(spec, peer.holder, state.params, "changed");
  assert.ok(compared >= spec.n_layer);
  assert.ok(world.alive().every(({ holder }) => holder.states().every((it) => it.before === undefined)));
});
