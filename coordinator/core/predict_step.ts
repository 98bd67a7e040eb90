// What the simulator makes of the present view with the times that peers measured: the truth that a step is held against. Pure;
// decides nothing. What must stay true: it is asked at most once a second, and a large view is not simulated at all.
import { isPlaced } from "../../peer/schedule/catalogue.ts";
import { followedSchedule } from "../../peer/schedule/placed.ts";
import type { CodecId, ReplicaPlan, StagePlan, View } from "../../peer/wire/run.ts";
import { codecsAfter, isDelayed } from "../../peer/wire/view.ts";
import { simulatePipeline } from "../plan/dynamic.ts";
import { steadySeconds } from "../plan/steady.ts";
import { type PlacedTimes, simulatePlaced } from "../plan/placed_step.ts";
import { BYTES_PER_VALUE, RECOMPUTED } from "../plan/planner_model.ts";
import { workOf } from "./measures.ts";
import type { RunCoreState } from "./run_state.ts";

/** Operations of a step that are simulated; a view with more takes longer than a turn of the coordinator may. */
const OPS_MAX = 20_000;
/** The same where five steps are. */
const STEADY_OPS_MAX = OPS_MAX / 5;

/** Milliseconds of one micro-batch. */
type OpTimes = Record<"F" | "B" | "W", number>;

/** Milliseconds from the first operation to the last; null while times are missing or the view is too large. */
export function predictPipelineMs(s: RunCoreState): number | null {
  const { view, config } = s;
  // Of two steps that overlap, neither is what a pipeline alone would take.
  if (view === null || isDelayed(view)) return null;
  if (config.gradient_accumulation_steps * view.stages.length * 3 > OPS_MAX) return null;
  const times = timesOf(s, view);
  if (times === null) return null;
  const schedule = followedSchedule(view);
  if (!isPlaced(schedule)) return executed({ ...view, schedule }, times) * 1000;
  const simulation = simulatePlaced(view, times);
  return simulation === null ? null : simulation.makespan * 1000;
}

/**
 * Seconds from commit to commit where each step follows the one before without a pause (schedule 2bw), and the idle share of the
 * peers that compute; null while times are missing or the view is too large.
 */
export function predictSteady(s: RunCoreState): { seconds: number; bubble: number } | null {
  return s.view === null ? null : steadyOf(s, s.view);
}

/** The same of any view, of peers of the run; what was measured in a stage counts for the same layers only. */
export function steadyOf(s: RunCoreState, view: View): { seconds: number; bubble: number } | null {
  if (s.config.gradient_accumulation_steps * view.stages.length * 3 > STEADY_OPS_MAX) return null;
  const times = timesOf(s, view);
  if (times === null) return null;
  const { peers, stages, costs } = setOut(view, times);
  const seconds = steadySeconds(stages, costs);
  const kinds = ["F", "B", "W"] as const;
  const worked = view.stages.flatMap(({ index, replicas }) =>
    replicas.map(({ peer, microBatches }) => {
      const each = microBatches.length === 0
        ? 0
        : kinds.reduce((sum, k) => sum + times.op(peer, index, k), 0);
      return each * microBatches.length;
    })
  );
  const busy = worked.reduce((sum, it) => sum + it, 0) / peers.length;
  return { seconds, bubble: Math.max(0, 1 - busy / seconds) };
}

/** By the executor that peers run. */
function executed(view: View, times: PlacedTimes): number {
  const { stages, costs } = setOut(view, times);
  return simulatePipeline(view.schedule, stages, costs).makespan;
}

/** The view as the simulator takes it; a peer is one device, however many stages it holds. */
function setOut(view: View, times: PlacedTimes) {
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
  return {
    peers,
    stages,
    costs: { seconds: { F: seconds("F"), B: seconds("B"), W: seconds("W") }, network },
  };
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
  const { ops = [], opMs, codingMs = 0 } = s.peers[peer] ?? {};
  const times = isInForce(s, stage)
    ? ops.find((it) => it.stage === stage.index && it.microBatches > 0)
    : undefined;
  if (times !== undefined) return { F: times.forwardMs, B: times.backwardMs, W: times.weightGradMs };
  if (opMs === undefined) return null;
  const again = RECOMPUTED[stage.recompute ?? "none"] * (stage.endLayer - stage.firstLayer);
  const work = workOf(s, stage);
  const { forward, backward, weightGrad } = opMs;
  const coding = codingMs * (2 - Number(stage.embed) - Number(stage.head)) / 2;
  return { F: forward * work + coding, B: backward * work + forward * again + coding, W: weightGrad * work };
}

/** Whether the stage has the layers of the present view's, run in the same way. */
function isInForce({ view }: RunCoreState, stage: StagePlan): boolean {
  const now = view?.stages[stage.index];
  return now !== undefined && now.firstLayer === stage.firstLayer && now.endLayer === stage.endLayer &&
    (now.recompute ?? "none") === (stage.recompute ?? "none");
}
