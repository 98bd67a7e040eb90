// A run that leaves its schedule to the planner, with the real cores: whichever order it takes at which cut, the weights are the
// one-process run's, whoever goes and comes.
import assert from "node:assert/strict";
import { specOf } from "../../peer/model/layout.ts";
import { followedSchedule } from "../../peer/schedule/placed.ts";
import { pick } from "../support/random.ts";
import { assertEqualsReference, tinyConfig, tinyCorpus, VOCABULARY } from "./support.ts";
import { World } from "./world.ts";

/** Two peers with half of the model each wait for one another in the dynamic order, whatever their links are like. */
const CONFIG = tinyConfig({
  schedule: "auto",
  n_stage: 2,
  gradient_accumulation_steps: 4,
  min_peers: 2,
  shadows: true,
});
const SEEDS = 40;

/** Peers measure their links before they get work. */
function createWorld(seed: number): World {
  const spec = specOf(CONFIG, VOCABULARY);
  return new World({ config: CONFIG, spec, corpus: tinyCorpus(), seed, peers: 2, probes: true });
}

function orderOf({ coordinator: { state: { view } } }: World): string {
  return view === null ? "none" : followedSchedule(view);
}

Deno.test("auto: whichever schedule is taken, and whoever goes from it, the bits stay the reference's", async () => {
  const taken: string[] = [];
  let lost = 0;
  for (let seed = 1; seed <= SEEDS; seed++) {
    const world = createWorld(seed);
    world.at(1_000 + world.random() * 800, () => {
      const before = orderOf(world);
      taken.push(before);
      const victim = pick(world.random, world.alive());
      if (seed % 4 === 0 || victim === undefined) return;
      world.crash(victim.id);
      world.join();
      world.at(
        world.clock.now + 900,
        () => lost += Number(before !== "dynamic" && orderOf(world) === "dynamic"),
      );
    });
    assert.ok(await world.run(), `seed ${seed}: stuck at step ${world.coordinator.state.committed}`);
    await world.drain(2000);
    await assertEqualsReference(world, CONFIG, `seed ${seed}`);
  }
  const others = taken.filter((schedule) => !["dynamic", "none"].includes(schedule));
  assert.ok(others.length >= SEEDS / 8 && taken.includes("dynamic"), taken.join());
  assert.ok(lost > 0, "no departure ever ended an order");
});
