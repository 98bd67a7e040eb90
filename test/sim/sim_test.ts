// Simulation of whole runs: coordinator and peers in one thread, virtual clock, random delays, departures. The final weights
// must equal the one-process run's, bit for bit. A failing seed is printed and is one line to rerun: SHOAL_SEED=n.
import assert from "node:assert/strict";
import { specOf } from "../../peer/model/layout.ts";
import { runOneProcess } from "../support/one_process.ts";
import { pick } from "../support/random.ts";
import { excess } from "./memory.ts";
import {
  assertEqualsReference,
  createWorld,
  lossesOf,
  tinyConfig,
  tinyCorpus,
  VOCABULARY,
} from "./support.ts";
import type { World } from "./world.ts";

const SEEDS = 200;
/** Seeds of each rarer scenario. */
const FEW_SEEDS = 25;
const ONLY = Number(Deno.env.get("SHOAL_SEED") ?? NaN);

function seedsUpTo(count: number): number[] {
  console.log(Number.isNaN(ONLY) ? `seeds 1 to ${count}` : `seed ${ONLY}`);
  return Number.isNaN(ONLY) ? Array.from({ length: count }, (_, i) => i + 1) : [ONLY];
}

async function finish(label: string, world: World): Promise<void> {
  const finished = await world.run();
  await world.drain(2000);
  const { state } = world.coordinator;
  const where = `${state.phase}, generation ${state.gen}`;
  assert.ok(
    finished,
    `${label}: stuck at step ${state.committed}, ${where}, ${state.status}: ${state.reason}`,
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
  let recovered = 0;
  let redone = 0;
  for (const seed of seedsUpTo(SEEDS)) {
    const world = createWorld(config, seed, 3 + seed % 3);
    world.at(200 + world.random() * 2500, () => {
      const victim = pick(world.random, world.alive());
      if (victim !== undefined) world.crash(victim.id);
      if (seed % 2 === 0) world.join();
    });
    await finish(`seed ${seed}`, world);
    if (world.coordinator.state.gen > 1) recovered++;
    redone += world.coordinator.state.stepsRedone;
    await assertEqualsReference(world, config, `seed ${seed}`);
  }
  if (Number.isNaN(ONLY)) {
    assert.ok(recovered > SEEDS / 2 && redone > 0, `${recovered} recoveries, ${redone} redone`);
  }
});

Deno.test("with shadows no single crash loses a committed step, 100 seeds", async () => {
  const config = tinyConfig({ shadows: true, snapshot_interval: 1000, max_iters: 8 });
  let recovered = 0;
  for (const seed of seedsUpTo(100)) {
    const world = createWorld(config, seed, 2 + seed % 3);
    config.min_peers = 2 + seed % 3;
    world.at(200 + world.random() * 2500, () => {
      const victim = pick(world.random, world.alive());
      if (victim !== undefined) world.crash(victim.id);
    });
    await finish(`seed ${seed}`, world);
    const { state } = world.coordinator;
    if (state.gen > 1) recovered++;
    assert.equal(state.stepsRedone, 0, `seed ${seed}: steps were lost`);
    await assertEqualsReference(world, config, `seed ${seed}`);
  }
  if (Number.isNaN(ONLY)) assert.ok(recovered > 50, `${recovered} recoveries`);
});

Deno.test("three crashes with newcomers, and peers that fall silent but go on sending", async () => {
  const config = tinyConfig({ schedule: "1f1b", max_iters: 8 });
  let fenced = 0;
  for (const seed of seedsUpTo(FEW_SEEDS)) {
    const world = createWorld(config, seed, 4);
    for (let k = 0; k < 3; k++) {
      world.at(300 + k * 1200 + world.random() * 1000, () => {
        const victim = pick(world.random, world.alive());
        if (victim === undefined) return;
        if (world.random() < 0.5) world.mute(victim.id);
        else world.crash(victim.id);
        world.join();
      });
    }
    await finish(`seed ${seed}`, world);
    fenced += world.fenced;
    await assertEqualsReference(world, config, `seed ${seed}`);
  }
  assert.ok(fenced > 0, "no frame was ever refused: the zombies did not test the fence");
});

Deno.test("a second crash while the first is being recovered from", async () => {
  const config = tinyConfig({ shadows: true, min_peers: 4, max_iters: 8 });
  let redone = 0;
  for (const seed of seedsUpTo(50)) {
    const world = createWorld(config, seed, 5);
    const first = 400 + world.random() * 1500;
    for (const at of [first, first + world.random() * 400]) {
      world.at(at, () => {
        const victim = pick(world.random, world.alive());
        if (victim !== undefined) world.crash(victim.id);
      });
    }
    await finish(`seed ${seed}`, world);
    redone += world.coordinator.state.stepsRedone;
    await assertEqualsReference(world, config, `seed ${seed}`);
  }
  if (Number.isNaN(ONLY)) assert.ok(redone > 0, "no pair of crashes ever took both holders of a stage");
});

Deno.test("links break between living peers: nobody is put out and no step is lost", async () => {
  const config = tinyConfig({ shadows: true, max_iters: 8 });
  for (const seed of seedsUpTo(FEW_SEEDS)) {
    const world = createWorld(config, seed, 3);
    for (let k = 0; k < 3; k++) {
      world.at(400 + k * 900 + world.random() * 800, () => {
        const [a, b] = world.alive().toSorted(() => world.random() - 0.5);
        if (a !== undefined && b !== undefined) world.cut(a.id, b.id);
      });
    }
    await finish(`seed ${seed}`, world);
    const { state } = world.coordinator;
    assert.ok(state.gen > 1, `seed ${seed}: no link broke`);
    assert.equal(state.stepsRedone, 0, `seed ${seed}`);
    assert.equal(Object.keys(state.peers).length, 3, `seed ${seed}`);
    await assertEqualsReference(world, config, `seed ${seed}`);
  }
});

Deno.test("pausing and resuming at any moment changes no bit", async () => {
  const config = tinyConfig({ max_iters: 8 });
  for (const seed of seedsUpTo(FEW_SEEDS)) {
    const world = createWorld(config, seed, 3);
    for (let k = 0; k < 3; k++) {
      const at = 200 + k * 1000 + world.random() * 800;
      world.at(at, () => world.press("pause"));
      world.at(at + 50 + world.random() * 400, () => world.press("resume"));
    }
    await finish(`seed ${seed}`, world);
    assert.equal(world.coordinator.state.stepsRedone, 0, `seed ${seed}`);
    await assertEqualsReference(world, config, `seed ${seed}`);
  }
});

Deno.test("replicas share a stage's micro-batches, agree on every hash, and lose no step when one crashes", async () => {
  const config = tinyConfig({ n_stage: 2, min_peers: 5, gradient_accumulation_steps: 8, shadows: true });
  // Among these are seeds where a part of the old view arrives after the layers were cut anew.
  for (const seed of seedsUpTo(5 * FEW_SEEDS)) {
    const world = createWorld(config, seed, 5);
    world.at(900 + world.random() * 800, () => {
      const stage = world.coordinator.state.view?.stages.find((it) => it.replicas.length > 2);
      const victim = pick(world.random, stage?.replicas ?? []);
      if (victim !== undefined) world.crash(victim.peer);
    });
    await finish(`seed ${seed}`, world);
    const { state } = world.coordinator;
    assert.equal(state.stepsRedone, 0, `seed ${seed}: a step was lost although its stage had another holder`);
    assert.ok(state.agreements > 5, `seed ${seed}: ${state.agreements} agreements`);
    await assertEqualsReference(world, config, `seed ${seed}`);
  }
});

Deno.test("clean leaves, pauses and joins cost no step", async () => {
  const config = tinyConfig({ max_iters: 8 });
  for (const seed of seedsUpTo(FEW_SEEDS)) {
    const world = createWorld(config, seed, 4);
    world.at(500 + world.random() * 900, () => world.wish("p0", { type: "leave", reason: "test" }));
    world.at(900 + world.random() * 900, () => world.wish("p1", { type: "pause", paused: true }));
    world.at(2500 + world.random() * 900, () => world.wish("p1", { type: "pause", paused: false }));
    world.at(700 + world.random() * 2000, () => world.join());
    await finish(`seed ${seed}`, world);
    assert.equal(world.coordinator.state.stepsRedone, 0, `seed ${seed}`);
    assert.equal(world.coordinator.state.peers["p0"], undefined, `seed ${seed}: p0 never left`);
    await assertEqualsReference(world, config, `seed ${seed}`);
  }
});

Deno.test("a run of many steps keeps no more totals than one of few", async () => {
  const config = tinyConfig({ max_iters: 14, lr_decay_iters: 14, shadows: true });
  const world = createWorld(config, 1, 3);
  let longest = 0;
  world.observers.push({
    finished: (peer) => {
      assert.equal(excess(peer, config), null);
      longest = Math.max(longest, ...peer.holder.instances().map(({ log }) => log.size));
    },
  });
  await finish("seed 1", world);
  assert.equal(longest, 8);
});

Deno.test("fewer peers than stages: a peer hosts several stage instances", async () => {
  const config = tinyConfig({ n_stage: 3, min_peers: 2 });
  for (const seed of [1, 2]) {
    const world = createWorld(config, seed, 2);
    await finish(`seed ${seed}`, world);
    const held = world.coordinator.state.view?.stages.map((stage) => stage.replicas[0]?.peer);
    assert.deepEqual(new Set(held).size, 2);
    await assertEqualsReference(world, config, `seed ${seed}`);
  }
});

Deno.test("tied head on another peer: both ends hold the same embedding after every step", async () => {
  const config = tinyConfig({ tie_word_embeddings: true, n_stage: 3, min_peers: 4, reduce: "raw32" });
  for (const seed of seedsUpTo(10)) {
    const world = createWorld(config, seed, 4);
    await finish(`seed ${seed}`, world);
    const tables = world.alive().flatMap((peer) => peer.holder.states()).flatMap((state) => {
      const tensor = state.layout.tensors.find((it) => it.name === "model.embed_tokens.weight");
      return tensor === undefined ? [] : [state.params.slice(tensor.offset, tensor.offset + tensor.size)];
    });
    assert.ok(tables.length >= 2, "both ends hold the table");
    for (const table of tables) assert.deepEqual(table, tables[0]);
    await assertCloseToReference(world, config, `seed ${seed}`);
  }
});

/** Each end rounds its own share of a tied gradient, so a cut run differs from the whole one in the last bits only. */
async function assertCloseToReference(world: World, config: ReturnType<typeof tinyConfig>, label: string) {
  const expected = await referenceLosses(config);
  const losses = lossesOf(world);
  assert.equal(losses.length, expected.length);
  losses.forEach((loss, step) =>
    assert.ok(Math.abs(loss - expected[step]!) < 1e-5, `${label}, step ${step}`)
  );
}

async function referenceLosses(config: ReturnType<typeof tinyConfig>): Promise<number[]> {
  return (await runOneProcess(config, specOf(config, VOCABULARY), tinyCorpus())).losses;
}
