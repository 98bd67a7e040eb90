// Snapshots in peers' memory, over whole simulated runs: all holders of a stage are lost, the run goes back to what other stages'
// peers keep, counts the steps honestly, and ends with the reference's bits. With keepers lost meanwhile, and forged messages.
import assert from "node:assert/strict";
import type { RunEffect } from "../../coordinator/core/run_state.ts";
import { encodeSnapshot, type SnapshotMessage } from "../../peer/core/keeper_wire.ts";
import { restoreFile, type Shard } from "../../peer/exact/parity.ts";
import { hashBytes } from "../../peer/exact/chunk_hashes.ts";
import type { RunConfig } from "../../peer/wire/run.ts";
import { assertEqualsReference, createWorld, tinyConfig } from "./support.ts";
import type { World } from "./world.ts";

const SEEDS = 40;

/** Two stages on two holders each, and a snapshot with peers every three steps; the coordinator collects none. */
function config(changes: Record<string, unknown> = {}): RunConfig {
  return tinyConfig({
    ...{ parity: true, shadows: true, n_stage: 2, min_peers: 4, max_iters: 12, lr_decay_iters: 12 },
    ...{ snapshot_interval: 3, eval_interval: 100, ...changes },
  });
}

function lines<T extends string>(world: World, event: T) {
  return world.reports.flatMap((it: RunEffect) =>
    it.do === "report" && it.line.event === event ? [it.line as Extract<typeof it.line, { event: T }>] : []
  );
}

/** Both holders of a stage, as the view has them when `step` is committed. */
function killStage(world: World, stage: number, when: () => boolean): void {
  let done = false;
  const look = () => {
    if (done || !when()) return world.at(world.clock.now + 7, look);
    done = true;
    const { view } = world.coordinator.state;
    for (const { peer } of view!.stages[stage]!.replicas) world.crash(peer);
  };
  world.at(100, look);
}

async function finish(world: World, label: string): Promise<void> {
  const finished = await world.run();
  await world.drain(2000);
  const { state } = world.coordinator;
  assert.ok(finished, `${label}: stuck at step ${state.committed}, ${state.phase}: ${state.reason}`);
}

Deno.test(`snapshots: both holders of a stage die in one step, ${SEEDS} seeds; restored from peers, same bits`, async () => {
  let fromPeers = 0;
  for (let seed = 1; seed <= SEEDS; seed++) {
    const run = config();
    const world = createWorld(run, seed, 4);
    const { state } = world.coordinator;
    let known = 0;
    let committed = 0;
    killStage(world, seed % 2, () => {
      known = state.kept.current?.step ?? 0;
      committed = state.committed;
      return known > 0 && committed > known && state.phase === "round";
    });
    await finish(world, `seed ${seed}`);
    const [back, ...more] = lines(world, "rollback");
    assert.ok(back !== undefined && more.length === 0, `seed ${seed}: ${more.length + 1} rollbacks`);
    // A snapshot that was nearly complete may have become so while the deaths were noticed, never the other way.
    assert.ok(back.step >= known, `seed ${seed}: back to ${back.step} although peers kept ${known}`);
    assert.equal(back.steps_redone, state.stepsRedone);
    const before = world.reports.findIndex((it) => it.do === "report" && it.line.event === "rollback");
    const commits = world.reports.slice(0, before).filter((it) =>
      it.do === "persist" && it.record.kind === "commit"
    );
    assert.equal(back.steps_redone, commits.length - back.step, `seed ${seed}: the count is not honest`);
    assert.equal(lines(world, "snapshot").some((line) => line.step === back.step), true, `seed ${seed}`);
    fromPeers++;
    await assertEqualsReference(world, run, `seed ${seed}`);
  }
  assert.equal(fromPeers, SEEDS);
});

Deno.test("snapshots: a keeper dies while the run goes back; another has the state", async () => {
  let during = 0;
  for (let seed = 1; seed <= 20; seed++) {
    // Three stages with one holder each and two peers that hold nothing but shards.
    const run = config({ n_stage: 2, min_peers: 6, max_iters: 10, lr_decay_iters: 10 });
    const world = createWorld(run, seed, 6);
    const { state } = world.coordinator;
    killStage(world, 0, () => state.kept.current !== null && state.committed > state.kept.current.step);
    const look = () => {
      const asked = state.restoring?.stages.find((it) => it.file === null && it.peer !== "");
      if (asked === undefined) {
        return state.status === "finished" ? undefined : world.at(world.clock.now + 3, look);
      }
      during++;
      world.crash(asked.peer);
    };
    world.at(100, look);
    await finish(world, `seed ${seed}`);
    await assertEqualsReference(world, run, `seed ${seed}`);
  }
  assert.ok(during > 10, `only ${during} keepers died during a restore`);
});

Deno.test("snapshots: without faults they change no bit, and each is complete before the next", async () => {
  const run = config();
  const world = createWorld(run, 3, 4);
  await finish(world, "calm");
  const snapshots = lines(world, "snapshot");
  assert.deepEqual(snapshots.map((line) => line.step), [3, 6, 9]);
  assert.ok(snapshots.every((line) => line.bytes > 0));
  assert.equal(lines(world, "rollback").length, 0);
  await assertEqualsReference(world, run, "calm");
});

Deno.test("snapshots: forged, damaged, repeated and old messages change nothing and are counted", async () => {
  for (let seed = 1; seed <= 10; seed++) {
    const run = config();
    const world = createWorld(run, seed, 4);
    let forged = 0;
    const send = (to: string, from: string, message: SnapshotMessage) => {
      const peer = world.peers.get(to)!;
      const before = peer.snapshots.desk.refused;
      peer.snapshots.receive(from, encodeSnapshot(message));
      assert.equal(peer.snapshots.desk.refused, before + 1, `${message.type} was taken`);
      forged++;
    };
    const look = () => {
      const { state } = world.coordinator;
      const { current } = state.kept;
      if (state.status === "finished") return;
      for (const kept of current?.stages ?? []) {
        const keeper = kept.keepers[0];
        if (keeper === undefined || kept.file === null || world.peers.get(keeper.peer)!.dead) continue;
        const { firstLayer, endLayer } = kept.stage;
        const base = { firstLayer, endLayer, k: kept.k, ...kept.file, index: keeper.index };
        const old = { ...base, step: current!.step - 1 };
        const next = { ...base, step: current!.step + 1_000 };
        send(keeper.peer, kept.from, { type: "offer", id: old, hashes: [hashBytes(new Uint8Array(1))] });
        send(keeper.peer, "p9", { type: "offer", id: next, hashes: [hashBytes(new Uint8Array(1))] });
        send(keeper.peer, kept.from, { type: "kept", id: next });
        const peer = world.peers.get(keeper.peer)!;
        const before = peer.snapshots.desk.refused;
        peer.snapshots.receive("p9", new Uint8Array(47));
        assert.equal(peer.snapshots.desk.refused, before + 1);
      }
      world.at(world.clock.now + 150, look);
    };
    world.at(900, look);
    await finish(world, `seed ${seed}`);
    assert.ok(forged > 10, `seed ${seed}: ${forged} forged messages`);
    assert.equal(lines(world, "rollback").length, 0);
    await assertEqualsReference(world, run, `seed ${seed}`);
  }
});

Deno.test("snapshots: what keepers hold gives the state back that the reference has", async () => {
  const run = config();
  const world = createWorld(run, 5, 4);
  await finish(world, "kept");
  const { current } = world.coordinator.state.kept;
  assert.ok(current !== null && current.step === 9);
  for (const kept of current.stages) {
    const shards: Shard[] = kept.keepers.flatMap(({ peer }) =>
      world.peers.get(peer)!.snapshots.desk.core.shardsOf({ ...kept.stage, step: current.step })
    );
    const spare = kept.protection === "parity" ? 1 : 0;
    assert.equal(shards.length, kept.k + spare);
    for (const left of shards.keys()) {
      const restored = restoreFile(spare === 0 ? shards : shards.filter((_, i) => i !== left));
      assert.ok(restored.ok && hashBytes(restored.value.file) === kept.file!.hash);
    }
  }
});
