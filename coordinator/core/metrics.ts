// The run in numbers for Prometheus: a pure function of the core's state. docs/self-hosting.md lists every family, and a test
// compares the two. Base units, prefix shoal_; stages are counted from 1, as people do.
import { engineSaid } from "../../peer/model/stage_memory.ts";
import type { StageTimes } from "../../peer/wire/measures.ts";
import type { DiskStatus, StepSummary } from "../../peer/wire/status.ts";
import { tokensPerSecond } from "./commit.ts";
import type { LinkRecord, RunCoreState } from "./run_state.ts";
import { safetyOf, snapshotStep, stepsAtRisk } from "./safety.ts";
import { recoveryBytes, stallSummary } from "./stalls.ts";
import { lastStep } from "./trace.ts";

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
  single("shoal_micro_batches", "Micro-batches of a step.", (s) => s.config.gradient_accumulation_steps),
  single("shoal_micro_batch_sequences", "Sequences of a micro-batch.", (s) => s.config.batch_size),
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

const ofTexts: Family[] = [
  gauges("shoal_texts", "Texts that the peers write together, or that wait.", ({ texts }) => [
    [{ state: "writing" }, texts.writing.length],
    [{ state: "waiting" }, texts.waiting.length],
  ]),
  single("shoal_text_tokens_total", "Tokens that peers wrote together.", (s) => s.texts.tokensTotal),
  single("shoal_text_restarts_total", "Texts that had to begin anew.", (s) => s.texts.restartsTotal),
];

/** NaN while there is no figure yet. */
function ofLastStep(pick: (last: StepSummary) => number | null): (s: RunCoreState) => number {
  return (s) => {
    const last = lastStep(s);
    return last === null ? NaN : pick(last) ?? NaN;
  };
}

const ofTrace: Family[] = [
  single(
    "shoal_step_measured_seconds",
    "Newest traced step, from its opening to its commit.",
    ofLastStep((it) => it.measuredMs / 1000),
  ),
  single(
    "shoal_step_predicted_seconds",
    "The same step as the simulator saw it beforehand.",
    ofLastStep((it) => it.predictedMs === null ? null : it.predictedMs / 1000),
  ),
  single(
    "shoal_step_bubble_ratio",
    "Idle share of the computing peers in that step, 0 to 1.",
    ofLastStep((it) => it.bubble),
  ),
  gauges(
    "shoal_peer_step_wait_seconds",
    "Time in that step in which the peer had nothing to do.",
    (s) => lastStep(s)?.waits.map(({ peer, waitMs }) => [{ peer }, waitMs / 1000]) ?? [],
  ),
  gauges(
    "shoal_peer_step_link_wait_seconds",
    "The part of it in which what it waited for was on its way.",
    (s) => lastStep(s)?.waits.map(({ peer, linkWaitMs }) => [{ peer }, linkWaitMs / 1000]) ?? [],
  ),
];

const ofPeers: Family[] = [
  gauges(
    "shoal_peer_info",
    "1 for each peer; its labels say what it computes with.",
    (s) =>
      Object.values(s.peers).map(({ id, runtime, engine }) => [
        { peer: id, runtime, engine: engineSaid(engine, s.config) },
        1,
      ]),
  ),
  gauges(
    "shoal_peer_operation_seconds",
    "One operation of one micro-batch, moving average.",
    (s) =>
      ofStages(s, ({ forwardMs, backwardMs, weightGradMs }) => [
        [{ operation: "F" }, forwardMs / 1000],
        [{ operation: "B" }, backwardMs / 1000],
        [{ operation: "W" }, weightGradMs / 1000],
      ]),
  ),
  gauges(
    "shoal_peer_boundary_seconds",
    "Boundary tensors of one micro-batch: decode and encode are parts of F and B, send comes on top; moving average.",
    (s) => ofStages(s, ({ decodeMs, encodeMs, sendMs }) => boundarySamples({ decodeMs, encodeMs, sendMs })),
  ),
  gauges(
    "shoal_peer_wait_seconds",
    "Wait for frames per micro-batch, moving average.",
    (s) => ofStages(s, ({ waitMs }) => [[{}, waitMs / 1000]]),
  ),
];

function boundarySamples({ decodeMs, encodeMs, sendMs }: Record<string, number | undefined>): Sample[] {
  return Object.entries({ decode: decodeMs, encode: encodeMs, send: sendMs }).flatMap((
    [part, ms],
  ): Sample[] => ms === undefined ? [] : [[{ part }, ms / 1000]]);
}

function ofStages(s: RunCoreState, samples: (times: StageTimes) => Sample[]): Sample[] {
  return Object.values(s.peers).flatMap(({ id, ops = [] }) =>
    ops.flatMap((times) =>
      samples(times).map(([labels, value]): Sample => [
        { peer: id, stage: String(times.stage + 1), ...labels },
        value,
      ])
    )
  );
}

const ofLinks: Family[] = [
  gauges(
    "shoal_link_round_trip_seconds",
    "Shortest round trip of late.",
    (s) => linkSamples(s, (link) => link.rttMs / 1000),
  ),
  gauges(
    "shoal_link_bytes_per_second",
    "Rate of large frames under way; NaN while none was measured.",
    (s) => linkSamples(s, ({ upBytesPerS }) => upBytesPerS > 0 ? upBytesPerS : NaN),
  ),
];

function linkSamples(s: RunCoreState, value: (link: LinkRecord) => number): Sample[] {
  return Object.values(s.peers).flatMap(({ id, links = {} }) =>
    Object.entries(links).flatMap(([to, link]): Sample[] =>
      link.open ? [[{ from: id, to, path: link.path }, value(link)]] : []
    )
  );
}

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
  single(
    "shoal_steps_skipped_total",
    "Steps passed over because a gradient overflowed f16.",
    (s) => s.stepsSkipped,
  ),
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

function ofDisk(disk: DiskStatus | null): Family[] {
  return [
    single("shoal_disk_free_bytes", "Room on the disk of the run's folder.", () => disk?.freeBytes ?? NaN),
    single("shoal_disk_size_bytes", "All of that disk.", () => disk?.sizeBytes ?? NaN),
  ];
}

export interface MetricsOptions {
  /** False for whoever may not see who is linked to whom. Default true. */
  links?: boolean;
  /** Null: not known. */
  disk?: DiskStatus | null;
}

/** Prometheus text exposition. */
export function metricsText(s: RunCoreState, { links = true, disk = null }: MetricsOptions = {}): string {
  const own = [...ofRun, ...ofTrace, ...ofTexts, ...ofDepartures, ...ofPeers, ...ofDisk(disk)];
  const families = [...own, ...(links ? ofLinks : [])];
  return families.map((family) => familyText(family, s)).join("");
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
