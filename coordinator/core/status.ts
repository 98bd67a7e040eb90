// What the pages and the metrics show of a run: a pure function of the core's state. Secrets are not in it.
import { learningRate } from "../../peer/model/schedule.ts";
import { paramCount } from "../../peer/model/layout.ts";
import type { GroupStatus } from "../../peer/wire/control.ts";
import type { StagePlan } from "../../peer/wire/run.ts";
import type { PeerStatus, RunStatus } from "../../peer/wire/status.ts";
import { layersText, stagesOf } from "../../peer/wire/view.ts";
import { tokensPerSecond } from "./commit.ts";
import type { PeerRecord, RunCoreState } from "./run_state.ts";

/** Points of the loss curve that a peer gets with each status; its page keeps older ones. */
const RECENT_LOSSES = 40;

export type CoreStatus = Omit<RunStatus, "runName" | "operator" | "checkpoints" | "joinLink">;

export function statusOf(s: RunCoreState, now: number): CoreStatus {
  return {
    ...{ state: s.status, reason: s.reason, gen: s.gen, step: s.committed, maxIters: s.target },
    ...{ trainLoss: s.trainLoss, valLoss: s.valLoss, gradNorm: s.gradNorm, tokensTotal: s.tokensTotal },
    lr: learningRate(s.config, Math.min(s.committed, s.config.max_iters - 1)),
    tokensPerS: s.status === "training" ? tokensPerSecond({ s }) : 0,
    params: paramCount(s.spec),
    losses: s.losses,
    stages: s.view?.stages ?? [],
    peers: Object.values(s.peers).map((peer) => peerStatus(s, peer, now)),
    events: s.events,
    sample: s.sample,
    stepsAtRisk: stepsAtRisk(s),
    stepsRedone: s.stepsRedone,
    config: s.config,
  };
}

/** Steps that would be done again if the one holder of some stage vanished now; 0 if every stage has two. */
export function stepsAtRisk(s: RunCoreState): number {
  const single = s.view?.stages.some((stage) => stage.replicas.length < 2) ?? false;
  const base = Math.max(s.snapshots.at(-1)?.step ?? 0, s.source?.step ?? 0);
  return single ? s.committed - base : 0;
}

function peerStatus(s: RunCoreState, peer: PeerRecord, now: number): PeerStatus {
  const held = s.view === null ? [] : stagesOf(s.view, peer.id);
  const { id, runtime, adapter, engine, blockMs, stepMs, bytesUp, bytesDown, hidden } = peer;
  return {
    ...{ id, runtime, adapter, engine, blockMs, stepMs, bytesUp, bytesDown, hidden },
    role: roleOf(peer, held),
    stage: (held.find((stage) => computes(stage, peer.id)) ?? held[0])?.index ?? null,
    links: { direct: peer.direct, relayed: peer.relayed },
    silentMs: Math.max(0, Math.round(now - peer.heardAt)),
  };
}

function computes(stage: StagePlan, peer: string): boolean {
  return stage.replicas.some((replica) => replica.peer === peer && replica.microBatches.length > 0);
}

function roleOf(peer: PeerRecord, held: StagePlan[]): string {
  if (peer.paused) return "paused";
  if (peer.blockMs === 0) return "joining";
  if (held.length === 0) return "spare";
  const parts = held.map((stage) => {
    const name = `stage ${stage.index + 1}, ${layersText(stage)}`;
    return computes(stage, peer.id) ? name : `shadow of stage ${stage.index + 1}`;
  });
  return peer.leaving ? `leaving; ${parts.join("; ")}` : parts.join("; ");
}

export function groupStatus(s: RunCoreState): GroupStatus {
  const losses = s.losses.slice(-RECENT_LOSSES);
  const { status: state, reason, committed: step, stepMs: groupStepMs, sample } = s;
  return { type: "status", state, reason, step, groupStepMs, losses, sample };
}

const GAUGES: [name: string, help: string, value: (s: RunCoreState, now: number) => number][] = [
  ["shoal_step", "Committed optimizer steps.", (s) => s.committed],
  ["shoal_generation", "Number of the present view.", (s) => s.gen],
  ["shoal_peers", "Peers connected to the coordinator.", (s) => Object.keys(s.peers).length],
  ["shoal_train_loss_nats", "Mean training loss of the newest step.", (s) => s.trainLoss ?? NaN],
  ["shoal_validation_loss_nats", "Newest validation loss.", (s) => s.valLoss ?? NaN],
  ["shoal_gradient_norm", "Global gradient norm of the newest step.", (s) => s.gradNorm ?? NaN],
  ["shoal_tokens_per_second", "Training tokens per second, moving average.", (s) => tokensPerSecond({ s })],
  ["shoal_tokens_total", "Training tokens of all committed steps.", (s) => s.tokensTotal],
  ["shoal_step_seconds", "Time of a step, moving average.", (s) => s.stepMs / 1000],
  ["shoal_steps_redone_total", "Steps done again because of departures.", (s) => s.stepsRedone],
  ["shoal_hash_agreements_total", "State hashes of second holders that agreed (I4).", (s) => s.agreements],
  ["shoal_steps_at_risk", "Steps that one departure now would cost.", stepsAtRisk],
];

/** Prometheus text exposition. */
export function metricsText(s: RunCoreState, now: number): string {
  const lines = GAUGES.flatMap(([name, help, value]) => {
    const type = name.endsWith("_total") ? "counter" : "gauge";
    return [`# HELP ${name} ${help}`, `# TYPE ${name} ${type}`, `${name} ${value(s, now)}`];
  });
  return lines.join("\n") + "\n";
}
