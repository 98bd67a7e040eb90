// Stages whose steps are made by an engine's optimizer, through everything that may happen to them: somebody learns the stage, its
// holder leaves or dies, the layers are cut anew, the coordinator restarts. The optimizer here computes in the exact core's
// arithmetic, so whatever the history, the checkpoint must have the bits of the one-process run.
import assert from "node:assert/strict";
import type { RunEffect } from "../../coordinator/core/run_state.ts";
import { createCpuEngine } from "../../peer/engine/cpu.ts";
import type { StageBuild } from "../../peer/engine/engine.ts";
import type { Job } from "../../peer/core/peer_state.ts";
import { stateHash } from "../../peer/exact/hash.ts";
import { specOf } from "../../peer/model/layout.ts";
import { UNREAD_STATE } from "../../peer/wire/values.ts";
import type { RunConfig } from "../../peer/wire/run.ts";
import { withExactOptimizer } from "../support/exact_optimizer.ts";
import { rangeOf, Reference, referenceOf } from "./reference.ts";
import { tinyConfig, tinyCorpus, VOCABULARY } from "./support.ts";
import { World } from "./world.ts";

const SEEDS = [1, 2, 3, 4, 5, 6];
const base = { optimizer: "auto", reduce: "raw32", max_iters: 8, lr_decay_iters: 8, eval_interval: 100 };

interface Watched {
  world: World;
  /** What jobs of which kind ended with, oldest first. */
  ended: { peer: string; job: Job; hash: string | undefined }[];
  /** Views' optimizers by stage, as they were told. */
  modes: (string | undefined)[][];
}

function watch(config: RunConfig, seed: number, peers: number): Watched {
  const spec = specOf(config, VOCABULARY);
  const microBatches = config.gradient_accumulation_steps;
  const createEngine = (build: StageBuild) =>
    Promise.resolve(withExactOptimizer(createCpuEngine(build), build, microBatches));
  const options = { config, spec, corpus: tinyCorpus(), seed, peers, createEngine, gpuOptimizer: true };
  const world = new World(options);
  const ended: Watched["ended"] = [];
  const modes: Watched["modes"] = [];
  world.observers.push({
    finished: (peer, job, result) => void ended.push({ peer: peer.id, job, hash: result.hash }),
    coordinator(effect) {
      if (effect.do !== "persist" || effect.record.kind !== "view") return;
      modes.push(effect.record.view.stages.map((stage) => stage.optimizer));
    },
  });
  return { world, ended, modes };
}

async function assertReference({ world }: Watched, config: RunConfig, what: string): Promise<void> {
  const spec = specOf(config, VOCABULARY);
  const create = (build: StageBuild) => Promise.resolve(createCpuEngine(build));
  const options = { config, spec, corpus: tinyCorpus(), createEngine: create };
  const reference: Reference = await referenceOf(options, "optimizer");
  const last = world.reports.findLast((effect) => effect.do === "checkpoint");
  assert.ok(last?.do === "checkpoint" && last.source.step === config.max_iters, `${what}: no checkpoint`);
  for (const file of last.source.files) {
    assert.equal(file.hash, reference.stateHash(file, config.max_iters), `${what}: stage ${file.stage + 1}`);
  }
  // Whoever trains with integers, from the start or after the GPU's end, has the reference's bits too.
  for (const state of world.alive().flatMap((peer) => peer.holder.states())) {
    if (state.params.length === 0) continue;
    const wanted = reference.stateHash(rangeOf(state.layout), config.max_iters);
    assert.equal(stateHash(state), wanted, `${what}: a holder with other bits`);
  }
}

async function play(
  changes: Record<string, unknown>,
  peers: number,
  faults: (world: World) => void,
): Promise<Watched[]> {
  const config = tinyConfig({ ...base, min_peers: peers, ...changes });
  const watched: Watched[] = [];
  for (const seed of SEEDS) {
    const it = watch(config, seed, peers);
    faults(it.world);
    assert.ok(await it.world.run(), `seed ${seed}: ${it.world.coordinator.state.reason}`);
    await it.world.drain(2_000);
    await assertReference(it, config, `seed ${seed}`);
    watched.push(it);
  }
  const steps = watched.flatMap(({ ended }) => ended).filter(({ job }) => job.job === "apply");
  assert.ok(steps.some(({ hash }) => hash === UNREAD_STATE), "no step was made on a GPU");
  return watched;
}

Deno.test("each stage's only holder makes its steps, and no state is read but for checkpoints", async () => {
  const runs = await play({ snapshot_interval: 100 }, 3, () => {});
  for (const { ended, modes } of runs) {
    assert.deepEqual(modes, [["gpu", "gpu", "gpu"]]);
    const kinds = (kind: Job["job"]) => ended.filter(({ job }) => job.job === kind).length;
    assert.equal(kinds("export"), 3, "one state of each stage is read, at the end");
    assert.equal(kinds("exact"), 0);
    const applied = ended.filter(({ job }) => job.job === "apply");
    assert.ok(applied.length === 24 && applied.every(({ hash }) => hash === UNREAD_STATE));
  }
});

Deno.test("a run that wants the exact core everywhere has it, and so has a peer that cannot otherwise", async () => {
  const spec = specOf(tinyConfig(base), VOCABULARY);
  const config = tinyConfig({ ...base, optimizer: "exact" });
  const exact = watch(config, 1, 3);
  const unable = new World({ config: tinyConfig(base), spec, corpus: tinyCorpus(), seed: 1, peers: 3 });
  for (const world of [exact.world, unable]) {
    assert.ok(await world.run());
    assert.ok(world.coordinator.state.view!.stages.every((stage) => stage.optimizer === undefined));
  }
});

Deno.test("who learns a stage ends its optimizer on the GPU between two steps, and its state is verified", async () => {
  const runs = await play({ n_stage: 3 }, 3, (world) => world.at(500, () => world.join()));
  for (const { world, ended, modes } of runs) {
    assert.equal(modes.at(-1)!.filter((mode) => mode === "exact").length, 1, "one stage has two holders");
    const exact = ended.filter(({ job }) => job.job === "exact");
    assert.equal(exact.length, 1);
    const { stage } = exact[0]!.job as Job & { job: "exact" };
    const from = ended.indexOf(exact[0]!);
    const later = ended.slice(from).filter(({ job }) => job.job === "apply" && job.stage === stage);
    assert.ok(
      later.length > 0 && later.every(({ hash }) => hash !== UNREAD_STATE),
      "then states have hashes",
    );
    assert.ok(world.coordinator.state.events.some(({ text }) => text.includes("its state verified")));
  }
});

Deno.test("a holder may leave a paused run: its state is verified although no step follows", async () => {
  await play({ n_stage: 3 }, 3, (world) => {
    world.at(600, () => world.press("pause"));
    world.at(2_000, () => world.join());
    world.at(3_000, () => world.wish("p1", { type: "leave", reason: "test" }));
    world.at(8_000, () => {
      const { events, phase, peers } = world.coordinator.state;
      assert.equal(phase, "held");
      assert.ok(events.some(({ text }) => text.includes("its state verified")));
      assert.deepEqual(Object.keys(peers).sort(), ["p0", "p2", "p3"]);
      world.press("resume");
    });
  });
});

Deno.test("a holder that leaves hands its state from the GPU over", async () => {
  await play({ n_stage: 3 }, 3, (world) => {
    world.at(400, () => world.join());
    world.at(450, () => world.wish("p1", { type: "leave", reason: "test" }));
  });
});

Deno.test("a learner that goes leaves a stage with one holder, which stays exact", async () => {
  const runs = await play({ n_stage: 3, max_iters: 12, lr_decay_iters: 12 }, 3, (world) => {
    world.at(400, () => world.join());
    world.at(700 + world.random() * 600, () => world.crash("p3"));
  });
  for (const { modes } of runs) assert.ok(modes.slice(1).every((stages) => stages.includes("exact")));
});

Deno.test("a stage lost with its GPU goes back to the snapshot, and a new cut begins on GPUs again", async () => {
  const runs = await play({ n_stage: 3 }, 3, (world) => {
    world.at(700 + world.random() * 800, () => world.crash("p1"));
    world.at(1_500, () => world.join());
  });
  const again = ({ modes }: Watched) =>
    modes.slice(1).some((stages) => stages.every((mode) => mode === "gpu"));
  assert.ok(runs.every(again));
});

Deno.test("more stages for more peers: states come from one GPU and go to others", async () => {
  const runs = await play({ n_stage: 2 }, 2, (world) => {
    world.at(600, () => world.join());
    world.at(
      800,
      () => world.process.take({ type: "admin", action: "change", step: 0, set: { n_stage: 3 } }),
    );
  });
  for (const { modes } of runs) assert.deepEqual([modes[0]!.length, modes.at(-1)!.length], [2, 3]);
});

Deno.test("a coordinator that restarts goes on with steps whose states it has no hashes of", async () => {
  await play({ n_stage: 3, max_iters: 12, lr_decay_iters: 12 }, 3, (world) => {
    const at = 300 + world.random() * 900;
    world.at(at, () => world.crashCoordinator({ downMs: 1_500, tear: false, lose: world.random() < 0.5 }));
    world.at(at + 2_500 * world.random(), () => world.join());
  });
});

/** What may happen, each at a time of its own. */
const EVENTS: ((world: World, at: number) => void)[] = [
  (world, at) => world.at(at, () => world.join()),
  (world, at) => world.at(at, () => world.crash(`p${Math.floor(world.random() * 4)}`)),
  (world, at) =>
    world.at(at, () => world.freeze(`p${Math.floor(world.random() * 4)}`, world.random() * 20_000)),
  (world, at) => {
    const id = `p${Math.floor(world.random() * 4)}`;
    world.at(at, () => world.peers.has(id) && world.wish(id, { type: "leave", reason: "test" }));
  },
  (world, at) => {
    const before = (effect: RunEffect) => effect.do === "persist" || world.random() < 0.1;
    const crash = {
      downMs: 500 + world.random() * 3_000,
      tear: world.random() < 0.3,
      lose: world.random() < 0.5,
    };
    world.at(at, () => world.crashCoordinator({ ...crash, before }));
  },
];

Deno.test("whatever happens in whatever order, the steps that are kept are the reference's", async () => {
  await play({ n_stage: 3, max_iters: 12, lr_decay_iters: 12, snapshot_interval: 3 }, 3, (world) => {
    for (let i = 0; i < 4; i++) {
      EVENTS[Math.floor(world.random() * EVENTS.length)]!(world, 300 + world.random() * 3_000);
    }
    world.at(40_000, () => world.heal());
    // Whoever has gone is made good, or nobody could finish the run.
    for (const at of [5_000, 6_000, 7_000]) world.at(at, () => world.join());
  });
});
