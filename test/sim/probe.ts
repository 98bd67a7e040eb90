// What a simulation reads out of the cores' states, in words of its own: in which protocol state a peer or the coordinator is,
// what a peer holds, how full its queues are. Reads only. Beside world.ts the one file that knows the cores' fields.
import type { RunCoreState } from "../../coordinator/core/run_state.ts";
import { stepsAtRisk } from "../../coordinator/core/safety.ts";
import type { Instance, JobResult, PeerState } from "../../peer/core/peer_state.ts";
import { finished } from "../../peer/schedule/executor.ts";
import { isTiedModel, peersOf } from "../../peer/wire/view.ts";
import type { StagePlan, View } from "../../peer/wire/run.ts";
import type { StageState } from "../../peer/exact/state.ts";
import type { FrameHeader } from "../../peer/wire/frame.ts";
import { type Range, rangeOf, sameRange } from "./reference.ts";
import type { SimPeer } from "./types.ts";

/** A total comes from another holder: after a commit, or because the view was amended when some had it already. */
const FETCHING = ["asked", "installing"];

/** Every state in which a peer may be lost, by its role. A test crashes a peer in each of them. */
export const PEER_STATES: readonly string[] = [
  ...["loading", "connecting", "ready", "F", "B", "W", "waiting", "awaiting parts", "summing"].map(replica),
  ...["sealing", "logged", "applying", "applied", "exporting", "evaluating", ...FETCHING].map(replica),
  ...["loading", "connecting", "ready", "awaiting parts", "summing", "sealing", "logged"].map(shadow),
  ...["applying", "applied", "evaluating", ...FETCHING].map(shadow),
  ...["awaiting tied", "sealing", "logged", "applying"].map((state) => `tied end: ${state}`),
  ...["without a state", "fetching a state", "applying", ...FETCHING].map((state) => `learner: ${state}`),
  ...["reducing a shard", "awaiting shards"].map(replica),
  ...["receiving", "keeping"].map((state) => `keeper: ${state}`),
  "owner: sending",
  "spare: idle",
];

/** The same for the coordinator. */
export const COORDINATOR_STATES: readonly string[] = [
  ...["idle", "loading", "training", "evaluating", "handover", "held", "ending"],
  ...["regathering", "restoring", "snapshot", "transfer"],
];

function replica(state: string): string {
  return `replica: ${state}`;
}

function shadow(state: string): string {
  return `shadow: ${state}`;
}

/** The states of all stage instances of a peer, and what it does for snapshots; a spare has one. */
export function peerStates({ core: { state: s }, snapshots: { desk } }: SimPeer): string[] {
  const found: string[] = [];
  for (const instance of s.view === null ? [] : s.instances) {
    const state = instanceState(s, instance);
    found.push(`${roleOf(s, instance)}: ${state}`);
    if (isTiedEnd(s, instance)) found.push(`tied end: ${state}`);
  }
  if (desk.core.keptShards.length > 0) found.push("keeper: keeping");
  else if (desk.core.keptBytes > 0) found.push("keeper: receiving");
  if (desk.core.sender.pending > 0) found.push("owner: sending");
  return s.view === null || s.instances.length === 0 ? ["spare: idle", ...found] : found;
}

function roleOf(s: PeerState, { plan, microBatches }: Instance): string {
  if (isLearning(plan, s.id)) return "learner";
  return microBatches.length > 0 ? "replica" : "shadow";
}

function isTiedEnd(s: PeerState, { plan }: Instance): boolean {
  return isTiedModel(s.config) && s.view!.stages.length > 1 && (plan.embed || plan.head);
}

function instanceState(s: PeerState, instance: Instance): string {
  const { busy } = s;
  if (instance.step === null) return instance.fetching ? "fetching a state" : "without a state";
  if (!s.loaded) return "loading";
  if (!s.readySent) return "connecting";
  if (busy?.job === "export" && busy.stage === instance.plan.index) return "exporting";
  if (instance.applying) return "applying";
  if (instance.evaluation !== null) return "evaluating";
  const { work } = instance;
  if (work === null) return instance.step > 0 ? "applied" : "ready";
  if (work.total === "summed") return "awaiting tied";
  if (work.total !== "none") return work.total;
  if (busy?.job === "op" && busy.stage === instance.plan.index) return busy.kind;
  if (work.progress !== null && !finished(work.progress)) return "waiting";
  if (busy?.job === "reduce" && busy.stage === instance.plan.index) return "reducing a shard";
  return work.shardGen === s.gen ? "awaiting shards" : "awaiting parts";
}

/** What the coordinator is at, and what it waits for beside it. */
export function coordinatorStates(s: RunCoreState): string[] {
  const found = [s.ending !== null ? "ending" : s.phase === "round" ? roundOf(s) : s.phase];
  if (s.kept.pending !== null) found.push("snapshot");
  if (s.transfers.length > 0) found.push("transfer");
  return found;
}

function roundOf(s: RunCoreState): string {
  return s.round?.pass === "eval" ? "evaluating" : "training";
}

/** What the coordinator would say if it were asked now. `risk`: committed steps that one departure could cost. */
export function sayingOf(s: RunCoreState): { view: View | null; phase: string; risk: number } {
  return { view: s.view, phase: s.phase, risk: stepsAtRisk(s) };
}

/** Whether somebody has logged the total that this frame is a part of: then a wrong one is known as wrong. */
export function isSumOfLogged(s: RunCoreState, { kind, step, toStage }: FrameHeader): boolean {
  if (kind !== "part" && kind !== "shard") return false;
  return step < s.committed || Object.keys(s.logged[toStage] ?? {}).length > 0;
}

/** The states that a peer has of stages in which it computes nothing. */
export function idleStates({ core: { state }, holder }: SimPeer): StageState[] {
  const idle = state.instances.filter((it) => it.microBatches.length === 0 && it.step !== null);
  return holder.states().filter((it) => idle.some(({ plan }) => sameRange(plan, rangeOf(it.layout))));
}

/** Of a learner, whether the coordinator must still hear the hash of a later step before it counts as a holder. */
export function isUnproved(s: RunCoreState, { id, core: { state } }: SimPeer): boolean {
  return state.instances.every(({ plan, step }) => {
    if (!isLearning(plan, id)) return true;
    return isLearning(s.view?.stages[plan.index], id) && step !== null && step < s.committed;
  });
}

function isLearning(stage: StagePlan | undefined, peer: string): boolean {
  return stage?.replicas.some((it) => it.peer === peer && it.learning === true) ?? false;
}

export interface Holding {
  range: Range;
  /** Steps contained in the state, the logged total of the open step counted. */
  step: number;
}

/** What a peer could hand over: for each stage the steps that its state and its logged total reach. */
export function holdings({ core }: SimPeer): Holding[] {
  const { instances, loaded } = core.state;
  if (!loaded) return [];
  return instances.flatMap(({ plan, step, work, applying }) => {
    if (step === null) return [];
    const sealed = applying || (work?.step === step && work.total === "logged");
    return [{ range: plan, step: step + (sealed ? 1 : 0) }];
  });
}

export type Exported = NonNullable<JobResult["file"]>;

/** A heartbeat of a peer that measures nothing. */
export const IDLE_BEAT = {
  ...{ stepMs: 0, bytesUp: 0, bytesDown: 0, direct: 0, relayed: 0, hidden: false },
  ...{ recomputed: 0, recoveryBytes: 0, retainedBytes: 0 },
};

export interface StageHolders {
  range: Range;
  /** Learners too: one of them may have become a holder since the view was told. */
  all: string[];
  living: string[];
}

/**
 * Stages of a view with the peers that the coordinator counts on as holders. A view that was told: when a commit is seen, the
 * core's own may already be the next one.
 */
export function holdersOf(s: RunCoreState, view: View): StageHolders[] {
  return view.stages.map((stage) => ({
    range: stage,
    all: stage.replicas.map((it) => it.peer),
    living: stage.replicas.filter((it) => !it.learning && s.peers[it.peer] !== undefined).map((it) =>
      it.peer
    ),
  }));
}

/** Whether all members have told that their engines are built. */
export function allWarm(s: RunCoreState): boolean {
  const stages = s.view?.stages ?? [];
  return stages.every(({ index, replicas }) => replicas.every(({ peer }) => s.warm[peer]?.includes(index)));
}

/** Steps in the state that a peer holds of a stage; 0 if it holds none. */
export function stepAt(s: PeerState, stage: number): number {
  return s.instances.find((instance) => instance.plan.index === stage)?.step ?? 0;
}

export function holdsStage(view: View, stage: number, peer: string): boolean {
  return view.stages[stage]?.replicas.some((replica) => replica.peer === peer) ?? false;
}

export function isMember(s: PeerState, peer: string): boolean {
  return s.view !== null && peersOf(s.view).includes(peer);
}

/** Lengths of what could grow, each with its most. N micro-batches, at most two passes' frames ahead. */
export function peerQueues(s: PeerState): [name: string, length: number, most: number][] {
  // Frames of a stage just given up may still lie there.
  const frames = (s.instances.length + 1) *
    (2 * s.config.gradient_accumulation_steps + s.config.eval_iters + 8);
  return [
    ["arrived frames", s.arrived.length, 2 * frames],
    ["jobs", s.jobs.length, 4 * (s.instances.length + 1)],
    ["pending snapshots", s.pendingSnapshots.length, 8 * s.instances.length],
  ];
}

export function coordinatorQueues(s: RunCoreState): [name: string, length: number, most: number][] {
  return [
    ["snapshots", s.snapshots.length, 2],
    ["events", s.events.length, 200],
    ["loss points", s.losses.length, s.config.max_iters + 1],
    ["heartbeats", Object.keys(s.beats).length, 64],
  ];
}

/** What only messages of members may change; compared before and after a message that must change nothing. */
export function fingerprint(s: RunCoreState): string {
  const { gen, committed, phase, logged, stateHashes, evaluated, ready, pending } = s;
  const wishes = Object.values(s.peers).map(({ id, leaving, paused }) => [id, leaving, paused]);
  // Whatever a member says is a sign of life; nobody else is to be listened to.
  const heard = Object.keys(s.beats).filter((id) => s.peers[id] === undefined);
  return JSON.stringify({
    gen,
    committed,
    phase,
    logged,
    stateHashes,
    evaluated,
    ready,
    pending,
    wishes,
    heard,
  });
}
