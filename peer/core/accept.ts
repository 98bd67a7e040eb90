// Fencing: which frames may change anything. Pure predicates over the peer's state and a frame's header; a frame that
// passes here is one that the view of this very generation promises, from the peer it names, at most once.
import { stageLayout } from "../model/layout.ts";
import type { FrameHeader } from "../wire/frame.ts";
import type { StagePlan } from "../wire/run.ts";
import { ownerOf, roundOrder, tiedPartner, tiedReceivers } from "../wire/view.ts";
import type { Arrived, PeerState } from "./peer_state.ts";

/** Frames of the open round and of the two that may follow before our own COMMIT and OPEN arrive. */
const ROUNDS_AHEAD_MAX = 3;
/** Per stage instance: activations, gradients, parts and tied sums of that many rounds; beyond it a sender misbehaves. */
const ARRIVED_PER_INSTANCE_MAX = 4096;

/** The other replicas of a stage that compute a share of each step. */
export function partners(stage: StagePlan, self: string): string[] {
  return stage.replicas.filter((r) => r.peer !== self && r.microBatches.length > 0).map((r) => r.peer);
}

/** What to remember about a frame, or null if it must be dropped. */
export function acceptFrame(state: PeerState, from: string, header: FrameHeader): Arrived | null {
  // Before the view is loaded no round can be open, and there is nowhere to keep a payload.
  if (state.view === null || header.gen !== state.gen || !state.loaded) return null;
  const order = roundOrder(header.pass, header.step);
  const base = state.round?.order ?? roundOrder("eval", state.committed);
  if (order < base || order > base + ROUNDS_AHEAD_MAX) return null;
  const stage = state.instances.find((it) => it.plan.index === header.toStage);
  if (stage === undefined || !isExpected(state, from, header) || !hasShape(state, header)) return null;
  const { kind, toStage, microBatch } = header;
  const same = (it: Arrived) =>
    it.order === order && it.kind === kind && it.stage === toStage && it.microBatch === microBatch &&
    it.from === from;
  if (state.arrived.length >= ARRIVED_PER_INSTANCE_MAX || state.arrived.some(same)) return null;
  return { order, kind, stage: toStage, microBatch, from };
}

function isExpected(state: PeerState, from: string, header: FrameHeader): boolean {
  const { view, config } = state;
  const source = view?.stages[header.fromStage];
  const target = view?.stages[header.toStage];
  if (view === null || source === undefined || target === undefined) return false;
  const count = config.gradient_accumulation_steps;
  switch (header.kind) {
    case "activation":
    case "gradient": {
      const adjacent = header.fromStage === header.toStage + (header.kind === "activation" ? -1 : 1);
      const limit = header.pass === "eval" ? config.eval_iters : count;
      if (!adjacent || header.microBatch >= limit) return false;
      if (header.kind === "gradient" && header.pass === "eval") return false;
      const owned = ownerOf(target, header.microBatch, count) === state.id;
      return owned && ownerOf(source, header.microBatch, count) === from;
    }
    case "part": {
      const share = target.replicas.find((replica) => replica.peer === from)?.microBatches ?? [];
      return source === target && isSum(header) && share.length > 0 && sameSet(share, header.set);
    }
    case "tied": {
      const partner = tiedPartner(view, config, header.toStage);
      // The sum of every micro-batch: half a step's gradient must never pass for the whole.
      const whole = header.set.length === count && header.set.every((m, i) => m === i);
      return isSum(header) && whole && partner?.index === header.fromStage &&
        tiedReceivers(source, target, from).includes(state.id);
    }
  }
}

/** Sums exist in training only, and have one number, so that a second one is known as a duplicate. */
function isSum(header: FrameHeader): boolean {
  return header.pass === "train" && header.microBatch === 0;
}

/** Codec and shape are fixed by the view; any other would not fit the engine's buffers. */
function hasShape(state: PeerState, header: FrameHeader): boolean {
  const { view, config, spec } = state;
  const target = view?.stages[header.toStage];
  if (view === null || target === undefined) return false;
  const { rows, cols, codec } = header;
  switch (header.kind) {
    case "activation":
    case "gradient": {
      const wanted = header.kind === "activation" ? view.codecForward : view.codecBackward;
      return codec === wanted && rows === config.batch_size * spec.block_size && cols === spec.n_embd;
    }
    case "part":
      return codec === "int32" && rows === 1 && cols === stageLayout(spec, target).size;
    case "tied":
      return codec === "int32" && rows === 1 && cols === spec.vocab_size * spec.n_embd;
  }
}

function sameSet(a: number[], b: number[]): boolean {
  return a.length === b.length && a.every((value, i) => value === b[i]);
}
