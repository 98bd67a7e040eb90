// What the pages show of a run: a pure function of the core's state. Secrets are not in it. Metrics are in metrics.ts.
import { learningRate } from "../../peer/model/schedule.ts";
import { baseParamCount, paramCount } from "../../peer/model/layout.ts";
import { engineSaid } from "../../peer/model/stage_memory.ts";
import type { GroupStatus } from "../../peer/wire/control.ts";
import type { StagePlan } from "../../peer/wire/run.ts";
import type { LinkStatus, PeerStatus, RunStatus } from "../../peer/wire/status.ts";
import { layersText, stagesOf } from "../../peer/wire/view.ts";
import { tokensPerSecond } from "./commit.ts";
import type { LinkRecord, PeerRecord, RunCoreState } from "./run_state.ts";
import { isMeasured } from "./probes.ts";
import { planStatus } from "./replan.ts";
import { safetyOf, stepsAtRisk, stepsAtRiskWith } from "./safety.ts";
import { recoveryStatus } from "./stalls.ts";
import { lastStep } from "./trace.ts";

export { stepsAtRisk } from "./safety.ts";

/** Points of the loss curve that a peer gets with each status; its page keeps older ones. */
const RECENT_LOSSES = 40;

export type CoreStatus = Omit<RunStatus, "runName" | "operator" | "checkpoints" | "joinLink">;

export function statusOf(s: RunCoreState, now: number): CoreStatus {
  const last = lastStep(s);
  const plan = planStatus(s);
  return {
    ...{ state: s.status, reason: s.reason, gen: s.gen, step: s.committed, maxIters: s.target },
    ...{ trainLoss: s.trainLoss, valLoss: s.valLoss, gradNorm: s.gradNorm, tokensTotal: s.tokensTotal },
    lr: learningRate(s.config, Math.min(s.committed, s.config.max_iters - 1)),
    tokensPerS: s.status === "training" ? tokensPerSecond({ s }) : 0,
    params: paramCount(s.spec),
    ...(s.spec.lora === undefined ? {} : { baseParams: baseParamCount(s.spec) }),
    losses: s.losses,
    stages: s.view?.stages ?? [],
    safety: safetyOf(s),
    peers: Object.values(s.peers).map((peer) => peerStatus(s, peer, now)),
    events: s.events,
    sample: s.sample,
    stepsAtRisk: stepsAtRisk(s),
    stepsRedone: s.stepsRedone,
    ...(s.config.dtype === "f16" ? { stepsSkipped: s.stepsSkipped } : {}),
    recovery: recoveryStatus(s),
    ...(plan === null ? {} : { plan }),
    ...(last === null ? {} : { lastStep: last }),
    config: s.config,
    ...(s.changes.length > 0 ? { changes: s.changes } : {}),
    ...(s.status === "training" && s.phase === "round"
      ? { pace: { sinceCommitMs: Math.max(0, now - s.lastCommitAt), stepMs: s.stepMs } }
      : {}),
  };
}

function peerStatus(s: RunCoreState, peer: PeerRecord, now: number): PeerStatus {
  const held = s.view === null ? [] : stagesOf(s.view, peer.id);
  const { id, runtime, adapter, engine, blockMs, stepMs, bytesUp, bytesDown, hidden, retainedBytes } = peer;
  return {
    ...{ id, runtime, adapter, blockMs, stepMs, bytesUp, bytesDown, hidden, retainedBytes },
    engine: engineSaid(engine, s.config),
    ...(peer.name === id ? {} : { name: peer.name }),
    ...(peer.kernels === undefined ? {} : { kernels: peer.kernels }),
    ...(peer.pin === undefined ? {} : { pin: peer.pin }),
    ...(peer.ops === undefined ? {} : { ops: peer.ops }),
    ...(peer.links === undefined ? {} : { linkFigures: linkFigures(peer.links) }),
    ...(peer.blockMs === 0 ? {} : { linksPresumed: linksPresumed(s, peer) }),
    role: roleOf(peer, held),
    stage: (held.find((stage) => computes(stage, peer.id)) ?? held[0])?.index ?? null,
    links: { direct: peer.direct, relayed: peer.relayed },
    silentMs: Math.max(0, Math.round(now - peer.heardAt)),
    suspect: s.suspects[id] ?? 0,
    stepsAtRisk: stepsAtRiskWith(s, id),
  };
}

function linkFigures(links: Record<string, LinkRecord>): LinkStatus[] {
  return Object.entries(links).flatMap(([peer, { open, ...figures }]) => open ? [{ peer, ...figures }] : []);
}

function linksPresumed(s: RunCoreState, peer: PeerRecord): number {
  return Object.values(s.peers).filter((other) =>
    other.id !== peer.id && other.blockMs > 0 && !isMeasured(s, peer.id, other.id)
  ).length;
}

function computes(stage: StagePlan, peer: string): boolean {
  return stage.replicas.some((replica) => replica.peer === peer && replica.microBatches.length > 0);
}

function roleOf(peer: PeerRecord, held: StagePlan[]): string {
  if (peer.paused) return "paused";
  if (peer.blockMs === 0) return "joining";
  if (held.length === 0) return "spare";
  const parts = held.map((stage) => {
    const number = stage.index + 1;
    if (computes(stage, peer.id)) return `stage ${number}, ${layersText(stage)}`;
    const learns = stage.replicas.some((it) => it.peer === peer.id && it.learning === true);
    return learns ? `fetching stage ${number}` : `shadow of stage ${number}`;
  });
  return peer.leaving ? `leaving; ${parts.join("; ")}` : parts.join("; ");
}

export function groupStatus(s: RunCoreState): GroupStatus {
  const losses = s.losses.slice(-RECENT_LOSSES);
  const { status: state, reason, committed: step, stepMs: groupStepMs, sample } = s;
  return { type: "status", state, reason, step, groupStepMs, losses, sample };
}
