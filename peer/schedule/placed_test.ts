// From a view to the order of each peer: whatever the size, the order is the schedule's, keeps the rules of any schedule, and ends
// with random delays; and a view that is not exactly the placement has no order, so that nobody waits for what will not come.
import assert from "node:assert/strict";
import fc from "fast-check";
import { anyPlaced, type PlacedCase, placedView } from "../../test/support/placed_view.ts";
import type { StagePlan, View } from "../wire/run.ts";
import { isPlaced, stagesFor } from "./catalogue.ts";
import {
  activationArrived,
  dueRank,
  finished,
  gradientArrived,
  nextOp,
  opDone,
  type Progress,
  progressFromView,
  slotsHeld,
  type StageOp,
  takeOver,
} from "./executor.ts";
import type { Schedule } from "./ir.ts";
import { placedOf, type PlacedOp } from "./placed.ts";
import { problemsOf } from "./validate.ts";

const RUNS = { seed: 20240611, numRuns: 200 };
const choices = fc.infiniteStream(fc.nat(1000));

Deno.test("the order of every placed view passes the validator of schedules", () => {
  fc.assert(
    fc.property(anyPlaced, (of) => {
      const placed = placedOf(placedView(of));
      assert.ok(placed !== null);
      assert.deepEqual(placed.peers, Array.from({ length: of.P }, (_, device) => `p${device}`));
      assert.deepEqual(problemsOf(asSchedule(placed.schedule, placed.orders)), []);
    }),
    RUNS,
  );
});

Deno.test("peers that keep to their whole order finish with any delays, within the slots of each stage", () => {
  fc.assert(
    fc.property(anyPlaced, choices, (of, random) => {
      const view = placedView(of);
      const ran = runPeers(view, { choose: () => random.next().value! });
      const wanted = placedOf(view)!;
      for (const [device, peer] of wanted.peers.entries()) {
        assert.deepEqual(ran.get(peer), wanted.orders[device]!.map(nameOf));
      }
    }),
    RUNS,
  );
});

Deno.test("in the middle of a step peers turn to the dynamic order one before the other, and all finish", () => {
  fc.assert(
    fc.property(anyPlaced, choices, fc.nat(60), fc.nat(255), (of, random, turnAt, who) => {
      const view = placedView(of);
      const turns = (peer: string) => ((who >> (Number(peer.slice(1)) % 8)) & 1) === 1;
      const ran = runPeers(view, { choose: () => random.next().value!, turnAt, turns });
      const total = [...ran.values()].reduce((sum, ops) => sum + ops.length, 0);
      assert.equal(total, 3 * of.N * view.stages.length);
    }),
    RUNS,
  );
});

Deno.test("orders of small placements: who computes what of which stage when", () => {
  assert.deepEqual(ordersOf({ schedule: "chimera", P: 2, N: 2 }), [
    "F0/0 F1/1 B1/1 W1/1 B0/0 W0/0",
    "F1/0 F0/1 B0/1 W0/1 B1/0 W1/0",
  ]);
  assert.deepEqual(
    ordersOf({ schedule: "zb-h1", P: 2, N: 3 }),
    ["F0/0 F1/0 B0/0 W0/0 F2/0 B1/0 W1/0 B2/0 W2/0", "F0/1 B0/1 F1/1 B1/1 W0/1 F2/1 B2/1 W1/1 W2/1"],
  );
  assert.deepEqual(ordersOf({ schedule: "breadth-first", P: 2, N: 2 }), [
    "F0/0 F1/0 F0/2 F1/2 B0/2 W0/2 B1/2 W1/2 B0/0 W0/0 B1/0 W1/0",
    "F0/1 F1/1 F0/3 F1/3 B0/3 W0/3 B1/3 W1/3 B0/1 W0/1 B1/1 W1/1",
  ]);
});

Deno.test("a view that is not exactly the placement has no order of its own", () => {
  const of: PlacedCase = { schedule: "chimera", P: 4, N: 8 };
  const changed = (change: (stages: StagePlan[]) => void): View => {
    const view = structuredClone(placedView(of));
    change(view.stages);
    return view;
  };
  assert.notEqual(placedOf(changed(() => {})), null);
  const withShadow = changed((stages) => stages[0]!.replicas.push({ peer: "x", microBatches: [] }));
  assert.notEqual(placedOf(withShadow), null, "a shadow computes nothing");
  const taken = changed(([first]) =>
    first!.replicas = [{ peer: "p0", microBatches: [0, 1, 2, 3, 4, 5, 6, 7] }]
  );
  const swapped = changed(([first]) => {
    const [a, b] = first!.replicas;
    [a!.microBatches, b!.microBatches] = [[0, 1, 4, 6], [2, 3, 5, 7]];
  });
  const moved = changed((stages) => {
    for (const replica of stages[1]!.replicas) if (replica.peer === "p1") replica.peer = "x";
  });
  const crossed = changed(([first, second]) => {
    for (const replica of first!.replicas) if (replica.peer === "p0") replica.peer = "p1";
    for (const replica of second!.replicas) if (replica.peer === "p1") replica.peer = "p0";
  });
  const tight = changed((stages) => stages[2]!.inflight--);
  for (const view of [taken, swapped, moved, crossed, tight]) {
    assert.equal(placedOf(view), null);
    for (const { index, replicas } of view.stages) {
      for (const { peer } of replicas) assert.equal(progressFromView(view, index, peer).order, null);
    }
  }
  assert.equal(placedOf({ ...placedView(of), schedule: "dynamic" }), null);
  const view = placedView(of);
  assert.notEqual(placedOf(view), null);
  assert.equal(placedOf({ ...view, schedule: "zb-h1" }), null, "the same stages under another name");
  assert.equal(placedOf({ schedule: "chimera", stages: [] }), null);
});

Deno.test("what a schedule needs is said in words", () => {
  assert.equal(isPlaced("1f1b"), false);
  assert.equal(stagesFor("zb-v", 3, 0), 6);
  assert.equal(stagesFor("interleaved", 3, 0), 6);
  assert.equal(stagesFor("interleaved", 3, 9), 9);
  assert.match(String(stagesFor("interleaved", 3, 3)), /n_stage a multiple of 3 and more/);
  assert.match(String(stagesFor("chimera", 4, 2)), /chimera on 4 peers has 4 stages, n_stage is 2/);
});

function ordersOf(of: PlacedCase): string[] {
  return placedOf(placedView(of))!.orders.map((order) => order.map(nameOf).join(" "));
}

function nameOf({ kind, microBatch, stage }: PlacedOp): string {
  return `${kind}${microBatch}/${stage}`;
}

/** The flat orders as a schedule again, so that the validator judges what peers really run. */
function asSchedule(schedule: Schedule, orders: PlacedOp[][]): Schedule {
  const directions = schedule.placement.length;
  const ops = orders.map((order) =>
    order.map(({ kind, stage, microBatch }) => ({
      ...{ kind, stage, direction: microBatch % directions, microBatch: Math.floor(microBatch / directions) },
    }))
  );
  return { ...schedule, ops };
}

interface Running {
  peer: string;
  stage: number;
  progress: Progress;
}

/** Interleaves peers and deliveries as `choose` says, one operation per peer at a time; names of what each peer ran. */
function runPeers(
  view: View,
  how: { choose: () => number; turnAt?: number; turns?: (peer: string) => boolean },
): Map<string, string[]> {
  const running = view.stages.flatMap(({ index, replicas }) =>
    replicas.map(({ peer }): Running => ({
      peer,
      stage: index,
      progress: progressFromView(view, index, peer),
    }))
  );
  const ran = new Map(running.map(({ peer }) => [peer, [] as string[]]));
  const messages: { kind: "F" | "B"; stage: number; microBatch: number }[] = [];
  for (let turn = 0; !running.every(({ progress }) => finished(progress)); turn++) {
    if (turn === how.turnAt) {
      for (const { peer, progress } of running) if (how.turns?.(peer) === true) takeOver(progress, []);
    }
    const moves = [
      ...[...ran.keys()].flatMap((peer) => movesOf(running.filter((it) => it.peer === peer))),
      ...messages.map((_, i) => () => deliver(messages.splice(i, 1)[0]!)),
    ];
    if (moves.length === 0 && how.turnAt !== undefined) {
      turnAll();
      continue;
    }
    assert.ok(moves.length > 0, `deadlock: ${JSON.stringify(view)}`);
    moves[how.choose() % moves.length]!();
  }
  return ran;

  /** News of an amended view reaches everybody in the end. */
  function turnAll(): void {
    assert.ok(running.some(({ progress }) => progress.order !== null), `deadlock: ${JSON.stringify(view)}`);
    for (const { progress } of running) takeOver(progress, []);
  }

  /** As peer/core/round.ts chooses: who is not due waits. */
  function movesOf(own: Running[]): (() => void)[] {
    const due = Math.min(...own.map(({ progress }) => dueRank(progress) ?? Infinity));
    return own.filter(({ progress }) => (dueRank(progress) ?? due) <= due).flatMap((it) => {
      const op = nextOp(it.progress);
      return op === null ? [] : [() => runOp(it, op)];
    });
  }

  function runOp({ peer, stage, progress }: Running, op: StageOp): void {
    opDone(progress, op);
    assert.ok(slotsHeld(progress) <= view.stages[stage]!.inflight);
    ran.get(peer)!.push(nameOf({ ...op, stage }));
    if (op.kind !== "W") messages.push({ kind: op.kind, stage, microBatch: op.microBatch });
  }

  function deliver(message: { kind: "F" | "B"; stage: number; microBatch: number }): void {
    const to = message.stage + (message.kind === "F" ? 1 : -1);
    const arrived = message.kind === "F" ? activationArrived : gradientArrived;
    for (const it of running) if (it.stage === to) arrived(it.progress, message.microBatch);
  }
}
