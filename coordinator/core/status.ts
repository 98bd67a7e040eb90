// What the pages and the metrics show of a run: a pure function of the core's state. Secrets are not in it.
import { learningRate } from "../../peer/model/schedule.ts";
import { paramCount } from "../../peer/model/layout.ts";
import type { GroupStatus } from "../../peer/wire/control.ts";
import type { StagePlan } from "../../peer/wire/run.ts";
import type { PeerStatus, RunStatus } from "../../peer/wire/status.ts";
import { layersText, stagesOf } from "../../peer/wire/view.ts";
import { tokensPerSecond } from "./commit.ts";
import type { PeerRecord, RunCoreState } from "./run_state.ts";
import { safetyOf, snapshotStep, stepsAtRisk, stepsAtRiskWith } from "./safety.ts";
import { recoveryBytes, recoveryStatus, stallSummary } from "./stalls.ts";

export { stepsAtRisk } from "./safety.ts";

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
    safety: safetyOf(s),
    peers: Object.values(s.peers).map((peer) => peerStatus(s, peer, now)),
    events: s.events,
    sample: s.sample,
    stepsAtRisk: stepsAtRisk(s),
    stepsRedone: s.stepsRedone,
    recovery: recoveryStatus(s),
    config: s.config,
  };
}

function peerStatus(s: RunCoreState, peer: PeerRecord, now: number): PeerStatus {
  const held = s.view === null ? [] : stagesOf(s.view, peer.id);
  const { id, runtime, adapter, engine, blockMs, stepMs, bytesUp, bytesDown, hidden, retainedBytes } = peer;
  return {
    ...{ id, runtime, adapter, engine, blockMs, stepMs, bytesUp, bytesDown, hidden, retainedBytes },
    ...(peer.kernels === undefined ? {} : { kernels: peer.kernels }),
    role: roleOf(peer, held),
    stage: (held.find((stage) => computes(stage, peer.id)) ?? held[0])?.index ?? null,
    links: { direct: peer.direct, relayed: peer.relayed },
    silentMs: Math.max(0, Math.round(now - peer.heardAt)),
    suspect: s.suspects[id] ?? 0,
    stepsAtRisk: stepsAtRiskWith(s, id),
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

type Sample = [labels: Record<string, string>, value: number];
interface Family {
  name: string;
  type: "gauge" | "counter" | "summary";
  help: string;
  samples(s: RunCoreState): Sample[];
  /** Of a summary. */
  sum?(s: RunCoreState): number;
  count?(s: RunCoreState): number;
}

function single(name: string, help: string, value: (s: RunCoreState) => number): Family {
  const type = name.endsWith("_total") ? "counter" : "gauge";
  return { name, type, help, samples: (s) => [[{}, value(s)]] };
}

function gauges(name: string, help: string, samples: Family["samples"]): Family {
  return { name, type: "gauge", help, samples };
}

const ofRun: Family[] = [
  single("shoal_step", "Committed optimizer steps.", (s) => s.committed),
  single("shoal_generation", "Number of the present view.", (s) => s.gen),
  single("shoal_peers", "Peers connected to the coordinator.", (s) => Object.keys(s.peers).length),
  single("shoal_train_loss_nats", "Mean training loss of the newest step.", (s) => s.trainLoss ?? NaN),
  single("shoal_validation_loss_nats", "Newest validation loss.", (s) => s.valLoss ?? NaN),
  single("shoal_gradient_norm", "Global gradient norm of the newest step.", (s) => s.gradNorm ?? NaN),
  single(
    "shoal_tokens_per_second",
    "Training tokens per second, moving average.",
    (s) => tokensPerSecond({ s }),
  ),
  single("shoal_tokens_total", "Training tokens of all committed steps.", (s) => s.tokensTotal),
  single("shoal_step_seconds", "Time of a step, moving average.", (s) => s.stepMs / 1000),
];

const ofDepartures: Family[] = [
  single(
    "shoal_departures_total",
    "Peers that vanished while they had a part in the run.",
    (s) => s.costs.departures,
  ),
  {
    name: "shoal_departure_stall_seconds",
    type: "summary",
    help: "Excess of the commit after a departure over a usual step; quantiles of the last 100.",
    samples: stallSamples,
    sum: (s) => s.costs.stallMs / 1000,
    count: (s) => s.costs.stalls,
  },
  single("shoal_recomputed_micro_batches_total", "Micro-batches computed again.", (s) => s.costs.recomputed),
  single("shoal_recovery_bytes_total", "Bytes moved because of departures.", recoveryBytes),
  single("shoal_steps_redone_total", "Steps done again because of departures.", (s) => s.stepsRedone),
  single("shoal_steps_at_risk", "Committed steps that one departure now could cost.", stepsAtRisk),
  single(
    "shoal_fenced_frames_total",
    "Frames that peers refused as stale, misdirected or repeated.",
    (s) => s.costs.fenced,
  ),
  single(
    "shoal_suspect_totals_total",
    "Totals of a stage that differed from the first.",
    (s) => Object.values(s.suspects).reduce((sum, count) => sum + count, 0),
  ),
  single(
    "shoal_hash_agreements_total",
    "State hashes of second holders that agreed (I4).",
    (s) => s.agreements,
  ),
  gauges(
    "shoal_stage_holders",
    "Peers that have the stage's state.",
    (s) => safetyOf(s).map((stage, i) => [{ stage: String(i + 1) }, stage.holders.length]),
  ),
  gauges(
    "shoal_stage_learners",
    "Peers that are fetching the stage's state.",
    (s) => safetyOf(s).map((stage, i) => [{ stage: String(i + 1) }, stage.learning.length]),
  ),
  single("shoal_snapshot_step", "Step of the newest snapshot, here or with peers.", snapshotStep),
  single(
    "shoal_snapshot_seconds",
    "Time that the newest snapshot with peers took.",
    (s) => s.kept.tookMs / 1000,
  ),
  single(
    "shoal_snapshot_bytes_total",
    "Bytes of snapshots sent between peers.",
    (s) => s.costs.snapshotBytes,
  ),
  single(
    "shoal_snapshot_chunks_spared_total",
    "Chunks of snapshots that keepers already had.",
    (s) => s.costs.snapshotSpared,
  ),
  gauges(
    "shoal_retained_bytes",
    "Bytes a peer keeps to send again until their step is committed.",
    (s) => Object.values(s.peers).map((peer) => [{ peer: peer.id }, peer.retainedBytes]),
  ),
];

function stallSamples(s: RunCoreState): Sample[] {
  const stall = stallSummary(s);
  const of = (quantile: string, ms: number | undefined): Sample => [{ quantile }, (ms ?? NaN) / 1000];
  return [of("0.5", stall?.median), of("0.95", stall?.p95), of("1", stall?.worst)];
}

/** Prometheus text exposition. */
export function metricsText(s: RunCoreState): string {
  return [...ofRun, ...ofDepartures].map((family) => familyText(family, s)).join("");
}

function familyText({ name, type, help, samples, sum, count }: Family, s: RunCoreState): string {
  const lines = [`# HELP ${name} ${help}`, `# TYPE ${name} ${type}`];
  for (const [labels, value] of samples(s)) lines.push(`${name}${labelText(labels)} ${value}`);
  if (sum !== undefined) lines.push(`${name}_sum ${sum(s)}`);
  if (count !== undefined) lines.push(`${name}_count ${count(s)}`);
  return lines.map((line) => `${line}\n`).join("");
}

function labelText(labels: Record<string, string>): string {
  // JSON escapes what the exposition format escapes: backslash, quote and line feed.
  const pairs = Object.entries(labels).map(([name, value]) => `${name}=${JSON.stringify(value)}`);
  return pairs.length === 0 ? "" : `{${pairs.join(",")}}`;
}
