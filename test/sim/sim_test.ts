// Simulation of whole runs: coordinator and peers in one thread, virtual clock, random delays, departures. The final weights
// must equal the one-process run's, bit for bit. A failing seed is printed and is one line to rerun: SHOAL_SEED=n.
import assert from "node:assert/strict";
import { assertEqualsReference, createWorld, tinyConfig } from "./support.ts";
import { pick } from "../support/random.ts";

const SEEDS = 200;

async function finish(label: string, world: ReturnType<typeof createWorld>): Promise<void> {
  const finished = await world.run();
  const { state } = world.coordinator;
  assert.ok(
    finished,
    `${label}: stuck at step ${state.committed}, ${state.phase}, ${state.status}: ${state.reason}`,
  );
}

for (const schedule of ["dynamic", "1f1b", "gpipe"] as const) {
  Deno.test(`three stages with ${schedule} equal the one-process run bit for bit`, async () => {
    const config = tinyConfig({ schedule });
    for (const seed of [1, 2, 3]) {
      const world = createWorld(config, seed, 3);
      await finish(`seed ${seed}`, world);
      assert.equal(world.coordinator.state.stepsRedone, 0);
      await assertEqualsReference(world, config, `${schedule}, seed ${seed}`);
    }
  });
}

Deno.test("one crash anywhere, 200 seeds: the run goes on and ends with the reference's bits", async () => {
  const config = tinyConfig();
  const only = Number(Deno.env.get("SHOAL_SEED") ?? NaN);
  const seeds = Number.isNaN(only) ? Array.from({ length: SEEDS }, (_, i) => i + 1) : [only];
  let recovered = 0;
  let redone = 0;
  for (const seed of seeds) {
    const world = createWorld(config, seed, 3 + seed % 3);
    const crashAt = 200 + world.random() * 2500;
    world.at(crashAt, () => {
      const victim = pick(world.random, world.alive());
      if (victim !== undefined) world.crash(victim.id);
      if (seed % 2 === 0) world.join();
    });
    await finish(`seed ${seed}`, world);
    if (world.coordinator.state.gen > 1) recovered++;
    redone += world.coordinator.state.stepsRedone;
    await assertEqualsReference(world, config, `seed ${seed}`);
  }
  if (Number.isNaN(only)) {
    assert.ok(recovered > SEEDS / 2 && redone > 0, `${recovered} recoveries, ${redone} redone`);
  }
});
