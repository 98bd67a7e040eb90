// What peers tell of their operations and links, as the planner and the pages use it. Pure; changes peers' records only. What
// must stay true: a figure of another cut or of somebody who is gone is never taken for one of the present.
import { RECOMPUTED } from "../plan/planner_model.ts";
import { headWork } from "../plan/planner_shares.ts";
import type { PeerMessage } from "../../peer/wire/control.ts";
import type { LinkFigures, OpMs, StageTimes } from "../../peer/wire/measures.ts";
import type { StagePlan } from "../../peer/wire/run.ts";
import { shareOf } from "../../peer/wire/view.ts";
import type { LinkRecord, PeerRecord, RunCoreState } from "./run_state.ts";

type Heartbeat = PeerMessage & { type: "heartbeat" };

/** Micro-batches that a stage's averages must be made of: before that they tell of compiling rather than of computing. */
const MICRO_BATCHES_LEAST = 4;

/** Takes over what a heartbeat tells of operations and links. */
export function takeMeasures(s: RunCoreState, peer: PeerRecord, message: Heartbeat): void {
  if (message.ops !== undefined) takeOps(s, peer, message.ops);
  if (message.links !== undefined) takeLinks(s, peer, message.links);
}

function takeOps(s: RunCoreState, peer: PeerRecord, told: StageTimes[]): void {
  const computed = told.filter((it) =>
    it.cut === s.view?.cut && shareOf(s.view.stages[it.stage], peer.id).length > 0
  );
  peer.ops = computed;
  const settled = computed.filter((it) => it.microBatches >= MICRO_BATCHES_LEAST);
  if (settled.length === 0 || settled.length < computed.length) return;
  peer.microBatchMs = settled.reduce((sum, it) => sum + it.forwardMs + it.backwardMs + it.weightGradMs, 0);
  peer.opMs = perLayer(s, settled);
  takeBoundary(s, peer, settled);
}

/** What a boundary's tensors cost a peer, whatever lies between its boundaries. */
function takeBoundary(s: RunCoreState, peer: PeerRecord, ops: StageTimes[]): void {
  const boundaries = ops.reduce((sum, { stage }) => sum + boundariesOf(s.view!.stages[stage]!), 0);
  const sum = (of: (it: StageTimes) => number) => ops.reduce((total, it) => total + of(it), 0);
  if (boundaries === 0) return;
  if (ops.some(({ decodeMs, encodeMs }) => decodeMs !== undefined || encodeMs !== undefined)) {
    peer.codingMs = sum(codingOf) / boundaries;
  }
  if (ops.some(({ sendMs }) => sendMs !== undefined)) peer.sendMs = sum((it) => it.sendMs ?? 0) / boundaries;
}

function boundariesOf({ embed, head }: Pick<StagePlan, "embed" | "head">): number {
  return 2 - Number(embed) - Number(head);
}

function codingOf({ decodeMs = 0, encodeMs = 0 }: StageTimes): number {
  return decodeMs + encodeMs;
}

/**
 * A stage's times over its layers, the head counted by its work; what is computed again is no part of B as the planner has it, and
 * half of what coding takes no part of F and B each.
 */
function perLayer(s: RunCoreState, ops: StageTimes[]): OpMs {
  const sum = { work: 0, forward: 0, backward: 0, weightGrad: 0 };
  for (const times of ops) {
    const { stage, weightGradMs } = times;
    const forwardMs = Math.max(0, times.forwardMs - codingOf(times) / 2);
    const backwardMs = Math.max(0, times.backwardMs - codingOf(times) / 2);
    const plan = s.view!.stages[stage]!;
    const work = workOf(s, plan);
    const again = RECOMPUTED[plan.recompute ?? "none"] * (plan.endLayer - plan.firstLayer) / work;
    sum.work += work;
    sum.forward += forwardMs;
    sum.backward += Math.max(0, backwardMs - again * forwardMs);
    sum.weightGrad += weightGradMs;
  }
  const { work, forward, backward, weightGrad } = sum;
  return { forward: forward / work, backward: backward / work, weightGrad: weightGrad / work };
}

/** Layers of a stage, the head counted by its work. */
export function workOf(s: Pick<RunCoreState, "spec">, { firstLayer, endLayer, head }: StagePlan): number {
  return endLayer - firstLayer + (head ? headWork(s.spec) : 0);
}

function takeLinks(s: RunCoreState, peer: PeerRecord, told: LinkFigures[]): void {
  const links: Record<string, LinkRecord> = {};
  for (const [other, link] of Object.entries(peer.links ?? {})) {
    if (s.peers[other] !== undefined) links[other] = { ...link, open: false };
  }
  peer.links = links;
  for (const link of told) takeLink(s, peer, link);
}

/** One link of a peer that has just been heard. */
export function takeLink(s: RunCoreState, peer: PeerRecord, told: LinkFigures): void {
  const { peer: other, rttMs, upBytesPerS, path } = told;
  const there = s.peers[other];
  if (there === undefined || other === peer.id) return;
  const links = peer.links ??= {};
  const before = links[other];
  const up = upBytesPerS > 0 ? upBytesPerS : before?.upBytesPerS ?? 0;
  const mirror = there.links?.[peer.id];
  if (mirror !== undefined) mirror.downBytesPerS = up;
  const down = mirror?.upBytesPerS ?? before?.downBytesPerS ?? 0;
  links[other] = { rttMs, upBytesPerS: up, downBytesPerS: down, path, open: true, at: peer.heardAt };
}
