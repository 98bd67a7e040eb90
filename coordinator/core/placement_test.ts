// Placements as properties: never a holder, nobody twice, any one keeper may go, memory kept, as many shards as possible.
import assert from "node:assert/strict";
import fc from "fast-check";
import { DATA_SHARDS_MAX as SHARDS_MAX, shardBytes } from "../../peer/exact/parity.ts";
import {
  DATA_SHARDS_MAX,
  type KeeperOffer,
  type Placement,
  type PlacementRequest,
  placeSnapshots,
  restorable,
  type StageToKeep,
} from "./placement.ts";

const MB = 1_000_000;

function offer(peer: string, change: Partial<KeeperOffer> = {}): KeeperOffer {
  return { peer, memoryBytes: 100 * MB, load: 0, ...change };
}

function stage(index: number, holders: string[], stateBytes = 10 * MB): StageToKeep {
  return { firstLayer: index, endLayer: index + 1, holders, stateBytes };
}

const request = fc.record({
  peers: fc.array(fc.tuple(fc.integer({ min: 0, max: 100 }), fc.integer({ min: 0, max: 4 })), {
    maxLength: 12,
  }),
  stages: fc.array(fc.tuple(fc.nat(), fc.nat(), fc.integer({ min: 1, max: 60 })), {
    minLength: 1,
    maxLength: 6,
  }),
}).map(({ peers, stages }): PlacementRequest => ({
  peers: peers.map(([megabytes, load], i) => offer(`p${i}`, { memoryBytes: megabytes * MB, load: load / 4 })),
  stages: stages.map(([a, b, megabytes], i) => {
    const holders = peers.length === 0 ? [] : [`p${a % peers.length}`, `p${b % peers.length}`];
    return stage(i, holders, megabytes * MB);
  }),
}));

function needOf(stage: StageToKeep, placement: Placement): number {
  return placement.k === 0 ? 0 : 2 * shardBytes(stage.stateBytes, placement.k);
}

function checkPlacements({ stages, peers }: PlacementRequest, placements: readonly Placement[]): void {
  assert.equal(placements.length, stages.length);
  const used = new Map<string, number>();
  placements.forEach((placement, i) => {
    const { keepers, k, protection, firstLayer } = placement;
    assert.equal(firstLayer, stages[i]!.firstLayer);
    assert.equal(new Set(keepers).size, keepers.length, "a keeper twice");
    assert.ok(keepers.every((peer) => !stages[i]!.holders.includes(peer)), "a holder of the stage");
    assert.equal(keepers.length, { parity: k + 1, copy: 1, none: 0 }[protection]);
    const all = new Set(keepers);
    for (const gone of keepers) {
      const live = new Set([...all].filter((peer) => peer !== gone));
      assert.equal(restorable(placement, live), protection === "parity");
    }
    for (const peer of keepers) used.set(peer, (used.get(peer) ?? 0) + needOf(stages[i]!, placement));
  });
  for (const { peer, memoryBytes } of peers) assert.ok((used.get(peer) ?? 0) <= memoryBytes, "memory");
}

Deno.test("placement: holders never, nobody twice, any one keeper may go, within memory", () => {
  fc.assert(
    fc.property(request, (it) => {
      const placements = placeSnapshots(it);
      checkPlacements(it, placements);
      assert.deepEqual(placeSnapshots({ ...it, peers: it.peers.toReversed() }), placements);
      // After one keeper has left the others stay where they were, as far as k stays.
      const lost = placements.find(({ keepers }) => keepers.length > 0)?.keepers[0];
      if (lost === undefined) return;
      const next = { ...it, peers: it.peers.filter(({ peer }) => peer !== lost), before: placements };
      checkPlacements(next, placeSnapshots(next));
    }),
    { seed: 52, numRuns: 500 },
  );
});

Deno.test("placement: as many data shards as there are peers for, at most four", () => {
  assert.equal(DATA_SHARDS_MAX, SHARDS_MAX);
  const kinds = [0, 1, 2, 3, 4, 5, 9].map((count) => {
    const peers = [offer("h"), ...Array.from({ length: count }, (_, i) => offer(`p${i}`))];
    const [placement] = placeSnapshots({ peers, stages: [stage(0, ["h"])] });
    return [placement!.protection, placement!.k];
  });
  const expected = [["none", 0], ["copy", 1], ["parity", 1], ["parity", 2], ["parity", 3], ["parity", 4], [
    "parity",
    4,
  ]];
  assert.deepEqual(kinds, expected);
});

Deno.test("placement: little memory makes more, smaller shards; too little none", () => {
  const peers = (megabytes: number) =>
    ["a", "b", "c"].map((it) => offer(it, { memoryBytes: megabytes * MB }));
  const place = (megabytes: number) =>
    placeSnapshots({ peers: peers(megabytes), stages: [stage(0, [])] })[0]!;
  assert.equal(place(10).k, 2);
  assert.equal(place(9.9).protection, "none");
  const oneLarge = [...peers(1), offer("z", { memoryBytes: 20 * MB })];
  assert.deepEqual(placeSnapshots({ peers: oneLarge, stages: [stage(0, [])] })[0]!.keepers, ["z"]);
});

Deno.test("placement: spread by memory and by load", () => {
  const peers = [
    offer("a", { memoryBytes: 50 * MB }),
    offer("b"),
    offer("c"),
    offer("d", { load: 1 }),
    offer("e"),
  ];
  const stages = [stage(0, ["a", "b"]), stage(1, ["a", "c"]), stage(2, ["b", "c"])];
  const [first, second, third] = placeSnapshots({ peers: [...peers, offer("f")], stages });
  assert.deepEqual(first!.keepers.toSorted(), ["c", "d", "e", "f"]);
  assert.deepEqual(second!.keepers.toSorted(), ["b", "d", "e", "f"]);
  assert.deepEqual(third!.keepers.toSorted(), ["a", "d", "e", "f"]);
  // With more peers than slots the busy one is left out, and the load is shared.
  const many = Array.from({ length: 10 }, (_, i) => offer(`p${i}`, { load: i === 0 ? 1 : 0 }));
  const two = placeSnapshots({ peers: many, stages: [stage(0, []), stage(1, [])] });
  const keepers = two.flatMap((placement) => placement.keepers);
  assert.equal(keepers.length, 10);
  assert.equal(new Set(keepers).size, 9);
  assert.ok(!keepers.includes("p0"));
});

Deno.test("placement: who stays keeps the slot, a newcomer takes the one that is free", () => {
  const peers = ["a", "b", "c", "d"].map((it) => offer(it));
  const before = placeSnapshots({ peers, stages: [stage(0, ["h"])] });
  assert.deepEqual(before[0]!.keepers, ["a", "b", "c", "d"]);
  const next = [offer("0"), ...peers.filter(({ peer }) => peer !== "b")];
  const [after] = placeSnapshots({ peers: next, stages: [stage(0, ["h"])], before });
  assert.deepEqual(after!.keepers, ["a", "0", "c", "d"]);
  const became = placeSnapshots({ peers: next, stages: [stage(0, ["h", "c"])], before });
  assert.deepEqual(became[0]!.keepers.toSorted(), ["0", "a", "d"]);
});

Deno.test("placement: newcomers move nobody who may stay", () => {
  const peers = Array.from({ length: 7 }, (_, i) => offer(`p${i}`));
  const before = placeSnapshots({ peers, stages: [stage(0, ["p0"])] });
  const more = [offer("a", { memoryBytes: 900 * MB }), offer("b", { memoryBytes: 900 * MB }), ...peers];
  assert.deepEqual(placeSnapshots({ peers: more, stages: [stage(0, ["p0"])], before }), before);
});

Deno.test("placement: a stage with little choice is served before it is too late", () => {
  const peers = ["a", "b", "c", "x", "y"].map((it) => offer(it, { memoryBytes: 20 * MB }));
  const [free, bound] = placeSnapshots({ peers, stages: [stage(0, []), stage(1, ["a", "b", "c"])] });
  assert.deepEqual(bound!.keepers.toSorted(), ["x", "y"]);
  assert.deepEqual(free!.keepers.toSorted(), ["a", "b", "c"]);
});
