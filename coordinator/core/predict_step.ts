// What the simulator makes of the present view with the times that peers measured: the truth that a step is held against. Pure;
// decides nothing. What must stay true: it is asked at most once a second, and a large view is not simulated at all.
import { isPlaced } from "../../peer/schedule/catalogue.ts";
import { followedSchedule } from "../../peer/schedule/placed.ts";
import type { CodecId, ReplicaPlan, StagePlan, View } from "../../peer/wire/run.ts";
import { codecsAfter } from "../../peer/wire/view.ts";
import { simulatePipeline } from "../plan/dynamic.ts";
import { type PlacedTimes, simulatePlaced } from "../plan/placed_step.ts";
import { BYTES_PER_VALUE, RECOMPUTED } from "../plan/planner_model.ts";
import { workOf } from "./measures.ts";
import type { RunCoreState } from "./run_state.ts";

/** Operations of a step that are simulated; a view with more takes longer than a turn of the coordinator may. */
const OPS_MAX = 20_000;

/** Milliseconds of one micro-batch. */
type OpTimes = Record<"F" | "B" | "W", number>;

/** Milliseconds from the first operation to the last; null while times are missing or the view is too large. */
export function predictPipelineMs(s: RunCoreState): number | null {
  const { view, config } = s;
  if (view === null) return null;
  if (config.gradient_accumulation_steps * view.stages.length * 3 > OPS_MAX) return null;
  const times = timesOf(s, view);
  if (times === null) return null;
  const schedule = followedSchedule(view);
  if (!isPlaced(schedule)) return executed({ ...view, schedule }, times) * 1000;
  const simulation = simulatePlaced(view, times);
  return simulation === null ? null : simulation.makespan * 1000;
}

/** By the executor that peers run; a peer is one device, however many stages it holds. */
function executed(view: View, times: PlacedTimes): number {
  const peers: string[] = [];
  const deviceOf = (peer: string) => peers.includes(peer) ? peers.indexOf(peer) : peers.push(peer) - 1;
  const stages = view.stages.map((stage) => {
    const computing = stage.replicas.filter(({ microBatches }) => microBatches.length > 0);
    return {
      ...{ inflight: stage.inflight, slots: stage.inflight },
      replicas: computing.map(({ microBatches }) => microBatches),
      devices: computing.map(({ peer }) => deviceOf(peer)),
    };
  });
  const seconds = (kind: "F" | "B" | "W") => (stage: number, device: number) =>
    times.op(peers[device]!, stage, kind);
  const network = {
    mode: "duplex" as const,
    latency: (from: number, to: number) => times.latency(peers[from]!, peers[to]!),
    transfer: (from: number, to: number) => times.transfer(peers[from]!, peers[to]!),
  };
  const costs = { seconds: { F: seconds("F"), B: seconds("B"), W: seconds("W") }, network };
  return simulatePipeline(view.schedule, stages, costs).makespan;
}

/** Null while a computing peer has measured nothing. A link that nobody measured costs nothing. */
function timesOf(s: RunCoreState, view: View): PlacedTimes | null {
  const known = new Map<string, OpTimes>();
  for (const stage of view.stages) {
    for (const { peer, microBatches } of stage.replicas) {
      if (microBatches.length === 0) continue;
      const ms = millisecondsOf(s, stage, peer);
      if (ms === null) return null;
      known.set(`${peer} ${stage.index}`, ms);
    }
  }
  const { batch_size, block_size, n_embd } = s.config;
  const values = batch_size * block_size * n_embd;
  const perValue = bytesPerValue(view);
  const link = (from: string, to: string) => s.peers[from]?.links?.[to];
  return {
    op: (peer, stage, kind) => known.get(`${peer} ${stage}`)![kind] / 1000,
    latency: (from, to) => (link(from, to)?.rttMs ?? 0) / 2000,
    transfer: (from, to) => {
      const rate = link(from, to)?.upBytesPerS ?? 0;
      return rate > 0 ? values * (perValue.get(`${from} ${to}`) ?? 0) / rate : 0;
    },
  };
}

/** Of what one peer sends another: the largest, where they are neighbours at several boundaries. */
function bytesPerValue(view: View): Map<string, number> {
  const most = new Map<string, number>();
  const add = (from: ReplicaPlan, to: ReplicaPlan, codec: CodecId) => {
    const key = `${from.peer} ${to.peer}`;
    most.set(key, Math.max(most.get(key) ?? 0, BYTES_PER_VALUE[codec]));
  };
  for (const [boundary, { replicas }] of view.stages.slice(0, -1).entries()) {
    const { forward, backward } = codecsAfter(view, boundary);
    for (const before of replicas) {
      for (const after of view.stages[boundary + 1]!.replicas) {
        add(before, after, forward);
        add(after, before, backward);
      }
    }
  }
  return most;
}

/** As measured in this stage; before that from what the peer's layers took elsewhere. */
function millisecondsOf(s: RunCoreState, stage: StagePlan, peer: string): OpTimes | null {
  const { ops = [], opMs } = s.peers[peer] ?? {};
  const times = ops.find((it) => it.stage === stage.index && it.microBatches > 0);
  if (times !== undefined) return { F: times.forwardMs, B: times.backwardMs, W: times.weightGradMs };
  if (opMs === undefined) return null;
  const again = RECOMPUTED[stage.recompute ?? "none"] * (stage.endLayer - stage.firstLayer);
  const work = workOf(s, stage);
  const { forward, backward, weightGrad } = opMs;
  return { F: forward * work, B: backward * work + forward * again, W: weightGrad * work };
}
