// Both partitioners against brute force over every cut (and every ordered subset of peers) of small instances.
import assert from "node:assert/strict";
import fc from "fast-check";
import {
  type LayerCost,
  type LayerRange,
  type PartitionStage,
  type PeerCost,
  planPartition,
  splitByThroughput,
} from "./partition.ts";

const real = (min: number, max: number) => fc.double({ min, max, noNaN: true });

Deno.test("equal stages get equal layers, a faster stage gets more", () => {
  assert.deepEqual(sizes(splitByThroughput(12, [1, 1, 1])), [4, 4, 4]);
  assert.deepEqual(sizes(splitByThroughput(12, [1, 2, 3])), [2, 4, 6]);
  assert.deepEqual(sizes(splitByThroughput(4, [1, 100, 1])), [1, 2, 1]);
  assert.deepEqual(splitByThroughput(1, [5]), [{ firstLayer: 0, endLayer: 1 }]);
});

Deno.test("costs move the cut: a heavy last layer stands alone", () => {
  assert.deepEqual(sizes(splitByThroughput(4, [1, 1], { costs: [1, 1, 1, 3] })), [3, 1]);
});

Deno.test("the split covers every layer in order and its slowest stage is the fastest possible", () => {
  const instance = fc.record({
    costs: fc.array(real(0.1, 5), { minLength: 4, maxLength: 9 }),
    throughput: fc.array(real(0.2, 4), { minLength: 1, maxLength: 4 }),
  });
  fc.assert(
    fc.property(instance, ({ costs, throughput }) => {
      const split = splitByThroughput(costs.length, throughput, { costs });
      checkCover(split, costs.length);
      assert.equal(split.length, throughput.length);
      const expected = Math.min(...allCuts(costs.length, throughput.length).map((cut) => slowest(cut)));
      assert.ok(Math.abs(slowest(split) - expected) < 1e-9);

      function slowest(cut: LayerRange[]): number {
        return Math.max(...cut.map((range, s) => sumOf(costs, range) / throughput[s]!));
      }
    }),
    { seed: 21, numRuns: 150 },
  );
});

Deno.test("splits that cannot be are refused with the numbers", () => {
  assert.throws(() => splitByThroughput(2, [1, 1, 1]), /cannot cut 2 layers .* into 3 stages/);
  assert.throws(() => splitByThroughput(2, [1, 0]), /positive and finite, got 0/);
  assert.throws(() => splitByThroughput(2, [1, NaN]), /got NaN/);
  assert.throws(() => splitByThroughput(2, [1], { costs: [1] }), /\(1 costs\)/);
});

const layer: fc.Arbitrary<LayerCost> = fc.record({
  work: real(1.5, 6),
  paramBytes: real(1, 3),
  activationBytes: real(0.1, 0.5),
  boundaryBytes: real(0.05, 0.3),
});
const peer: fc.Arbitrary<PeerCost> = fc.record({
  speed: real(20, 200),
  memoryBytes: real(20, 60),
  upBytesPerS: real(1, 20),
  downBytesPerS: real(2, 40),
});

Deno.test("the exact partition equals brute force, and is feasible at the cost it claims", () => {
  const instance = fc.record({
    layers: fc.array(layer, { minLength: 1, maxLength: 6 }),
    peers: fc.array(peer, { minLength: 1, maxLength: 4 }),
    latencies: fc.array(real(0.005, 0.06), { minLength: 16, maxLength: 16 }),
    N: fc.constantFrom(1, 8, 32),
  });
  let feasible = 0;
  fc.assert(
    fc.property(instance, ({ layers, peers, latencies, N }) => {
      const latency = (from: number, to: number) => latencies[4 * from + to]!;
      const cost = (stages: PartitionStage[]) => modelSeconds(stages, { layers, peers, latency, N });
      const plan = planPartition(layers, peers, { N, latency });
      const expected = Math.min(Infinity, ...allPipelines(layers.length, peers.length).map(cost));
      if (plan === null) return assert.equal(expected, Infinity);
      feasible++;
      checkCover(plan.stages, layers.length);
      assert.ok(Math.abs(plan.seconds - expected) < 1e-9, `${plan.seconds} and ${expected}`);
      assert.ok(Math.abs(cost(plan.stages) - plan.seconds) < 1e-9);
    }),
    { seed: 22, numRuns: 100 },
  );
  assert.ok(feasible > 50, `only ${feasible} instances were feasible`);
});

Deno.test("nothing fits: null; too many peers: refused", () => {
  const big: LayerCost = { work: 1, paramBytes: 100, activationBytes: 0, boundaryBytes: 1 };
  const small: PeerCost = { speed: 1, memoryBytes: 10, upBytesPerS: 1, downBytesPerS: 1 };
  assert.equal(planPartition([big], [small], { N: 4 }), null);
  assert.throws(() => planPartition([big], Array(9).fill(small), { N: 4 }), /at most 8 peers .* got 9/);
});

Deno.test("a slow distant peer is left out", () => {
  const layers: LayerCost[] = Array(4).fill({ work: 1, paramBytes: 1, activationBytes: 0, boundaryBytes: 1 });
  const fast: PeerCost = { speed: 100, memoryBytes: 1000, upBytesPerS: 1e6, downBytesPerS: 1e6 };
  const plan = planPartition(layers, [{ ...fast, speed: 1 }, fast, fast], { N: 64, latency: () => 0.001 });
  assert.deepEqual(plan?.stages.map((stage) => stage.peer).toSorted(), [1, 2]);
});

function sizes(ranges: LayerRange[]): number[] {
  return ranges.map((range) => range.endLayer - range.firstLayer);
}

function checkCover(ranges: LayerRange[], nLayer: number): void {
  let next = 0;
  for (const range of ranges) {
    assert.equal(range.firstLayer, next);
    assert.ok(range.endLayer > range.firstLayer);
    next = range.endLayer;
  }
  assert.equal(next, nLayer);
}

/** Every way to cut [from, nLayer) into `parts` non-empty ranges. */
function allCuts(nLayer: number, parts: number, from = 0): LayerRange[][] {
  if (parts === 0) return from === nLayer ? [[]] : [];
  const cuts: LayerRange[][] = [];
  for (let end = from + 1; end <= nLayer; end++) {
    for (const rest of allCuts(nLayer, parts - 1, end)) {
      cuts.push([{ firstLayer: from, endLayer: end }, ...rest]);
    }
  }
  return cuts;
}

function allPipelines(nLayer: number, peers: number): PartitionStage[][] {
  const orders = (left: number[]): number[][] => [
    [],
    ...left.flatMap((p) => orders(left.filter((q) => q !== p)).map((rest) => [p, ...rest])),
  ];
  return orders(Array.from({ length: peers }, (_, p) => p)).filter((order) => order.length > 0)
    .flatMap((order) =>
      allCuts(nLayer, order.length).map((cut) => cut.map((range, s) => ({ ...range, peer: order[s]! })))
    );
}

interface Model {
  layers: LayerCost[];
  peers: PeerCost[];
  latency: (from: number, to: number) => number;
  N: number;
}

/** The cost model written out for one pipeline, with 4 bytes per parameter byte and 8 micro-batches in flight. */
function modelSeconds(stages: PartitionStage[], model: Model): number {
  let sum = 0;
  let slowest = 0;
  stages.forEach((stage, s) => {
    const on = model.peers[stage.peer]!;
    const bytes = model.layers.map((l) => l.paramBytes * 4 + l.activationBytes * 8);
    // The memory bound is met with the same rounding as in the search: differences of prefix sums.
    const upTo = (end: number) => bytes.slice(0, end).reduce((a, b) => a + b, 0);
    if (upTo(stage.endLayer) - upTo(stage.firstLayer) > on.memoryBytes) sum = Infinity;
    const seconds = sumOf(model.layers.map((l) => l.work), stage) / on.speed;
    const before = stages[s - 1];
    const from = before === undefined ? null : model.peers[before.peer]!;
    const boundary = model.layers[stage.firstLayer - 1]?.boundaryBytes ?? 0;
    const transfer = from === null ? 0 : boundary / Math.min(from.upBytesPerS, on.downBytesPerS);
    const hop = before === undefined ? 0 : transfer + model.latency(before.peer, stage.peer);
    sum += seconds + 2 * hop;
    slowest = Math.max(slowest, seconds, transfer);
  });
  return sum + (model.N - 1) * slowest;
}

function sumOf(values: number[], range: LayerRange): number {
  return values.slice(range.firstLayer, range.endLayer).reduce((a, b) => a + b, 0);
}
