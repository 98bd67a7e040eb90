// Published schedules on any peers, as properties: what is placed is exactly the schedule and fits the memory that is offered, and
// a refusal says why. Exact placements of small swarms beside them.
import assert from "node:assert/strict";
import fc from "fast-check";
import { readConfig } from "../../peer/model/config.ts";
import { specOf } from "../../peer/model/layout.ts";
import { isPlaced } from "../../peer/schedule/catalogue.ts";
import { placedOf } from "../../peer/schedule/placed.ts";
import { SCHEDULE_IDS } from "../../peer/wire/run.ts";
import { createFit, roomBeside, roomOf } from "./fit.ts";
import { type PeerRecord, zeroCounters } from "./run_state.ts";
import { planTextbook, type Textbook } from "./textbook_view.ts";
import { weightOf } from "./plan_request.ts";
import { planView } from "./view_builder.ts";

const PLACED = SCHEDULE_IDS.filter((id) => isPlaced(id));

interface Swarm {
  /** Milliseconds per block of each peer. */
  speeds: number[];
  memory?: number[];
  config: Record<string, unknown>;
}

function requestOf({ speeds, memory = [], config: changes }: Swarm) {
  const config = readConfig({ n_layer: 6, shadows: false, recompute: "none", ...changes });
  const peers = speeds.map((blockMs, i): PeerRecord => ({
    ...{ id: `p${i}`, runtime: "deno", adapter: "", engine: "wgsl", name: `p${i}`, joinedAt: i, heardAt: 0 },
    ...{ ...zeroCounters(), paused: false, leaving: false, hidden: false },
    ...{ blockMs, memoryBytes: memory[i] ?? 1e9 },
  }));
  const spec = specOf(config, 20);
  return { config, peers, spec, fit: createFit(spec, config), speedOf: weightOf };
}

function place(swarm: Swarm): Textbook {
  return planTextbook(requestOf(swarm));
}

/** "0-2 p0:02 p3:13": layers, then who computes what. */
function shown({ stages, missing }: Textbook): string[] | string {
  return stages?.map(({ firstLayer, endLayer, replicas }) =>
    [`${firstLayer}-${endLayer}`, ...replicas.map((it) => `${it.peer}:${it.microBatches.join("")}`)].join(" ")
  ) ?? missing!;
}

Deno.test("textbook: whatever is placed is the schedule, on peers that have room for it", () => {
  const swarms = fc.record({
    schedule: fc.constantFrom(...PLACED),
    speeds: fc.array(fc.integer({ min: 1, max: 50 }), { minLength: 1, maxLength: 9 }),
    memory: fc.array(fc.constantFrom(2e7, 5e7, 1e8, 1e9), { minLength: 9, maxLength: 9 }),
    n_layer: fc.integer({ min: 1, max: 12 }),
    gradient_accumulation_steps: fc.integer({ min: 1, max: 16 }),
    n_stage: fc.constantFrom(0, 0, 2, 4, 6),
    chimera_pairs: fc.constantFrom(1, 1, 2),
    recompute: fc.constantFrom("auto", "none"),
  });
  let placed = 0;
  fc.assert(
    fc.property(swarms, ({ speeds, memory, ...config }) => {
      const n_stage = Math.min(config.n_stage, config.n_layer);
      const request = requestOf({ speeds, memory, config: { ...config, n_stage } });
      const { stages, devices, missing } = planTextbook(request);
      if (stages === null) return assert.match(missing, /needs|missing|has/);
      placed++;
      const found = placedOf({ schedule: config.schedule, stages });
      assert.equal(found?.peers.length, devices);
      for (const peer of request.peers) assert.ok(roomBeside(request.fit, stages, peer) >= 0, peer.id);
      assert.equal(stages[0]!.firstLayer, 0);
      assert.equal(stages.at(-1)!.endLayer, config.n_layer);
      stages.slice(1).forEach((stage, s) => assert.equal(stage.firstLayer, stages[s]!.endLayer));
    }),
    { seed: 12, numRuns: 400 },
  );
  assert.ok(placed > 100, `only ${placed} were placed`);
});

Deno.test("textbook: the mirror of a peer holds the same stages, peers of like speed are mirrors, layers follow the slower", () => {
  const config = { schedule: "chimera", gradient_accumulation_steps: 4 };
  assert.deepEqual(shown(place({ speeds: [10, 20, 20, 10], config })), [
    "0-2 p0:02 p3:13",
    "2-3 p1:02 p2:13",
    "3-4 p2:02 p1:13",
    "4-6 p3:02 p0:13",
  ]);
  const uneven = place({ speeds: [10, 10, 20, 40], config: { ...config, n_layer: 12 } });
  assert.deepEqual(uneven.stages?.map(({ firstLayer, endLayer }) => endLayer - firstLayer), [5, 1, 1, 5]);
});

Deno.test("textbook: as many peers as the schedule can use, the fastest where there are too many", () => {
  const chimera = { schedule: "chimera", gradient_accumulation_steps: 4 };
  assert.equal(place({ speeds: Array(7).fill(1), config: chimera }).devices, 4);
  const two = place({ speeds: [5, 1, 2], config: { ...chimera, gradient_accumulation_steps: 6 } });
  assert.deepEqual(shown(two), ["0-3 p1:024 p2:135", "3-6 p2:024 p1:135"]);
  const zbV = place({ speeds: [1, 1, 1, 1], config: { schedule: "zb-v" } });
  assert.deepEqual(zbV.stages?.map((stage) => stage.replicas[0]!.peer), ["p0", "p1", "p2", "p2", "p1", "p0"]);
});

Deno.test("textbook: a peer that is quick and too small is left out", () => {
  const { stages } = place({ speeds: [9, 1, 9], memory: [1e9, 1e5, 1e9], config: { schedule: "zb-h1" } });
  assert.deepEqual(stages?.map((stage) => stage.replicas[0]!.peer), ["p0", "p2"]);
});

Deno.test("textbook: n_stage says how many chunks a peer holds", () => {
  const config = { schedule: "interleaved", gradient_accumulation_steps: 4, n_stage: 6 };
  const { stages } = place({ speeds: [1, 1], config });
  assert.deepEqual(stages?.map((stage) => stage.replicas[0]!.peer), ["p0", "p1", "p0", "p1", "p0", "p1"]);
});

Deno.test("textbook: a refusal says what the schedule needs and what there is", () => {
  const refused = (speeds: number[], config: Record<string, unknown>) => shown(place({ speeds, config }));
  assert.equal(
    refused([1, 1, 1], { schedule: "zb-v", n_layer: 3 }),
    "zb-v on 2 peers needs 4 layers, the model has 3",
  );
  assert.equal(
    refused([1, 1, 1], { schedule: "chimera", gradient_accumulation_steps: 5 }),
    "chimera needs P even and N divisible by P, got P=2, N=5",
  );
  assert.equal(refused([1], { schedule: "zb-h1" }), "zb-h1 needs at least 2 peers, there is 1");
  assert.match(String(refused([1, 1], { schedule: "chimera", n_stage: 4 })), /has 2 stages, n_stage is 4/);
  assert.match(
    String(shown(place({ speeds: [1, 1], memory: [1e9, 1e5], config: { schedule: "zb-h1" } }))),
    /^p1 has too little memory for stage 2 of 2: \d+ MB are missing$/,
  );
});

Deno.test("textbook: activations are computed again before a peer is given more than it offers", () => {
  const config = { schedule: "zb-h2", gradient_accumulation_steps: 8, block_size: 256, recompute: "auto" };
  const plenty = place({ speeds: [1, 1], config });
  assert.equal(plenty.stages?.[0]?.recompute, undefined);
  const { fit, peers } = requestOf({ speeds: [1, 1], config });
  const used = Math.max(...peers.map((peer) => roomOf(peer) - roomBeside(fit, plenty.stages!, peer)));
  const offered = 0.9 * used * peers[0]!.memoryBytes / roomOf(peers[0]!);
  const tight = place({ speeds: [1, 1], memory: [offered, offered], config });
  assert.notEqual(tight.stages?.[0]?.recompute ?? "none", "none");
});

Deno.test("textbook: a view has the schedule's order, shadows where a stage has one replica, and else the dynamic order", () => {
  const viewOf = (speeds: number[], config: Record<string, unknown>) => {
    const { config: full, peers, spec } = requestOf({ speeds, config: { ...config, shadows: true } });
    return planView({ gen: 1, baseStep: 0, spec, config: full, peers }).view!;
  };
  const chimera = viewOf([1, 1, 1, 1], { schedule: "chimera", gradient_accumulation_steps: 4 });
  assert.deepEqual(chimera.stages.map((stage) => stage.replicas.length), [2, 2, 2, 2]);
  const zbH1 = viewOf([1, 1, 1], { schedule: "zb-h1" });
  assert.deepEqual(zbH1.stages.map((stage) => stage.replicas.length), [2, 2, 2]);
  for (const view of [chimera, zbH1]) assert.notEqual(placedOf(view), null);
  const odd = viewOf([1, 1, 1], { schedule: "chimera", gradient_accumulation_steps: 5 });
  assert.equal(odd.schedule, "dynamic");
});
