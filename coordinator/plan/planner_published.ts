// What the published schedules would take on the peers and links of a plan, and whether they fit their memories: the textbook
// rows of a comparison that is not about equal devices. Pure. It changes no plan; a schedule that cannot be had says why.
import { breadthFirst, gpipe, interleaved, oneForwardOneBackward } from "../../peer/schedule/emitters.ts";
import { chimera, chimeraForwardDoubling } from "../../peer/schedule/emitters_chimera.ts";
import { dualPipe, zbH1, zbH2 } from "../../peer/schedule/emitters_split.ts";
import { zbV } from "../../peer/schedule/emitters_zbv.ts";
import { parts, type Schedule } from "../../peer/schedule/ir.ts";
import { ShoalError } from "../../peer/wire/errors.ts";
import { bestSplit, type LayerRange } from "./partition.ts";
import { megabytes } from "./planner_feasible.ts";
import { CostModel } from "./planner_model.ts";
import type { Plan, PlanRequest } from "./planner_types.ts";
import { simulate } from "./simulate.ts";

/** Chunks per device of the looped schedules; more only adds hops. */
const CHUNKS = 2;

export interface PublishedPrediction {
  name: string;
  /** Of a step, exchange of sums and commit included; null if the schedule cannot be had here. */
  seconds: number | null;
  bubble: number | null;
  /** Why not; null if it can be had. */
  reason: string | null;
}

const EMITTERS: readonly [name: string, emit: (P: number, N: number) => Schedule][] = [
  ["gpipe", gpipe],
  ["1f1b", (P, N) => oneForwardOneBackward(P, N)],
  [`interleaved, ${CHUNKS} chunks`, (P, N) => interleaved(P, N, CHUNKS)],
  [`breadth-first, ${CHUNKS} chunks`, (P, N) => breadthFirst(P, N, CHUNKS)],
  ["chimera", (P, N) => chimera(P, N)],
  ["chimera, 2 pairs", (P, N) => chimera(P, N, { pairs: 2 })],
  ["chimera, forward doubling", chimeraForwardDoubling],
  ["zb-h1", zbH1],
  ["zb-h2", zbH2],
  ["zb-v", zbV],
  // A GPU of the web has one queue, so nothing overlaps.
  ["dualpipe", (P, N) => dualPipe(P, N, { paired: false })],
];

/** One row per published schedule, on one peer per stage: the first replica of each stage of the plan. */
export function publishedSchedules(request: PlanRequest, plan: Plan): PublishedPrediction[] {
  const model = new CostModel(request);
  const index = new Map(request.peers.map(({ id }, i) => [id, i]));
  const peers = plan.stages.map(({ replicas }) => index.get(replicas[0]!.peer)!);
  const own = plan.stages.map(({ firstLayer, endLayer }): LayerRange => ({ firstLayer, endLayer }));
  return EMITTERS.map(([name, emit]) => {
    try {
      return { name, ...predicted(model, emit(peers.length, model.N), { peers, own }) };
    } catch (error) {
      if (!(error instanceof ShoalError) || error.code !== "bad-config") throw error;
      return { name, ...impossible(error.message) };
    }
  });
}

function impossible(reason: string): Omit<PublishedPrediction, "name"> {
  return { seconds: null, bubble: null, reason };
}

function predicted(
  model: CostModel,
  schedule: Schedule,
  { peers, own }: { peers: readonly number[]; own: readonly LayerRange[] },
): Omit<PublishedPrediction, "name"> {
  const cut = schedule.stages === own.length ? own : chunked(model, schedule, peers);
  if (cut === null) {
    return impossible(`${schedule.stages} stages need as many layers, there are ${model.layers}`);
  }
  const tight = firstTooSmall(model, schedule, { peers, cut });
  if (tight !== null) return impossible(tight);
  const { codec_forward, codec_backward } = model.request.config;
  const op = (kind: "F" | "B" | "W") => (stage: number, device: number) =>
    model.opSeconds(peers[device]!, cut[stage]!.firstLayer, cut[stage]!.endLayer, "none")[kind];
  const result = simulate(schedule, { F: op("F"), B: op("B"), W: op("W") }, {
    mode: "duplex",
    latency: (from, to) => model.latency(peers[from]!, peers[to]!),
    // Which way a message goes is not told, so both directions have the dearer codec's size.
    transfer: (from, to) =>
      Math.max(
        ...[codec_forward, codec_backward].map((codec) => model.transfer(peers[from]!, peers[to]!, codec)),
      ),
  });
  const seconds = result.makespan + syncSeconds(model, schedule, { peers, cut }) +
    (model.request.commitSeconds ?? 0);
  return { seconds, bubble: result.bubble, reason: null };
}

/** Layers of a schedule with several chunks per device: the slowest chunk as fast as can be. */
function chunked(model: CostModel, schedule: Schedule, peers: readonly number[]): LayerRange[] | null {
  if (schedule.stages > model.layers) return null;
  const devices = schedule.placement[0]!;
  return bestSplit(
    model.layers,
    schedule.stages,
    (stage, i, j) => model.seconds(peers[devices[stage]!]!, i, j, "none"),
  );
}

interface Cut {
  peers: readonly number[];
  cut: readonly LayerRange[];
}

/** Names the first peer whose memory does not hold all of its stages with the activations that the order keeps. */
function firstTooSmall(model: CostModel, schedule: Schedule, { peers, cut }: Cut): string | null {
  for (const [device, ops] of schedule.ops.entries()) {
    const held = new Map<number, { now: number; most: number }>();
    for (const { kind, stage } of ops.flatMap(parts)) {
      const count = held.get(stage) ?? { now: 0, most: 0 };
      if (kind === "F") count.most = Math.max(count.most, ++count.now);
      else if (kind !== "B") count.now--;
      held.set(stage, count);
    }
    let bytes = 0;
    for (const [stage, { most }] of held) {
      const { firstLayer, endLayer } = cut[stage]!;
      const run = { slots: most, recompute: "none" } as const;
      bytes += model.bytes(peers[device]!, { first: firstLayer, end: endLayer }, run);
    }
    const peer = model.request.peers[peers[device]!]!;
    if (bytes > peer.memoryBytes) {
      return `${peer.name ?? peer.id} would need ${megabytes(bytes)} and offers ${
        megabytes(peer.memoryBytes)
      }`;
    }
  }
  return null;
}

/** The holders of each stage are its devices in all directions. */
function syncSeconds(model: CostModel, { placement }: Schedule, { peers, cut }: Cut): number {
  return Math.max(...cut.map(({ firstLayer, endLayer }, stage) => {
    const holders = [...new Set(placement.map((devices) => peers[devices[stage]!]!))];
    return model.syncSeconds(holders, firstLayer, endLayer);
  }));
}
