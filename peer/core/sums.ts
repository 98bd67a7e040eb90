// How the sums of a stage's replicas become one: with one or two that compute, each sends its whole sum to every holder; with
// more, each sends every other its shard, the shard's owner adds up and sends the result to all holders (butterfly). Sums are
// of integers, so neither order nor who computed what changes a bit. Invariant: nothing is added up but an exact cover of the
// step's micro-batches, asked of the very sets that go in.
import { exactCover } from "../exact/accumulate.ts";
import { stageLayout } from "../model/layout.ts";
import { assert } from "../wire/errors.ts";
import { shardOwners, shardRange } from "../wire/view.ts";
import { partners } from "./accept.ts";
import type { FrameOut, Instance, Job, PartFrom, PeerEffect, PeerState, StepWork } from "./peer_state.ts";
import { push } from "./totals.ts";

/** The own share is done: sends what others need, and adds up what is there. */
export function exchangeSums(state: PeerState, instance: Instance, out: PeerEffect[]): void {
  const work = instance.work!;
  if (instance.microBatches.length > 0 && work.partGen !== state.gen) {
    const recovery = work.partGen >= 0;
    work.partGen = state.gen;
    const peers = instance.plan.replicas.map((replica) => replica.peer);
    sendParts(state, instance, { out, peers, recovery });
  }
  if (work.total !== "none") return;
  if (shardOwners(instance.plan).length === 0) sumParts(state, instance);
  else {
    reduceShard(state, instance);
    sumShards(state, instance);
  }
}

interface Sending {
  out: PeerEffect[];
  peers: string[];
  recovery: boolean;
}

/** Everything of the open step that these holders are owed. */
export function sendSums(state: PeerState, instance: Instance, sending: Sending): void {
  const work = instance.work!;
  if (work.partGen === state.gen) sendParts(state, instance, sending);
  if (work.shardGen === state.gen) sendShard(state, instance, sending);
}

function sendParts(state: PeerState, instance: Instance, { out, peers, recovery }: Sending): void {
  const { plan, microBatches: set } = instance;
  // Its sum is on the GPU and nobody else's yet.
  if (instance.optimizer === "gpu") return;
  const owners = shardOwners(plan);
  for (const to of peers) {
    if (to === state.id || (owners.length > 0 && !owners.includes(to))) continue;
    const index = Math.max(0, owners.indexOf(to));
    const range = owners.length === 0 ? null : rangeOf(state, instance, index);
    const frame = { to, kind: "part" as const, toStage: plan.index, microBatch: index, set, range, recovery };
    out.push({ do: "send", frame: sumFrame(state, instance, frame) });
  }
}

function sendShard(state: PeerState, instance: Instance, { out, peers, recovery }: Sending): void {
  const { plan } = instance;
  const index = shardOwners(plan).indexOf(state.id);
  const set = Array.from({ length: state.config.gradient_accumulation_steps }, (_, m) => m);
  const range = rangeOf(state, instance, index);
  for (const to of peers) {
    if (to === state.id) continue;
    const frame = {
      to,
      kind: "shard" as const,
      toStage: plan.index,
      microBatch: index,
      set,
      range,
      recovery,
    };
    out.push({ do: "send", frame: sumFrame(state, instance, frame) });
  }
}

export function sumFrame(
  state: PeerState,
  instance: Instance,
  part: Pick<FrameOut, "to" | "kind" | "toStage" | "microBatch" | "set" | "range" | "recovery">,
): FrameOut {
  const base = { cut: state.view!.cut, gen: state.gen, pass: "train" as const, step: instance.work!.step };
  return { ...base, fromStage: instance.plan.index, ...part };
}

function rangeOf(state: PeerState, { plan }: Instance, index: number): [start: number, end: number] {
  return shardRange(stageLayout(state.spec, plan).size, shardOwners(plan).length, index);
}

/** The parts of all other computing replicas under the present view; null while one is missing. */
function partsOf(state: PeerState, { plan, work }: Instance): StepWork["parts"] | null {
  const found = partners(plan, state.id).map((peer) =>
    work!.parts.find((part) => part.from === peer && part.gen === state.gen)
  );
  return found.every((part) => part !== undefined) ? found : null;
}

function checkCover(state: PeerState, instance: Instance, parts: StepWork["parts"]): void {
  const sets = [instance.microBatches, ...parts.map((part) => part.set)];
  const cover = exactCover(sets, state.config.gradient_accumulation_steps);
  assert(cover.ok, `stage ${instance.plan.index} cannot be summed: ${cover.ok ? "" : cover.reason}`);
}

function sumParts(state: PeerState, instance: Instance): void {
  const work = instance.work!;
  const parts = partsOf(state, instance);
  if (parts === null) return;
  checkCover(state, instance, parts);
  work.total = "summing";
  const stage = instance.plan.index;
  push(state, { job: "sum", step: work.step, stage, parts: parts.map(placeOf), shards: null });
}

function placeOf({ from, gen }: PartFrom): PartFrom {
  return { from, gen };
}

/** An owner adds up its shard as soon as every part of it is there. */
function reduceShard(state: PeerState, instance: Instance): void {
  const work = instance.work!;
  const index = shardOwners(instance.plan).indexOf(state.id);
  const parts = index < 0 || work.reducingGen === state.gen ? null : partsOf(state, instance);
  if (parts === null) return;
  checkCover(state, instance, parts);
  work.reducingGen = state.gen;
  const range = rangeOf(state, instance, index);
  const base = { gen: state.gen, step: work.step, stage: instance.plan.index };
  push(state, { job: "reduce", ...base, range, parts: parts.map(placeOf) });
}

/** The own shard is summed: every other holder gets it. */
export function onReduced(
  state: PeerState,
  instance: Instance,
  { job, out }: { job: Job & { job: "reduce" }; out: PeerEffect[] },
): void {
  const { work } = instance;
  // Under a later view the shards are others, and a fetched total may stand in the same place.
  if (work?.step !== job.step || job.gen !== state.gen || work.total !== "none") return;
  const recovery = work.shardGen >= 0;
  work.shardGen = state.gen;
  const peers = instance.plan.replicas.map((replica) => replica.peer);
  sendShard(state, instance, { out, peers, recovery });
}

function sumShards(state: PeerState, instance: Instance): void {
  const work = instance.work!;
  const owners = shardOwners(instance.plan);
  const shards = owners.map((from, index) => ({
    from,
    gen: state.gen,
    range: rangeOf(state, instance, index),
  }));
  const here = owners.every((owner, index) =>
    owner === state.id
      ? work.shardGen === state.gen
      : work.shards.some((it) => it.from === owner && it.gen === state.gen && it.index === index)
  );
  if (!here) return;
  work.total = "summing";
  const others = shards.filter((shard) => shard.from !== state.id);
  push(state, { job: "sum", step: work.step, stage: instance.plan.index, parts: [], shards: others });
}
