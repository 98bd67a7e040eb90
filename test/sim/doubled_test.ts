// Two stages a peer, as the planner lays them out, with the real cores: whoever goes, the weights are the one-process run's.
import assert from "node:assert/strict";
import { pick } from "../support/random.ts";
import { assertEqualsReference, createWorld, tinyConfig } from "./support.ts";
import type { World } from "./world.ts";

/** More stages than peers: each holds two. */
const CONFIG = tinyConfig({ n_layer: 6, n_stage: 6, gradient_accumulation_steps: 6 });
const SEEDS = 12;

/** Each stage has two holders that compute, but for the one in the middle. */
function isMirrored({ coordinator: { state: { view } } }: World): boolean {
  const counts = view?.stages.map(({ replicas }) =>
    replicas.filter((it) => it.microBatches.length > 0).length
  );
  return counts?.join() === "2,1,2";
}

async function finish(label: string, world: World): Promise<void> {
  assert.ok(await world.run(), `${label}: stuck at step ${world.coordinator.state.committed}`);
  await world.drain(2000);
  await assertEqualsReference(world, CONFIG, label);
}

Deno.test("two stages each: three peers that mirror one another train to the reference's bits", async () => {
  for (const seed of [1, 2, 3]) {
    const world = createWorld(CONFIG, seed, 3);
    let mirrored = false;
    world.at(1_000, () => mirrored = isMirrored(world));
    await finish(`seed ${seed}`, world);
    assert.ok(mirrored, JSON.stringify(world.coordinator.state.view?.stages.map(({ replicas }) => replicas)));
    assert.equal(world.coordinator.state.stepsRedone, 0);
  }
});

Deno.test("two stages each: a peer goes and another comes, at any moment, and the bits stay the reference's", async () => {
  let kept = 0;
  for (let seed = 1; seed <= SEEDS; seed++) {
    const world = createWorld(CONFIG, seed, 3);
    world.at(300 + world.random() * 1500, () => {
      const victim = pick(world.random, world.alive());
      if (victim !== undefined) world.crash(victim.id);
      world.join();
    });
    await finish(`seed ${seed}`, world);
    kept += Number(world.coordinator.state.stepsRedone === 0);
  }
  // Only the middle stage of an odd number has a single holder.
  assert.ok(kept >= SEEDS / 3, `only ${kept} of ${SEEDS} lost nothing`);
});
