// The pipeline map: stages as columns, replicas as rows, one peer in each cell. Pure.
// Reads the plan for who is where and the peers for what they are; a planned peer that is gone stays visible as gone.
import type { StagePlan } from "../peer/wire/run.ts";
import type { PeerStatus, RunStatus } from "../peer/wire/status.ts";
import { duration, layers, plural } from "./format.ts";

export interface PipelineCell {
  peer: string;
  adapter: string;
  runtime: string;
  work: string;
  present: boolean;
}

export interface PipelineView {
  columns: { title: string; holds: string }[];
  /** Row r holds replica r of each stage; null where a stage has fewer replicas. */
  rows: (PipelineCell | null)[][];
  /** Peers in no stage. */
  spare: string[];
  summary: string;
}

export function pipelineView(status: RunStatus): PipelineView {
  const peers = new Map(status.peers.map((peer) => [peer.id, peer]));
  const depth = Math.max(0, ...status.stages.map((stage) => stage.replicas.length));
  const placed = new Set(status.stages.flatMap((stage) => stage.replicas.map((replica) => replica.peer)));
  const spare = status.peers.filter((peer) => !placed.has(peer.id)).map((peer) =>
    `${peer.id} (${peer.role})`
  );
  return {
    columns: status.stages.map((stage) => ({ title: `Stage ${stage.index + 1}`, holds: stageHolds(stage) })),
    rows: Array.from({ length: depth }, (_, row) => status.stages.map((stage) => cellOf(stage, row, peers))),
    spare,
    summary: summarise(status, placed.size, spare.length),
  };
}

/** "embedding, layers 1 to 2". */
export function stageHolds(stage: StagePlan): string {
  const parts = [layers(stage.firstLayer, stage.endLayer)];
  if (stage.embed) parts.unshift("embedding");
  if (stage.head) parts.push("head");
  return parts.join(", ");
}

function cellOf(stage: StagePlan, row: number, peers: Map<string, PeerStatus>): PipelineCell | null {
  const replica = stage.replicas[row];
  if (!replica) return null;
  const peer = peers.get(replica.peer);
  const shadow = replica.microBatches.length === 0;
  const share = replica.learning
    ? "fetching the state, computes nothing yet"
    : shadow
    ? "shadow: keeps a copy, computes nothing"
    : plural(replica.microBatches.length, "micro-batch");
  const pace = peer && peer.stepMs > 0 && !shadow ? `, ${duration(peer.stepMs)} per step` : "";
  return {
    peer: replica.peer,
    adapter: peer ? peer.adapter : "gone; waiting for a new plan",
    runtime: peer ? peer.runtime : "",
    work: share + pace,
    present: peer !== undefined,
  };
}

function summarise(status: RunStatus, placed: number, spare: number): string {
  if (status.stages.length === 0) return "No plan yet: the run starts when enough peers have joined.";
  return `${plural(status.stages.length, "stage")} on ${plural(placed, "peer")}, ${
    plural(spare, "spare peer")
  }.`;
}
