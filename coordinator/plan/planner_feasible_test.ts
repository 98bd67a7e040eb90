// Which line of peers can hold the most layers, with ends that ask for more than the middle does.
import assert from "node:assert/strict";
import fc from "fast-check";
import { drawSwarm } from "../../test/support/swarm_requests.ts";
import { type Capacity, capacityOf, megabytes, plural, roomiest } from "./planner_feasible.ts";
import { CostModel } from "./planner_model.ts";

const capacity = (first: number, middle: number, last: number, whole = 0): Capacity => ({
  first,
  middle,
  last,
  whole,
});

Deno.test("whoever can hold an end stands there, in whatever order the peers came", () => {
  assert.deepEqual(roomiest([capacity(0, 3, 3), capacity(2, 2, 0)], 2, 5), { peers: [1, 0], layers: 5 });
  assert.deepEqual(roomiest([capacity(2, 2, 0), capacity(0, 3, 3)], 2, 5), { peers: [0, 1], layers: 5 });
});

Deno.test("as few peers as it takes, and nobody if no end can be held", () => {
  assert.deepEqual(roomiest([capacity(1, 1, 1), capacity(4, 5, 4, 5)], 2, 5), { peers: [1], layers: 5 });
  assert.deepEqual(roomiest([capacity(0, 9, 0), capacity(0, 9, 0)], 2, 5), { peers: [], layers: 0 });
  assert.equal(roomiest([capacity(1, 1, 1), capacity(1, 1, 1), capacity(1, 1, 1)], 2, 5).layers, 2);
});

Deno.test("no line holds more layers than the one that is found", () => {
  const end = fc.integer({ min: 0, max: 4 });
  const peers = fc.array(fc.tuple(end, end, end).map(([a, b, c]) => capacity(a, b, c)), {
    minLength: 2,
    maxLength: 5,
  });
  fc.assert(
    fc.property(peers, fc.integer({ min: 2, max: 5 }), (capacities, stages) => {
      const layers = 12;
      const found = roomiest(capacities, stages, layers);
      let best = 0;
      const grow = (line: number[]) => {
        if (line.length >= 2) best = Math.max(best, held(capacities, line));
        if (line.length === Math.min(stages, capacities.length)) return;
        for (let i = 0; i < capacities.length; i++) if (!line.includes(i)) grow([...line, i]);
      };
      grow([]);
      assert.equal(Math.min(layers, found.layers), Math.min(layers, best));
      if (found.layers > 0) assert.equal(held(capacities, found.peers), found.layers);
    }),
    { seed: 121, numRuns: 200 },
  );
});

/** Layers that a line of peers can hold; 0 if one of them cannot hold a layer where it stands. */
function held(capacities: readonly Capacity[], line: readonly number[]): number {
  const each = line.map((peer, i) => {
    if (i === 0) return capacities[peer]!.first;
    return i === line.length - 1 ? capacities[peer]!.last : capacities[peer]!.middle;
  });
  return each.includes(0) ? 0 : each.reduce((sum, count) => sum + count, 0);
}

Deno.test("capacities are the most that fits: one layer more does not", () => {
  const model = new CostModel(drawSwarm({ peers: 6, seed: 2, memory: [0.2, 0.9], config: { n_layer: 9 } }));
  for (const peer of model.engines.keys()) {
    const { middle } = capacityOf(model, peer, 2);
    const room = model.request.peers[peer]!.memoryBytes;
    const bytes = (count: number) =>
      model.bytes(peer, { first: 1, end: 1 + count }, { slots: 2, recompute: "block" });
    if (middle > 0) assert.ok(bytes(middle) <= room);
    if (middle < 7) assert.ok(bytes(middle + 1) > room);
  }
});

Deno.test("sizes and counts in words", () => {
  assert.equal(megabytes(1_200_000), "2 MB");
  assert.deepEqual([plural(1, "layer"), plural(2, "layer")], ["1 layer", "2 layers"]);
});
