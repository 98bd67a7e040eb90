// Snapshots in peers' memory (REFT, arXiv 2310.12670): now and then every stage's state of one step is cut into shards that peers
// of other stages keep, so that a stage whose holders are all lost can be restored. The bytes never come here. Pure; mutates the
// turn's state. What must stay true: a snapshot counts only once every stage's shards and state hash are confirmed, and until
// then the one before it stays; a snapshot that somebody's departure breaks is given up, not waited for.
import { rotation } from "../../peer/schedule/rotation.ts";
import { stageLayout } from "../../peer/model/layout.ts";
import { stateFileBytesPerParam } from "../../peer/model/stage_memory.ts";
import type { PeerMessage } from "../../peer/wire/control.ts";
import { type KeepOrder, SNAPSHOT_MEMORY_SHARE } from "../../peer/wire/snapshots.ts";
import type { StagePlan } from "../../peer/wire/run.ts";
import { shareOf } from "../../peer/wire/view.ts";
import { observeDeparture, observePresence, snapshotCadence } from "./cadence.ts";
import { currentHolders, liveHolders } from "./holders.ts";
import { type Placement, placeSnapshots } from "./placement.ts";
import type { PeerRecord, RunCoreState } from "./run_state.ts";
import { isRestorable, type KeptStage, keptStep, noSnapshots, type PeerSnapshot } from "./snapshot_state.ts";
import { note, type Turn } from "./turn.ts";

/** A snapshot that has not ended by then is given up; a slow uplink takes minutes for a large stage. */
export const SNAPSHOT_MS = 600_000;
/** After one was given up, or cannot be restored any more, the next is begun so many steps later at least. */
const AGAIN_STEPS = 5;
/** Bytes of a state file's header with names and shapes: a bound, for placing shards. */
const STATE_HEADER_BYTES = 64 * 1024;

type Of<T extends PeerMessage["type"]> = Extract<PeerMessage, { type: T }>;

/** Steps between snapshots: as configured, or chosen by what departures were seen. */
export function snapshotInterval(s: RunCoreState): number {
  if (s.config.snapshot_interval > 0) return s.config.snapshot_interval;
  const holders = (s.view?.stages ?? []).map((stage) => liveHolders(s, stage).length);
  const stepS = s.stepMs > 0 ? s.stepMs / 1000 : null;
  return snapshotCadence({ seen: s.kept.seen, holders, repairS: null, snapshotCostS: null, stepS }).steps;
}

/** Begins a snapshot of `committed` if one is due; called between two steps, before the next is opened. */
export function snapshotIfDue(turn: Turn): void {
  const { s } = turn;
  if (!s.config.parity || s.view === null || s.kept.pending !== null || !isDue(s)) return;
  const placements = place(s);
  s.kept.lastStep = s.committed;
  // A stage that nobody else can keep is lost with its holders whatever is done for the others.
  if (placements.every((it) => it.protection === "none")) return;
  s.kept.placed = placements;
  begin(turn, placements);
}

function isDue(s: RunCoreState): boolean {
  const { committed, config, kept } = s;
  if (committed <= kept.lastStep) return false;
  if (config.snapshot_interval > 0) return committed % config.snapshot_interval === 0;
  const since = committed - kept.lastStep;
  return since >= (kept.current === null && kept.turns > 0 ? AGAIN_STEPS : snapshotInterval(s));
}

/** Whether peers keep a snapshot that is new enough for the coordinator to need none of its own. */
export function peersKeepEnough(s: RunCoreState): boolean {
  if (!s.config.parity || s.view === null) return false;
  const newest = Math.max(keptStep(s.kept), s.cutBase);
  if (s.committed - newest > 2 * snapshotInterval(s)) return false;
  return place(s).every((it) => it.protection !== "none");
}

function place(s: RunCoreState): Placement[] {
  const peers = Object.values(s.peers).filter((it) => it.blockMs > 0 && !it.leaving);
  const slowest = Math.max(1, ...peers.map((peer) => peer.stepMs));
  const stages = s.view!.stages.map((stage) => ({
    ...{ firstLayer: stage.firstLayer, endLayer: stage.endLayer },
    holders: stage.replicas.map((replica) => replica.peer),
    stateBytes: stageLayout(s.spec, stage).size * stateFileBytesPerParam(s.config) + STATE_HEADER_BYTES,
  }));
  const offers = peers.map((peer) => ({
    peer: peer.id,
    memoryBytes: Math.floor(peer.memoryBytes * SNAPSHOT_MEMORY_SHARE),
    load: computes(s, peer) ? peer.stepMs / slowest : 0,
  }));
  return placeSnapshots({ stages, peers: offers, before: s.kept.placed });
}

function computes(s: RunCoreState, { id }: PeerRecord): boolean {
  return s.view!.stages.some((stage) => shareOf(stage, id).length > 0);
}

function begin(turn: Turn, placements: Placement[]): void {
  const { s, now } = turn;
  const exports = new Map<string, number>();
  const stages: KeptStage[] = [];
  for (const [i, placement] of placements.entries()) {
    const stage = s.view!.stages[i]!;
    const kept = keptStage(s, stage, { placement, exports });
    if (kept === null) return;
    stages.push(kept);
  }
  s.kept.turns++;
  const { committed: step, view } = s;
  s.kept.pending = { step, cut: view!.cut, at: now, bytes: 0, spared: 0, stages };
  for (const it of stages) orderStage(turn, it, step);
}

function keptStage(
  s: RunCoreState,
  stage: StagePlan,
  { placement, exports }: { placement: Placement; exports: Map<string, number> },
): KeptStage | null {
  // Who computes nothing has time; of several stages a peer sends as few as possible.
  const cost = (peer: string) => (exports.get(peer) ?? 0) * 2 + Math.min(1, shareOf(stage, peer).length);
  const [from] = currentHolders(s, stage).map((it) => it.peer).toSorted((a, b) => cost(a) - cost(b));
  if (from === undefined) return null;
  exports.set(from, (exports.get(from) ?? 0) + 1);
  const { protection, k } = placement;
  const slots = protection === "parity" ? rotation(k, s.kept.turns) : [0];
  const keepers = placement.keepers.map((peer, slot) => ({ peer, index: slots[slot]!, kept: false }));
  const { index, firstLayer, endLayer, embed, head } = stage;
  const spec = { index, firstLayer, endLayer, embed, head };
  return { stage: spec, protection, k, from, keepers, owners: [], hash: null, file: null };
}

function orderStage(turn: Turn, { stage, k, from, keepers }: KeptStage, step: number): void {
  const { s, out } = turn;
  const { firstLayer, endLayer } = stage;
  for (const { peer, index } of keepers) {
    sendOrder(turn, peer, { order: "expect", firstLayer, endLayer, step, k, index, from });
  }
  for (const { peer } of currentHolders(s, s.view!.stages[stage.index]!)) {
    const to = peer === from ? keepers.map((it) => ({ peer: it.peer, index: it.index })) : [];
    const base = { type: "snapshot-out" as const, cut: s.view!.cut, step, stage: stage.index };
    out.push({ do: "send", peer, message: { ...base, k: Math.max(1, k), keepers: to } });
  }
}

export function sendOrder(turn: Turn, peer: string, order: KeepOrder): void {
  turn.out.push({ do: "send", peer, message: { type: "keep", order } });
}

/** A keeper has a shard whole and sound. */
export function recordKept(turn: Turn, peer: string, message: Of<"kept">): void {
  const { pending } = turn.s.kept;
  const { step, index, totalBytes, hash, bytes, spared } = message;
  const stage = stageAt(pending, message);
  const keeper = stage?.keepers.find((it) => it.peer === peer && it.index === index);
  if (pending?.step !== step || stage === undefined || keeper === undefined || keeper.kept) return;
  stage.file ??= { totalBytes, hash };
  if (stage.file.hash !== hash || stage.file.totalBytes !== totalBytes || message.k !== stage.k) {
    return giveUp(turn, `keepers of stage ${stage.stage.index + 1} have shards of different files`);
  }
  keeper.kept = true;
  pending.bytes += bytes;
  pending.spared += spared;
  flipIfComplete(turn);
}

/** A holder has exported the state, and perhaps keeps it beside the one it trains. */
export function recordExported(turn: Turn, peer: string, message: Of<"exported">): void {
  const { s } = turn;
  const { cut, step, stage, hash, own } = message;
  for (const snapshot of [s.kept.pending, s.kept.current]) {
    const kept = snapshot?.cut === cut && snapshot.step === step ? snapshot.stages[stage] : undefined;
    if (kept === undefined || !isHolderOf(s, kept, peer)) continue;
    // The hash that was told after the step is the run's; a copy with another one is no copy.
    const known = s.stateHashes[step - 1]?.[stage] ?? kept.hash ?? hash;
    if (known !== hash) {
      if (peer === kept.from && snapshot === s.kept.pending) giveUp(turn, `${peer} exported another state`);
      continue;
    }
    kept.hash = hash;
    if (own && !kept.owners.includes(peer)) kept.owners.push(peer);
    if (own && snapshot === s.kept.current) sendOwn(turn, peer, { kept, step });
  }
  flipIfComplete(turn);
}

function isHolderOf(s: RunCoreState, kept: KeptStage, peer: string): boolean {
  const stage = s.view?.stages[kept.stage.index];
  return stage !== undefined && liveHolders(s, stage).some((it) => it.peer === peer);
}

function sendOwn(turn: Turn, peer: string, { kept, step }: { kept: KeptStage; step: number }): void {
  const { firstLayer, endLayer } = kept.stage;
  sendOrder(turn, peer, { order: "own", firstLayer, endLayer, step });
}

/** A peer that has joined anew still has states on its disk: those of the newest snapshot are as good as a holder's copy. */
export function recordOffer(turn: Turn, peer: string, message: Of<"offer">): void {
  const { current } = turn.s.kept;
  for (const offered of message.states) {
    const kept = stageAt(current, offered);
    if (kept === undefined || current?.step !== offered.step || kept.hash !== offered.hash) continue;
    if (kept.owners.includes(peer)) continue;
    kept.owners.push(peer);
    note(turn, "snapshot", `${peer} still has stage ${kept.stage.index + 1} of step ${offered.step}`);
  }
}

/** A shard is not where it should be, or will never be. */
export function recordUnkept(turn: Turn, peer: string, message: Of<"unkept">): void {
  const { kept } = turn.s;
  const inPending = kept.pending?.step === message.step ? stageAt(kept.pending, message) : undefined;
  if (inPending?.keepers.some((it) => it.peer === peer) || inPending?.from === peer) {
    return giveUp(turn, `${peer}: ${message.reason}`);
  }
  const stage = kept.current?.step === message.step ? stageAt(kept.current, message) : undefined;
  const keeper = stage?.keepers.find((it) => it.peer === peer);
  if (keeper === undefined) return;
  keeper.kept = false;
  note(turn, "snapshot", `a shard of step ${message.step} is lost: ${peer}: ${message.reason}`);
  dropUnrestorable(turn);
}

function stageAt(
  snapshot: PeerSnapshot | null,
  { firstLayer, endLayer }: { firstLayer: number; endLayer: number },
): KeptStage | undefined {
  return snapshot?.stages.find(({ stage }) => stage.firstLayer === firstLayer && stage.endLayer === endLayer);
}

/** Every stage has what it was to have: this is the snapshot to go back to from here on. */
function flipIfComplete(turn: Turn): void {
  const { s, now } = turn;
  const { pending } = s.kept;
  if (pending === null || !pending.stages.every(isComplete)) return;
  const tookMs = Math.round(now - pending.at);
  Object.assign(s.kept, { current: pending, pending: null, tookMs });
  for (const kept of pending.stages) {
    const { firstLayer, endLayer } = kept.stage;
    for (const { peer } of kept.keepers) {
      sendOrder(turn, peer, { order: "flip", firstLayer, endLayer, step: pending.step });
    }
    for (const peer of kept.owners) sendOwn(turn, peer, { kept, step: pending.step });
  }
  const { step, bytes, spared } = pending;
  note(turn, "snapshot", `peers keep step ${step}`, { step, bytes, spared, tookMs });
  turn.out.push({ do: "report", line: { event: "snapshot", step, bytes, spared, took_ms: tookMs } });
}

function isComplete({ hash, keepers, k, owners }: KeptStage): boolean {
  return hash !== null && keepers.every((it) => it.kept) && (k > 0 || owners.length > 0);
}

/** The one before stays. */
export function giveUp(turn: Turn, reason: string): void {
  const { pending } = turn.s.kept;
  if (pending === null) return;
  turn.s.kept.pending = null;
  note(turn, "snapshot", `the snapshot of step ${pending.step} is given up: ${reason}`);
}

/** Somebody is gone, and what it kept with it. */
export function keptWithout(turn: Turn, gone: string): void {
  const { s } = turn;
  const { kept } = s;
  kept.seen = observeDeparture(kept.seen, Object.keys(s.peers).length + 1, turn.now);
  const broken = kept.pending?.stages.some((it) =>
    it.from === gone || it.keepers.some(({ peer }) => peer === gone)
  );
  for (const stage of [...kept.current?.stages ?? [], ...kept.pending?.stages ?? []]) {
    stage.keepers = stage.keepers.filter(({ peer }) => peer !== gone);
    stage.owners = stage.owners.filter((peer) => peer !== gone);
  }
  if (broken === true) giveUp(turn, `${gone} is gone`);
  dropUnrestorable(turn);
}

function dropUnrestorable(turn: Turn): void {
  const { kept } = turn.s;
  if (kept.current === null || kept.current.stages.every(isRestorable)) return;
  note(turn, "snapshot", `the snapshot of step ${kept.current.step} cannot be restored any more`);
  kept.current = null;
}

/** A new cut begins from a complete source: what peers keep of the one before is needed no more. */
export function forgetKept(turn: Turn): void {
  const { s } = turn;
  const { turns, seen, tookMs } = s.kept;
  s.kept = { ...noSnapshots(), turns, seen, tookMs, lastStep: s.committed };
  for (const peer of Object.keys(s.peers)) sendOrder(turn, peer, { order: "clear" });
}

export function tickKept(turn: Turn): void {
  const { s, now } = turn;
  s.kept.seen = observePresence(s.kept.seen, Object.keys(s.peers).length, now);
  if (s.kept.pending !== null && now - s.kept.pending.at > SNAPSHOT_MS) {
    giveUp(turn, `it was not complete after ${SNAPSHOT_MS / 1000} s`);
  }
}
