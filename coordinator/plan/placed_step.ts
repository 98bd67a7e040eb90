// What a step of a placed schedule takes on given peers: the order that they follow, played by the simulator of static schedules. Pure.
// What must stay true: it is the very order that peers run, read from the view as they read it.
import { asRun, placedOf } from "../../peer/schedule/placed.ts";
import type { View } from "../../peer/wire/run.ts";
import { CostModel } from "./planner_model.ts";
import type { PlanRequest } from "./planner_types.ts";
import { type OpSeconds, simulate, type Simulation } from "./simulate.ts";

/** Seconds of one operation of a peer, and of the way of a tensor to another. */
export interface PlacedTimes {
  op(peer: string, stage: number, kind: "F" | "B" | "W"): number;
  latency(from: string, to: string): number;
  /** The larger of activation and gradient: in two pipelines a link carries both ways alike. */
  transfer(from: string, to: string): number;
}

/** The pipeline alone, without sums and commit; null if the view is not a placed schedule. */
export function simulatePlaced(
  view: Pick<View, "schedule" | "stages">,
  times: PlacedTimes,
): Simulation | null {
  const placed = placedOf(view);
  if (placed === null) return null;
  const { peers, schedule } = placed;
  const of = (kind: "F" | "B" | "W") => (stage: number, device: number) =>
    times.op(peers[device]!, stage, kind);
  const seconds: OpSeconds = { F: of("F"), B: of("B"), W: of("W") };
  return simulate(asRun(schedule), seconds, {
    mode: "duplex",
    latency: (from, to) => times.latency(peers[from]!, peers[to]!),
    transfer: (from, to) => times.transfer(peers[from]!, peers[to]!),
  });
}

/** A whole step by the planner's cost model; null also if a peer of the view is not in the request. */
export function placedStep(
  request: PlanRequest,
  view: Pick<View, "schedule" | "stages" | "codecForward" | "codecBackward">,
): { seconds: number; bubble: number } | null {
  const model = new CostModel(request);
  const index = new Map(request.peers.map(({ id }, i) => [id, i]));
  const computing = view.stages.map(({ replicas }) =>
    replicas.filter(({ microBatches }) => microBatches.length > 0).map(({ peer }) => index.get(peer) ?? -1)
  );
  if (computing.flat().includes(-1)) return null;
  const at = (peer: string) => index.get(peer)!;
  const slower = model.boundaryBytes(view.codecForward) > model.boundaryBytes(view.codecBackward);
  const simulation = simulatePlaced(view, {
    op: (peer, stage, kind) => {
      const { firstLayer, endLayer, recompute = "none" } = view.stages[stage]!;
      return model.opSeconds(at(peer), firstLayer, endLayer, recompute)[kind];
    },
    latency: (from, to) => model.latency(at(from), at(to)),
    transfer: (from, to) => model.transfer(at(from), at(to), slower ? view.codecForward : view.codecBackward),
  });
  if (simulation === null) return null;
  const ends = view.stages.map(() => 0);
  for (const { stage, end } of simulation.trace) ends[stage] = Math.max(ends[stage]!, end);
  const done = view.stages.map(({ firstLayer, endLayer }, s) =>
    ends[s]! + model.syncSeconds(computing[s]!, firstLayer, endLayer) * stagesEach(computing, computing[s]!)
  );
  return { seconds: Math.max(...done) + (request.commitSeconds ?? 0), bubble: simulation.bubble };
}

/** Of a stage's holders the one with the most stages: it sends the sums of all of them over one uplink. */
function stagesEach(computing: readonly (readonly number[])[], holders: readonly number[]): number {
  return Math.max(...holders.map((peer) => computing.filter((stage) => stage.includes(peer)).length));
}
