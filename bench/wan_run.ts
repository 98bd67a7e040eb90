// One run of the bench: a real coordinator and real peers in this process, their links with injected delay and rate, an engine
// that keeps its peer busy for a set time. It measures steps and judges nothing. Signals and commits go over real sockets,
// without any delay: the coordinator is near, the peers are far from each other.
import { join } from "node:path";
import { type Coordinator, startCoordinator } from "../coordinator/main.ts";
import type { StageBuild, StageEngine } from "../peer/engine/engine.ts";
import { readConfig } from "../peer/model/config.ts";
import { createLinkHost } from "../peer/net/host.ts";
import { Peer } from "../peer/peer.ts";
import { ShoalError } from "../peer/wire/errors.ts";
import type { RunConfig, View } from "../peer/wire/run.ts";
import { sum } from "./support.ts";
import { type Lag, PreciseClock } from "./wan_clock.ts";
import { createTimedEngine, type LayerMs, stageMs, type TracedOp } from "./wan_engine.ts";
import { WanNetwork, type WireOptions } from "./wan_links.ts";

/** A step that takes longer than this hangs. */
const STEP_PATIENCE_MS = 120_000;
/** Pause between two looks at the trace. */
const LOOK_MS = 20;
/** Share by which a step's operations may be late on average and count: beyond it other programs had the processor. */
const CALM_LATE = 0.01;
/** Steps are measured until enough were calm, but at most so many times as many; then the calmest count. */
const TRIES = 3;
/** A plan that is changed while it is measured, or cut for unequal peers, is measured anew, so often. */
const RUN_TRIES = 3;
/** And so many steps later each time: the coordinator learns what links are like, and plans anew, in the first steps. */
const SETTLING_STEPS = 5;
/** Where a folder is in memory, if the system has such a place: commits are synced, and a busy disk is not what is measured. */
const MEMORY_FOLDER = "/dev/shm";
/** Memory is not what this bench is about. */
const MEMORY_BYTES = 1e11;

/** Small enough that eight peers' sums take little of one core; a boundary tensor is 16 to 17 kB. */
export const MODEL = {
  ...{ n_head: 4, n_kv_head: 1, n_embd: 64, n_inner: 16, block_size: 64, batch_size: 4 },
  ...{ codec_forward: "i8b64", codec_backward: "i8b64", warmup_iters: 0, max_iters: 1_000_000 } as const,
  ...{ eval_interval: 1_000_000, eval_iters: 1, sample_chars: 0, checkpoint_interval: 1_000_000 },
  ...{ snapshot_interval: 10_000, shadows: false, parity: false },
};

export interface RunOptions {
  schedule: RunConfig["schedule"];
  peers: number;
  microBatches: number;
  layers: number;
  wire: WireOptions;
  layerMs: LayerMs;
  fused: boolean;
  /** Steps before those that count: engines are built, links and timers warm up. */
  warmUp: number;
  steps: number;
  /** Whether the peers are alike, so that a plan for unequal ones is a mistake of the measuring. Default true. */
  even?: boolean;
  /** Changes to the run's configuration. */
  config?: Record<string, unknown>;
  /** In the place of the engine that only takes time. */
  createEngine?: (
    build: StageBuild,
    options: { peer: string; clock: PreciseClock; trace: TracedOp[] },
  ) => StageEngine;
}

/** One step of all peers. */
export interface Step {
  /** By their starts. */
  ops: TracedOp[];
  /** When the next step began. */
  nextMs: number;
}

export interface RunResult {
  view: View;
  /** Those that count. */
  steps: Step[];
  /** Of the measured ones, those in which other programs had the processor too long. */
  disturbed: number;
  tokensPerStep: number;
  /** Over all links, per step. */
  bytesPerStep: number;
  lag: Lag;
}

export async function runSteps(options: RunOptions): Promise<RunResult> {
  for (let attempt = 1;; attempt++) {
    const result = await runOnce({ ...options, warmUp: options.warmUp + (attempt - 1) * SETTLING_STEPS });
    if (typeof result !== "string") return result;
    if (attempt === RUN_TRIES) throw new ShoalError("internal", result);
  }
}

/** In words what was wrong with the plan, if something was. */
async function runOnce(options: RunOptions): Promise<RunResult | string> {
  const folder = await makeFolder();
  const clock = new PreciseClock();
  const trace: TracedOp[] = [];
  const ends: string[] = [];
  const peers: { peer: Peer; end: Promise<unknown> }[] = [];
  let coordinator: Coordinator | null = null;
  try {
    coordinator = await start(folder, options);
    const network = new WanNetwork({ ...options.wire, clock });
    for (let i = 0; i < options.peers; i++) {
      const peer = createPeer(coordinator.joinLink, options, { clock, network, trace, name: `peer-${i}` });
      peers.push({ peer, end: peer.run().then(({ reason }) => ends.push(reason)) });
    }
    return await measured(coordinator, options, { trace, clock, ends, network });
  } finally {
    for (const { peer } of peers) peer.leaveNow();
    await Promise.all(peers.map(({ end }) => end));
    await coordinator?.stop("the bench is over");
    await Deno.remove(folder, { recursive: true });
  }
}

async function start(folder: string, options: RunOptions): Promise<Coordinator> {
  const { schedule, peers, microBatches, layers, config } = options;
  const dataset = join(folder, "text.txt");
  await Deno.writeTextFile(dataset, "a text that nobody learns, but every peer reads. ".repeat(100));
  return await startCoordinator({
    config: readConfig({
      ...MODEL,
      ...{ dataset, schedule, n_layer: layers, min_peers: peers, gradient_accumulation_steps: microBatches },
      ...config,
    }),
    ...{ host: "127.0.0.1", port: 0, outDir: join(folder, "run"), operator: "bench", runName: "bench" },
    ...{ webRoot: folder, onEvent: () => {} },
  });
}

interface PeerParts {
  clock: PreciseClock;
  network: WanNetwork;
  trace: TracedOp[];
  name: string;
}

function createPeer(joinLink: string, options: RunOptions, parts: PeerParts): Peer {
  const { origin, hash } = new URL(joinLink);
  const { clock, network, name } = parts;
  const { layerMs, fused } = options;
  const occupied = { untilMs: 0, lateMs: 0 };
  // The first engine of a peer is the one that admission measures: nothing of it counts, and it makes nothing good.
  let [trace, repays]: [TracedOp[], boolean] = [[], false];
  const createEngine = (build: StageBuild) => {
    const about = { peer: name, clock, trace, repays };
    [trace, repays] = [parts.trace, true];
    return Promise.resolve(
      options.createEngine?.(build, about) ??
        createTimedEngine(build, { ...about, occupied, layerMs, fused }),
    );
  };
  return new Peer({
    ...{ origin, token: hash.slice(1), runtime: "deno", adapter: "none", engine: "timed", name },
    ...{ memoryBytes: MEMORY_BYTES, createEngine, onChange: () => {} },
    createHost: (selfId, relay) => {
      const createLink: Parameters<typeof createLinkHost>[0]["createLink"] = (remote, link) =>
        network.createLink(selfId, remote, link);
      return createLinkHost({ selfId, relay, createLink });
    },
  });
}

async function measured(
  coordinator: Coordinator,
  options: RunOptions,
  { trace, clock, ends, network }: Omit<PeerParts, "name"> & { ends: string[] },
): Promise<RunResult | string> {
  const { warmUp, steps, microBatches } = options;
  const { state } = coordinator.shell.core;
  const perStep = () => 3 * microBatches * (state.view?.stages.length ?? Infinity);
  const until = async (what: string, holds: () => boolean) => {
    const late = performance.now() + STEP_PATIENCE_MS;
    while (!holds()) {
      const problem = ends[0] ?? (state.status === "failed" ? state.reason : null);
      if (problem !== null) throw new ShoalError("internal", `a peer or the run ended: ${problem}`);
      if (performance.now() > late) {
        throw new ShoalError("internal", `${what} did not come; ${situation(coordinator)}`);
      }
      await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    }
  };
  const done = () => Math.floor(trace.length / perStep());
  for (let step = 1; step <= warmUp; step++) await until(`step ${step}`, () => done() >= step);
  const view = structuredClone(state.view!);
  if (options.even !== false && !isEven(view)) {
    return `the peers are equal, but were not measured so; ${situation(coordinator)}`;
  }
  clock.takeLag();
  const bytes = network.bytes;
  let found: Steps;
  let count = 0;
  do {
    count++;
    await until(`step ${warmUp + count}`, () => trace.length > perStep() * (warmUp + count));
    found = calmest(stepsOf(trace, perStep()).slice(warmUp), { ...options, view });
    if (state.view?.gen !== view.gen) break;
  } while (count < steps || (found.calm < steps && count < steps * TRIES));
  if (state.view?.gen !== view.gen) {
    return `the plan changed while it was measured; ${situation(coordinator)}`;
  }
  const { batch_size, block_size } = state.config;
  return {
    ...{ view, steps: found.steps, disturbed: count - found.calm, lag: clock.takeLag() },
    ...{ bytesPerStep: (network.bytes - bytes) / count },
    tokensPerStep: microBatches * batch_size * block_size,
  };
}

/**
 * A step ends before the next begins, so in the order of starts each step is a run of the same length; the last may be open. Where
 * steps overlap (2bw) each run is as many operations as a step has, of two of them.
 */
function stepsOf(trace: readonly TracedOp[], perStep: number): Step[] {
  const sorted = trace.toSorted((a, b) => a.startMs - b.startMs);
  const count = Math.floor((sorted.length - 1) / perStep);
  return Array.from({ length: count }, (_, i) => ({
    ops: sorted.slice(i * perStep, (i + 1) * perStep),
    nextMs: sorted[(i + 1) * perStep]!.startMs,
  }));
}

/** Whether each peer computes as many layers as any other. */
export function isEven({ stages }: Pick<View, "stages">): boolean {
  const layers = new Map<string, number>();
  for (const { firstLayer, endLayer, replicas } of stages) {
    for (const { peer, microBatches } of replicas) {
      const work = (endLayer - firstLayer) * microBatches.length;
      layers.set(peer, (layers.get(peer) ?? 0) + work);
    }
  }
  return new Set(layers.values()).size === 1;
}

interface Steps {
  steps: Step[];
  /** How many of all were calm. */
  calm: number;
}

function calmest(
  all: readonly Step[],
  { steps, view, layerMs, fused }: RunOptions & { view: View },
): Steps {
  const late = (step: Step) => latenessOf(step, view, { layerMs, fused });
  const sorted = all.toSorted((a, b) => late(a) - late(b));
  return { steps: sorted.slice(0, steps), calm: all.filter((step) => late(step) <= CALM_LATE).length };
}

/** Mean duration of a step's operations over what the engines were told, less 1. */
export function latenessOf(
  { ops }: Step,
  { stages }: Pick<View, "stages">,
  { layerMs, fused }: { layerMs: LayerMs; fused: boolean },
): number {
  const told = ops.map(({ stage, kind }) => {
    const { firstLayer, endLayer } = stages[stage]!;
    return stageMs(layerMs, endLayer - firstLayer, fused)[kind];
  });
  return sum(ops.map((op) => op.endMs - op.startMs)) / sum(told) - 1;
}

/** In memory where that can be. */
async function makeFolder(): Promise<string> {
  const options = { prefix: "shoal-wan-" };
  return await Deno.makeTempDir({ ...options, dir: MEMORY_FOLDER }).catch(() => Deno.makeTempDir(options));
}

function situation({ shell }: Coordinator): string {
  const { status, reason, events } = shell.core.state;
  return [`${status}: ${reason}`, ...events.slice(-5).map(({ text }) => text)].join("; ");
}
