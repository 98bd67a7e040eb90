// Who does what inside one cut, as properties over random stages and peers: whatever happens, each micro-batch of a stage has
// exactly one replica, and in the middle of a step nobody loses one. Exact layouts of small cases beside them.
import assert from "node:assert/strict";
import fc from "fast-check";
import type { ReplicaPlan, StagePlan } from "../../peer/wire/run.ts";
import { replicasOf } from "../../test/support/peer_harness.ts";
import { type PeerRecord, zeroCounters } from "./run_state.ts";
import { chooseLearner, learned, neediestStage, reshare, withLearner, withoutPeer } from "./shares.ts";

const RUNS = { seed: 6, numRuns: 500 };
const IDS = ["a", "b", "c", "d", "e", "f"];

function peerOf(id: string, blockMs = 10, hidden = false): PeerRecord {
  const flags = { paused: false, leaving: false, hidden };
  const about = { id, runtime: "deno" as const, adapter: "", engine: "cpu", name: id };
  return { ...about, joinedAt: 0, heardAt: 0, ...zeroCounters(), ...flags, blockMs, memoryBytes: 1e9 };
}

function peersOf(blockMs: number[]): Record<string, PeerRecord> {
  return Object.fromEntries(IDS.map((id, i) => [id, peerOf(id, blockMs[i] ?? 10)]));
}

function stagesOf(holders: string[]): StagePlan[] {
  return holders.map((text, index) => ({
    ...{ index, firstLayer: index, endLayer: index + 1, embed: index === 0, inflight: 4 },
    ...{ head: index === holders.length - 1, replicas: replicasOf(text) },
  }));
}

function shown(stages: StagePlan[]): string[] {
  return stages.map((stage) =>
    stage.replicas.map(({ peer, microBatches, learning }) =>
      `${peer}${learning ? "?" : ""}${microBatches.length === 0 ? "" : `:${microBatches.join("")}`}`
    ).join(" ")
  );
}

/** Each micro-batch once, shares ascending, and nothing for a learner. */
function assertCover(stage: StagePlan, count: number): void {
  const all = stage.replicas.flatMap((replica) => replica.microBatches);
  assert.deepEqual(all.toSorted((a, b) => a - b), Array.from({ length: count }, (_, m) => m));
  for (const { microBatches, learning } of stage.replicas) {
    assert.deepEqual(microBatches, microBatches.toSorted((a, b) => a - b));
    if (learning === true) assert.deepEqual(microBatches, []);
  }
}

/** Stages in which up to six peers compute, keep a shadow, or learn; each stage with at least one holder. */
const anyStages = fc.record({
  count: fc.integer({ min: 1, max: 12 }),
  blockMs: fc.array(fc.double({ min: 0.01, max: 5_000, noNaN: true }), { minLength: 6, maxLength: 6 }),
  stages: fc.array(
    fc.record({
      members: fc.uniqueArray(fc.constantFrom(...IDS), { minLength: 1, maxLength: 6 }),
      computing: fc.integer({ min: 1, max: 6 }),
      learning: fc.nat(3),
      owners: fc.array(fc.nat(), { minLength: 12, maxLength: 12 }),
    }),
    { minLength: 1, maxLength: 4 },
  ),
}).map(({ count, blockMs, stages }) => ({
  count,
  peers: peersOf(blockMs),
  stages: stagesOf(stages.map(() => "a")).map((stage, s): StagePlan => {
    const { members, computing, learning, owners } = stages[s]!;
    const able = Math.min(computing, members.length);
    const shares = new Map(members.map((peer): [string, number[]] => [peer, []]));
    for (let m = 0; m < count; m++) shares.get(members[owners[m]! % able]!)!.push(m);
    const learns = (i: number) => i >= Math.max(able, members.length - learning);
    return {
      ...stage,
      replicas: members.map((peer, i): ReplicaPlan => {
        const plan = { peer, microBatches: shares.get(peer)! };
        return learns(i) ? { ...plan, learning: true } : plan;
      }),
    };
  }),
}));

function shareOf(stage: StagePlan, peer: string): number[] {
  return stage.replicas.find((replica) => replica.peer === peer)?.microBatches ?? [];
}

Deno.test("shares: without a peer every stage keeps an exact cover, and the others only gain", () => {
  fc.assert(
    fc.property(anyStages, fc.constantFrom(...IDS), ({ stages, peers, count }, gone) => {
      const before = JSON.stringify(stages);
      const after = withoutPeer(stages, gone, { peers });
      assert.equal(JSON.stringify(stages), before, "the stages before were changed");
      const lost = stages.some((stage) =>
        stage.replicas.some((it) => it.peer === gone) &&
        stage.replicas.every((it) => it.peer === gone || it.learning === true)
      );
      assert.equal(after === null, lost, "null exactly if a stage would be lost");
      for (const [s, stage] of (after ?? []).entries()) {
        assertCover(stage, count);
        assert.ok(!stage.replicas.some((replica) => replica.peer === gone));
        for (const replica of stage.replicas) {
          const had = shareOf(stages[s]!, replica.peer);
          assert.ok(had.every((m) => replica.microBatches.includes(m)), "a share shrank in mid-step");
        }
      }
    }),
    RUNS,
  );
});

Deno.test("shares: one departure after the other keeps the cover until the last holder goes", () => {
  fc.assert(
    fc.property(anyStages, fc.shuffledSubarray(IDS), ({ stages, peers, count }, order) => {
      let now: StagePlan[] | null = stages;
      for (const gone of order) {
        now = withoutPeer(now, gone, { peers });
        if (now === null) return;
        for (const stage of now) assertCover(stage, count);
      }
    }),
    RUNS,
  );
});

Deno.test("shares: dealt out anew every stage has an exact cover, on holders with an engine", () => {
  const ready = fc.array(fc.boolean(), { minLength: 24, maxLength: 24 });
  const idle = fc.subarray(IDS);
  fc.assert(
    fc.property(anyStages, ready, idle, ({ stages, peers, count }, warm, paused) => {
      const isReady = (peer: string, stage: number) => warm[IDS.indexOf(peer) * 4 + stage]!;
      const request = { ready: isReady, idle: (peer: string) => paused.includes(peer) };
      const after = reshare(stages, { ...request, peers, count });
      for (const [s, stage] of after.entries()) {
        assertCover(stage, count);
        assert.deepEqual(stage.replicas.map((it) => it.peer), stages[s]!.replicas.map((it) => it.peer));
        for (const { peer, microBatches } of stage.replicas) {
          if (microBatches.length === 0) continue;
          const could = isReady(peer, s) || shareOf(stages[s]!, peer).length > 0;
          assert.ok(could, "work for an engine that is not built");
        }
        const willing = stage.replicas.filter((it) =>
          it.learning !== true && !paused.includes(it.peer) &&
          (isReady(it.peer, s) || shareOf(stages[s]!, it.peer).length > 0)
        );
        const working = stage.replicas.filter((it) => it.microBatches.length > 0);
        if (willing.length > 0) {
          assert.ok(working.every((it) => !paused.includes(it.peer)), "work for somebody who wants none");
        }
      }
      let now = after;
      for (let i = 0; i < 4; i++) now = reshare(now, { ...request, peers, count });
      assert.deepEqual(
        shown(reshare(now, { ...request, peers, count })),
        shown(now),
        "it never comes to rest",
      );
    }),
    RUNS,
  );
});

Deno.test("shares: the owed micro-batches go to those that compute; a shadow only helps if nobody does", () => {
  const peers = peersOf([10, 10, 10, 10, 10, 10]);
  assert.deepEqual(shown(withoutPeer(stagesOf(["a:02 b:13 c"]), "a", { peers })!), ["b:0123 c"]);
  assert.deepEqual(shown(withoutPeer(stagesOf(["a:0123 b c"]), "a", { peers })!), ["b:0123 c"]);
  assert.deepEqual(shown(withoutPeer(stagesOf(["a:0123 b? c"]), "a", { peers })!), ["b? c:0123"]);
  assert.equal(withoutPeer(stagesOf(["a:0123 b?"]), "a", { peers }), null, "a learner has nothing yet");
  assert.deepEqual(shown(withoutPeer(stagesOf(["a:01", "b:01"]), "c", { peers })!), ["a:01", "b:01"]);
});

Deno.test("shares: the quickest shadow is promoted, counting what it computes elsewhere", () => {
  const peers = peersOf([10, 10, 5, 10]);
  assert.deepEqual(shown(withoutPeer(stagesOf(["a:01 b c"]), "a", { peers })!), ["b c:01"]);
  const keepsUp = (peer: string) => peer === "b";
  const slower = withoutPeer(stagesOf(["a:01 b c"]), "a", { peers, keepsUp })!;
  assert.deepEqual(shown(slower), ["b:01 c"], "who is steps behind would refuse what is sent to it");
  const stages = stagesOf(["a:01 b c", "c:01", "c:01"]);
  assert.deepEqual(
    shown(withoutPeer(stages, "a", { peers })!)[0],
    "b:01 c",
    "c has two stages to compute already",
  );
});

Deno.test("shares: a hidden peer takes over half of what a like peer does", () => {
  const peers = { ...peersOf([10, 10, 10]), c: peerOf("c", 10, true) };
  const [stage] = withoutPeer(stagesOf(["a:012345 b c:6"]), "a", { peers })!;
  assert.deepEqual(shown([stage!]), ["b c:0123456"], "c alone computes");
  const [both] = withoutPeer(stagesOf(["a:012345 b:7 c:6"]), "a", { peers })!;
  const counts = both!.replicas.map((it) => it.microBatches.length);
  assert.ok(counts[0]! > counts[1]!, counts.join());
});

Deno.test("shares: a learner joins without a share, and becomes a holder like any other", () => {
  const before = stagesOf(["a:01", "b:01"]);
  const learning = withLearner(before, 1, "c");
  assert.deepEqual(shown(learning), ["a:01", "b:01 c?"]);
  assert.deepEqual(shown(learned(learning, 1, "c")), ["a:01", "b:01 c"]);
  assert.equal("learning" in learned(learning, 1, "c")[1]!.replicas[1]!, false);
  assert.deepEqual(shown(learned(learning, 0, "c")), ["a:01", "b:01 c?"], "of another stage");
  assert.deepEqual(shown(before), ["a:01", "b:01"]);
});

Deno.test("shares: work is dealt out in proportion to speed, and not to those who compute elsewhere", () => {
  const request = { count: 8, ready: () => true, idle: () => false };
  const peers = peersOf([10, 30, 10]);
  assert.deepEqual(
    reshare(stagesOf(["a:01234567 b"]), { ...request, peers })[0]!.replicas.map((it) =>
      it.microBatches.length
    ),
    [6, 2],
  );
  const busy = reshare(stagesOf(["a:01234567 c", "c:01234567"]), { ...request, peers });
  assert.deepEqual(shown(busy), ["a:01234567 c", "c:01234567"], "c has a stage of its own");
});

Deno.test("shares: who computes stays if nobody has really less to do", () => {
  const peers = peersOf([10, 10]);
  const request = { peers, count: 2, ready: () => true, idle: () => false };
  assert.deepEqual(shown(reshare(stagesOf(["a:01 b", "b:01 a"]), request)), ["a:01 b", "b:01 a"]);
  const doubled = stagesOf(["a:01 b", "a:01 b", "a:01 b"]);
  const loads = shown(reshare(doubled, request)).map((stage) => stage.includes("a:01") ? "a" : "b");
  assert.deepEqual(
    loads.toSorted(),
    ["a", "a", "b"].toSorted(),
    "one of three goes to the idle one, not all",
  );
});

Deno.test("shares: the learner is who holds least and is quickest, never a holder of the stage", () => {
  const stages = stagesOf(["a:01 b", "c:01 a"]);
  const all = ["a", "b", "c", "d"].map((id) => peerOf(id));
  assert.equal(chooseLearner(stages, stages[0]!, all), "d");
  assert.equal(chooseLearner(stages, stages[0]!, all.slice(0, 3)), "c");
  assert.equal(chooseLearner(stages, stages[0]!, all.slice(0, 2)), null);
  const quick = [peerOf("e", 20), peerOf("f", 10)];
  assert.equal(chooseLearner(stages, stages[0]!, quick), "f");
});

Deno.test("shares: a newcomer goes to the stage with the fewest holders, then to the slowest", () => {
  const peers = peersOf([10, 10, 40, 10]);
  assert.equal(neediestStage(stagesOf(["a:01 d", "b:01"]), peers), 1);
  assert.equal(neediestStage(stagesOf(["a:01", "c:01"]), peers), 1);
  const long = stagesOf(["a:01", "b:01"]);
  long[0]!.endLayer = 4;
  assert.equal(neediestStage(long, peers), 0, "four layers take longer than one");
});

Deno.test("reshare: shares that are as good as any stay as they are", () => {
  const of = (blockMs: number[], text: string) => {
    const request = { peers: peersOf(blockMs), count: 8, ready: () => true, idle: () => false };
    return shown(reshare(stagesOf([text]), request));
  };
  assert.deepEqual(of([10, 10], "a:0123 b:4567"), ["a:0123 b:4567"]);
  assert.deepEqual(of([10, 10.3], "a:0123 b:4567"), ["a:0123 b:4567"]);
  assert.deepEqual(of([10, 30], "a:0123 b:4567"), ["a:012456 b:37"]);
});
