// Requests for tests and for the benchmark of the planner: swarms drawn from a seed, links and memory written as formulas.
// Nothing that runs in a coordinator imports it.
import assert from "node:assert/strict";
import { readConfig } from "../../peer/model/config.ts";
import { specOf, stageLayout } from "../../peer/model/layout.ts";
import type { RunConfig } from "../../peer/wire/run.ts";
import { createUniform } from "../../coordinator/plan/jitter.ts";
import type { Plan, PlannerPeer, PlanRequest } from "../../coordinator/plan/planner_types.ts";

export interface SwarmOptions {
  peers: number;
  seed: number;
  config?: Partial<RunConfig>;
  vocab?: number;
  /** Slowest and fastest layer, seconds of F + B + W. Default 0.02 and 0.12. */
  layerSeconds?: readonly [least: number, most: number];
  /** Least and most of a one-way latency. Default 0.002 and 0.06. */
  latency?: readonly [least: number, most: number];
  /** Least and most of an uplink, bytes per second. Default 1e6 and 2e7. */
  rate?: readonly [least: number, most: number];
  /** Least and most memory, as a multiple of what the whole model takes with one slot. Default 0.3 and 3. */
  memory?: readonly [least: number, most: number];
}

/** Bytes of a stage in a simple model: 36 a parameter, and per slot and layer what the recompute mode keeps. */
export function simpleMemory(request: Pick<PlanRequest, "spec" | "config">): PlanRequest["memory"] {
  const { spec, config } = request;
  const row = config.batch_size * spec.block_size * spec.n_embd * 4;
  const kept = { none: 16, attention: 12, block: 2 };
  return (stage, { slots, recompute }) =>
    stageLayout(spec, stage).size * 36 +
    slots * row * ((stage.endLayer - stage.firstLayer) * kept[recompute] + 2);
}

/** A random swarm with a fixed seed. Latencies come from places on a map, so they obey the triangle. */
export function drawSwarm(options: SwarmOptions): PlanRequest {
  const { peers: count, seed, vocab = 83 } = options;
  const config = readConfig({ n_layer: 12, gradient_accumulation_steps: 32, ...options.config });
  const spec = specOf(config, vocab);
  const uniform = createUniform(seed);
  const between = ([least, most]: readonly [number, number]) => least * (most / least) ** uniform();
  const memory = simpleMemory({ spec, config });
  const whole = { index: 0, firstLayer: 0, endLayer: spec.n_layer, embed: true, head: true };
  const modelBytes = memory(whole, { slots: 1, recompute: "none" }, "");
  const drawn = Array.from({ length: count }, (_, i) => {
    const layer = between(options.layerSeconds ?? [0.02, 0.12]);
    const peer: PlannerPeer = {
      id: `p${i}`,
      engines: [{ engine: "wgsl", forward: layer / 3, backward: layer / 3, weightGrad: layer / 3 }],
      memoryBytes: modelBytes * between(options.memory ?? [0.3, 3]),
      hidden: uniform() < 0.1,
    };
    return { peer, x: uniform(), y: uniform(), up: between(options.rate ?? [1e6, 2e7]) };
  });
  const at = new Map(drawn.map((it) => [it.peer.id, it]));
  const [near, far] = options.latency ?? [0.002, 0.06];
  return {
    ...{ spec, config, memory, peers: drawn.map((it) => it.peer) },
    link: (from, to) => {
      const [a, b] = [at.get(from)!, at.get(to)!];
      const distance = Math.sqrt(((a.x - b.x) ** 2 + (a.y - b.y) ** 2) / 2);
      // A download is about four times as fast as an upload.
      return { latency: near + (far - near) * distance, bytesPerS: Math.min(a.up, 4 * b.up) };
    },
  };
}

/** Four layers; peers of equal speed on equal links, with names and what each can hold. */
export function equalPeers(
  rooms: readonly number[],
  changes: Partial<PlanRequest["config"]> = {},
  options: { vocab?: number } = {},
): PlanRequest {
  const drawn = drawSwarm({ peers: rooms.length, seed: 1, config: { n_layer: 4, ...changes }, ...options });
  const memory = simpleMemory(drawn);
  const layers = (count: number) =>
    memory({ index: 0, firstLayer: 0, endLayer: count, embed: true, head: true }, {
      ...{ slots: 2, recompute: "none" },
    }, "wgsl");
  const peers = rooms.map((room, i): PlannerPeer => ({
    ...{ id: `id${i}`, name: `tab ${i + 1}`, hidden: false, memoryBytes: layers(room) },
    engines: [{ engine: "wgsl", forward: 0.02, backward: 0.02, weightGrad: 0.02 }],
  }));
  return { ...drawn, peers, link: () => ({ latency: 0.01, bytesPerS: 5e6 }) };
}

/** Whether the planner says that it gave each computing peer two stages. */
export function hasTwoEach({ reasons }: Plan): boolean {
  return reasons.some((reason) => reason.startsWith("Peers that compute hold two stages each"));
}

/**
 * Asserts that a plan covers layers and micro-batches once, keeps within each memory and names its spares.
 * @param options `doubled`: a peer may compute two stages, as a shadow that took over does
 */
export function checkPlan(asked: PlanRequest, plan: Plan, options: { doubled?: boolean } = {}): void {
  const { stages, codecs, spares, seconds, bubble } = plan;
  const { config, spec, peers } = asked;
  const held = new Map(peers.map(({ id }) => [id, 0]));
  let layer = 0;
  for (const [index, stage] of stages.entries()) {
    assert.equal(stage.index, index);
    assert.equal(stage.firstLayer, layer);
    assert.ok(stage.endLayer > layer);
    layer = stage.endLayer;
    const dealt = stage.replicas.flatMap(({ microBatches }) => microBatches).toSorted((a, b) => a - b);
    assert.deepEqual(dealt, Array.from({ length: config.gradient_accumulation_steps }, (_, m) => m));
    const holders = [...stage.replicas.map(({ peer }) => peer), ...stage.shadows];
    assert.equal(new Set(holders).size, holders.length);
    if (stage.shadows.length > 0) assert.equal(stage.replicas.length, 1);
    assert.ok(stage.inflight >= 1 && stage.inflight <= config.gradient_accumulation_steps);
    const bytes = asked.memory(stage, { slots: stage.inflight, recompute: stage.recompute }, "wgsl");
    assert.equal(bytes, stage.bytes);
    for (const peer of holders) held.set(peer, held.get(peer)! + bytes);
    for (const replica of stage.replicas) {
      const { microBatches } = replica;
      assert.ok(microBatches.length > 0, "a replica without work");
      assert.deepEqual(microBatches, microBatches.toSorted((a, b) => a - b));
    }
  }
  assert.equal(layer, spec.n_layer);
  assert.equal(codecs.length, stages.length - 1);
  const computing = stages.flatMap(({ replicas }) => replicas.map(({ peer }) => peer));
  if (options.doubled !== true) {
    assert.equal(new Set(computing).size, computing.length, "a peer computes two stages");
  }
  for (const { id, memoryBytes } of peers) {
    assert.ok(held.get(id)! <= memoryBytes, `${id} holds ${held.get(id)} of ${memoryBytes}`);
    assert.equal(spares.includes(id), held.get(id) === 0);
  }
  assert.ok(seconds > 0 && seconds < Infinity && bubble >= 0 && bubble < 1);
  if (config.n_stage > 0) assert.ok(stages.length <= config.n_stage);
}
