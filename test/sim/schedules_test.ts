// Every schedule on live peers: the weights after a few steps are the one-process run's, bit for bit, and each peer did its
// operations in the order that the schedule says. Who goes when is drawn in scenarios.ts.
import assert from "node:assert/strict";
import { isPlaced } from "../../peer/schedule/catalogue.ts";
import { placedOf, type PlacedOp } from "../../peer/schedule/placed.ts";
import { SCHEDULE_IDS, type ScheduleId } from "../../peer/wire/run.ts";
import { assertEqualsReference, createWorld, tinyConfig } from "./support.ts";
import type { World } from "./world.ts";

interface Shape {
  peers: number;
  /** Micro-batches of a step. */
  N: number;
  n_layer: number;
  n_stage?: number;
  chimera_pairs?: number;
}

/** Awkward sizes: odd ones where the schedule allows them, more peers than it can use, as few micro-batches as it takes. */
const SHAPES: Record<ScheduleId, Shape[]> = {
  "dynamic": [{ peers: 3, N: 5, n_layer: 3 }],
  "gpipe": [{ peers: 3, N: 5, n_layer: 4 }],
  "1f1b": [{ peers: 3, N: 5, n_layer: 4 }],
  "interleaved": [{ peers: 3, N: 3, n_layer: 7 }, { peers: 2, N: 4, n_layer: 6, n_stage: 6 }],
  "breadth-first": [{ peers: 3, N: 5, n_layer: 6 }],
  "chimera": [
    { peers: 2, N: 2, n_layer: 3 },
    { peers: 5, N: 8, n_layer: 5 },
    { peers: 4, N: 4, n_layer: 4, chimera_pairs: 2 },
  ],
  "chimera-doubling": [{ peers: 4, N: 8, n_layer: 5 }],
  "chimera-halving": [{ peers: 3, N: 4, n_layer: 3 }],
  "zb-h1": [{ peers: 3, N: 5, n_layer: 4 }],
  "zb-h2": [{ peers: 3, N: 7, n_layer: 3 }],
  "zb-v": [{ peers: 3, N: 2, n_layer: 7 }, { peers: 2, N: 5, n_layer: 4 }],
  "2bw": [
    { peers: 3, N: 5, n_layer: 4 },
    { peers: 1, N: 3, n_layer: 2 },
    { peers: 2, N: 2, n_layer: 3 },
    { peers: 4, N: 5, n_layer: 2, n_stage: 2 },
  ],
  "dualpipe": [{ peers: 4, N: 8, n_layer: 4 }, { peers: 3, N: 6, n_layer: 3 }],
};

function worldOf(schedule: ScheduleId, { peers, N, ...shape }: Shape, changes: Record<string, unknown> = {}) {
  const config = tinyConfig({
    ...{ schedule, gradient_accumulation_steps: N, min_peers: peers, max_iters: 4, n_stage: 0 },
    ...shape,
    ...changes,
  });
  return { config, world: (seed: number) => createWorld(config, seed, peers) };
}

async function finish(label: string, world: World): Promise<void> {
  const finished = await world.run();
  await world.drain(2000);
  const { state } = world.coordinator;
  assert.ok(finished, `${label}: stuck at step ${state.committed} in ${state.phase}: ${state.reason}`);
}

for (const schedule of SCHEDULE_IDS) {
  Deno.test(`${schedule}: the one-process run's bits, in the schedule's own order`, async () => {
    for (const [i, shape] of SHAPES[schedule].entries()) {
      const label = `${schedule}, ${JSON.stringify(shape)}`;
      const { config, world: create } = worldOf(schedule, shape);
      const world = create(i + 1);
      const ran = watchOrder(world);
      await finish(label, world);
      assert.equal(world.coordinator.state.stepsRedone, 0);
      await assertEqualsReference(world, config, label);
      if (!isPlaced(schedule)) continue;
      const { view } = world.coordinator.state;
      const placed = placedOf(view!);
      assert.ok(placed !== null, `${label}: the view is not the placement`);
      for (const [device, peer] of placed.peers.entries()) {
        const order: string[] = placed.orders[device]!.map(nameOf);
        assert.deepEqual(
          ran.get(peer),
          Array(4).fill(order).flat(),
          `${label}: ${peer} kept to another order`,
        );
      }
    }
  });
}

function nameOf({ kind, microBatch, stage }: PlacedOp): string {
  return `${kind}${microBatch}/${stage}`;
}

/** What each peer ran of training steps, in order. */
function watchOrder(world: World): Map<string, string[]> {
  const ran = new Map<string, string[]>();
  world.observers.push({
    finished: ({ id }, job) => {
      if (job.job !== "op" || job.pass !== "train") return;
      ran.set(id, [...ran.get(id) ?? [], nameOf(job)]);
    },
  });
  return ran;
}
