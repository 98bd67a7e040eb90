// Fencing: which frames may change anything. Pure predicates over the peer's state and a frame's header; a frame that
// passes here is one that the view promises, from a holder it names, at most once. Sums and evaluations belong to one
// generation; a boundary tensor of a training step belongs to its cut, because its content does not depend on who sent it.
import { stageLayout } from "../model/layout.ts";
import { type FrameHeader, isSumCodec } from "../wire/frame.ts";
import type { StagePlan } from "../wire/run.ts";
import {
  codecsAfter,
  holds,
  isDelayed,
  ownerOf,
  roundOrder,
  shardOwners,
  shardRange,
  tiedPartner,
  tiedReceivers,
} from "../wire/view.ts";
import type { Arrived, Instance, PeerState } from "./peer_state.ts";

/** Frames of the open round and of the two that may follow before our own COMMIT and OPEN arrive. */
const ROUNDS_AHEAD_MAX = 3;
/** With the schedule 2bw others may be a training step further. */
const ROUNDS_AHEAD_DELAYED_MAX = 5;
/** Activations, gradients, parts and tied sums of that many rounds; beyond it a sender misbehaves. */
const ARRIVED_MAX = 4096;
/** Sums of views that have not arrived here yet, per sender: each may be as large as the stage. */
const EARLY_SUMS_MAX = 4;

/** The other replicas of a stage that compute a share of each step. */
export function partners(stage: StagePlan, self: string): string[] {
  return stage.replicas.filter((r) => r.peer !== self && r.microBatches.length > 0).map((r) => r.peer);
}

/** Whether a frame counts only under the generation that it was sent in. */
export function isOfOneView(frame: Pick<Arrived, "kind" | "pass">): boolean {
  return frame.kind === "part" || frame.kind === "tied" || frame.kind === "shard" || frame.pass === "eval";
}

/** What to remember about a frame, or null if it must be dropped. */
export function acceptFrame(state: PeerState, from: string, header: FrameHeader): Arrived | null {
  const { view } = state;
  // Before the view is loaded no round can be open, and there is nowhere to keep a payload.
  if (view === null || !state.loaded || header.cut !== view.cut) return null;
  const instance = state.instances.find((it) => it.plan.index === header.toStage);
  if (instance === undefined || !holds(view.stages[header.fromStage], from)) return null;
  const order = roundOrder(header.pass, header.step);
  const most = isDelayed(view) ? ROUNDS_AHEAD_DELAYED_MAX : ROUNDS_AHEAD_MAX;
  if (!inWindow(instance, { order, most }) || !hasShape(state, header)) return null;
  const { kind, toStage: stage, microBatch, gen, pass, set } = header;
  const { fromStage, cols } = header;
  const frame: Arrived = { order, kind, fromStage, stage, microBatch, from, gen, pass, set, cols };
  if (kind === "total") return isAwaited(instance, header) ? frame : null;
  if (isOfOneView(frame) && gen > view.gen) return mayWait(state, frame) ? frame : null;
  if (isOfOneView(frame) && gen < view.gen) return null;
  if (!isExpected(state, frame)) return null;
  return state.arrived.length >= ARRIVED_MAX || state.arrived.some((it) => isSame(it, frame)) ? null : frame;
}

/** A duplicate: of a training step's boundary tensor there is one, whoever sends it. */
function isSame(a: Arrived, b: Arrived): boolean {
  const same = a.order === b.order && a.kind === b.kind && a.stage === b.stage &&
    a.microBatch === b.microBatch;
  return same && (!isOfOneView(b) || (a.from === b.from && a.gen === b.gen));
}

function inWindow(instance: Instance, { order, most }: { order: number; most: number }): boolean {
  if (instance.step === null) return false;
  const training = instance.work?.step === instance.step;
  const base = roundOrder(training ? "train" : "eval", instance.step);
  return order >= base && order <= base + most;
}

function isAwaited(instance: Instance, header: FrameHeader): boolean {
  const asked = instance.work?.total === "asked" && instance.work.step === header.step;
  return asked && header.fromStage === header.toStage && header.pass === "train" && header.microBatch === 0;
}

/** A frame of a view that is still on its way to us. It is judged when the view is here, and kept until then. */
function mayWait(state: PeerState, frame: Arrived): boolean {
  if (state.arrived.length >= ARRIVED_MAX || state.arrived.some((it) => isSame(it, frame))) return false;
  if (frame.pass === "eval") return true;
  const early = state.arrived.filter((it) => it.from === frame.from && it.kind === frame.kind);
  return early.length < EARLY_SUMS_MAX;
}

/** Whether the present view promises this frame. */
export function isExpected(state: PeerState, frame: Arrived): boolean {
  const { view, config } = state;
  const { fromStage } = frame;
  const source = view?.stages[fromStage];
  const target = view?.stages[frame.stage];
  if (view === null || source === undefined || target === undefined) return false;
  const count = config.gradient_accumulation_steps;
  switch (frame.kind) {
    case "activation":
    case "gradient": {
      const adjacent = fromStage === frame.stage + (frame.kind === "activation" ? -1 : 1);
      const limit = frame.pass === "eval" ? config.eval_iters : count;
      if (!adjacent || frame.microBatch >= limit) return false;
      if (frame.pass === "train") return true;
      if (frame.kind === "gradient") return false;
      const owned = ownerOf(target, frame.microBatch, count) === state.id;
      return owned && ownerOf(source, frame.microBatch, count) === frame.from;
    }
    case "part": {
      const share = target.replicas.find((replica) => replica.peer === frame.from)?.microBatches ?? [];
      const range = partRange(state, target, state.id);
      return source === target && range !== null && frame.pass === "train" && share.length > 0 &&
        sameSet(share, frame.set) && frame.microBatch === range.index && frame.cols === range.size;
    }
    case "shard": {
      const range = partRange(state, target, frame.from);
      return source === target && range !== null && shardOwners(target).includes(frame.from) &&
        frame.pass === "train" && isWhole(frame.set, count) && frame.microBatch === range.index &&
        frame.cols === range.size;
    }
    case "tied": {
      const partner = tiedPartner(view, config, frame.stage);
      return isSum(frame) && isWhole(frame.set, count) && partner?.index === fromStage &&
        tiedReceivers(source, target, frame.from).includes(state.id);
    }
    case "total":
    case "snapshot":
    case "probe":
    case "text":
      return false;
  }
}

/** The sum of every micro-batch: half a step's gradient must never pass for the whole. */
function isWhole(set: number[], count: number): boolean {
  return set.length === count && set.every((m, i) => m === i);
}

/** Which part of everybody's sum goes to this peer: its shard, all of it, or none if others sum for it. */
function partRange(state: PeerState, stage: StagePlan, peer: string): { index: number; size: number } | null {
  const { size } = stageLayout(state.spec, stage);
  const owners = shardOwners(stage);
  if (owners.length === 0) return { index: 0, size };
  const index = owners.indexOf(peer);
  if (index < 0) return null;
  const [start, end] = shardRange(size, owners.length, index);
  return { index, size: end - start };
}

/** Sums exist in training only, and have one number, so that a second one is known as a duplicate. */
function isSum(frame: Arrived): boolean {
  return frame.pass === "train" && frame.microBatch === 0;
}

/** Codec and shape are fixed by the cut; any other would not fit the engine's buffers. */
function hasShape(state: PeerState, header: FrameHeader): boolean {
  const { view, config, spec } = state;
  const target = view?.stages[header.toStage];
  if (view === null || target === undefined) return false;
  const { rows, cols, codec } = header;
  switch (header.kind) {
    case "activation":
    case "gradient": {
      const wanted = header.kind === "activation"
        ? codecsAfter(view, header.toStage - 1).forward
        : codecsAfter(view, header.toStage).backward;
      return codec === wanted && rows === config.batch_size * spec.block_size && cols === spec.n_embd;
    }
    // How much of the gradient it holds depends on the view that it was sent in.
    case "part":
    case "shard":
      return isSumCodec(codec) && rows === 1 && cols <= stageLayout(spec, target).size;
    case "total": {
      const tied = tiedPartner(view, config, header.toStage) === null ? 0 : spec.vocab_size * spec.n_embd;
      return isSumCodec(codec) && rows === 1 && cols === stageLayout(spec, target).size + tied;
    }
    case "tied":
      return isSumCodec(codec) && rows === 1 && cols === spec.vocab_size * spec.n_embd;
    // None of them is a part of a round.
    case "snapshot":
    case "probe":
    case "text":
      return false;
  }
}

function sameSet(a: number[], b: number[]): boolean {
  return a.length === b.length && a.every((value, i) => value === b[i]);
}
