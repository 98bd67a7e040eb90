// Departures as data: what happens if somebody leaves now, and what those who left have cost. Pure; draws and fetches nothing.
// What must stay true: no sentence promises that nothing is lost where the coordinator counts steps at risk.
import type { StagePlan } from "../peer/wire/run.ts";
import type { DepartureStatus, RunStatus, StageSafety } from "../peer/wire/status.ts";
import { bytes, clock, count, duration, NOT_YET, plural } from "./format.ts";
import type { Tone } from "./view_model_notice.ts";
import { stageHolds } from "./view_model_pipeline.ts";
import type { Fact } from "./view_model_tab.ts";

/** The page is for the last hours; metrics.jsonl has every departure. */
export const DEPARTURES_SHOWN_MAX = 8;

/** The newest ones; a figure is no place for a list. */
const SUSPECTS_NAMED_MAX = 3;

export interface GuardRow {
  key: number;
  stage: string;
  /** "layers 3 to 4". */
  holds: string;
  who: string;
  outcome: string;
  tone: Tone;
}

export interface DepartureRow {
  key: string;
  at: string;
  peer: string;
  how: string;
  step: string;
  late: string;
  taken: string;
  lost: string;
  tone: Tone;
}

export interface RecoveryView {
  /** One row for each stage; empty while there is no plan. */
  guards: GuardRow[];
  /** How many have vanished, and what that meant. */
  summary: string;
  departures: DepartureRow[];
  costs: Fact[];
}

export function recoveryView(status: RunStatus): RecoveryView {
  const { recovery } = status;
  const recent = recovery.departures.slice(-DEPARTURES_SHOWN_MAX).reverse();
  return {
    guards: status.stages.flatMap((stage, i) => {
      const safety = status.safety[i];
      return safety === undefined ? [] : [guardRow(stage, safety, status)];
    }),
    summary: summaryOf(status),
    departures: recent.map((departure) => departureRow(departure, status)),
    costs: costsOf(status),
  };
}

function guardRow(stage: StagePlan, safety: StageSafety, status: RunStatus): GuardRow {
  return {
    key: stage.index,
    stage: `Stage ${stage.index + 1}`,
    holds: stageHolds(stage),
    who: whoOf(stage, safety),
    outcome: outcomeOf(safety, status.recovery.snapshotStep),
    tone: toneOf(safety),
  };
}

function toneOf({ holders, redundancy, stepsAtRisk }: StageSafety): Tone {
  if (holders.length === 0) return "bad";
  return redundancy === "none" || stepsAtRisk > 0 ? "warn" : "good";
}

function whoOf(stage: StagePlan, { holders, learning, snapshot }: StageSafety): string {
  if (holders.length === 0) return "Nobody holds it.";
  const computing = holders.filter((peer) =>
    stage.replicas.some((replica) => replica.peer === peer && replica.microBatches.length > 0)
  );
  const keeping = holders.filter((peer) => !computing.includes(peer));
  const parts = [
    phrase(computing, "computes", "compute"),
    phrase(keeping, "keeps a copy", "keep copies"),
    phrase(learning, "is fetching a copy", "are fetching copies"),
  ];
  const shards = snapshot === "parity"
    ? " Its snapshot lies with other peers, with parity."
    : snapshot === "copy"
    ? " Its snapshot lies with another peer."
    : "";
  return `${parts.filter(Boolean).join(", ")}.${shards}`;
}

/** "a and b compute"; empty for nobody. */
function phrase(peers: string[], one: string, many: string): string {
  if (peers.length === 0) return "";
  const names = peers.length < 3
    ? peers.join(" and ")
    : `${peers.slice(0, -1).join(", ")} and ${peers.at(-1)}`;
  return `${names} ${peers.length === 1 ? one : many}`;
}

function outcomeOf(safety: StageSafety, snapshotStep: number): string {
  const { holders, redundancy, stepsAtRisk } = safety;
  const source = snapshotStep === 0 ? "the start" : `the snapshot of step ${count(snapshotStep)}`;
  const cost = stepsAtRisk === 0
    ? `${source} has everything, so no step is lost, but it takes longer`
    : `${plural(stepsAtRisk, "step")} ${stepsAtRisk === 1 ? "is" : "are"} done again, from ${source}`;
  if (holders.length === 0) return `The run goes back to ${source}.`;
  if (redundancy === "none") return `If ${holders[0]} vanishes: ${cost}.`;
  if (stepsAtRisk > 0) return `The copy is catching up. If the other vanishes before that: ${cost}.`;
  const which = holders.length === 2 ? "Either may vanish" : "Any one may vanish";
  const rest = holders.length === 2 ? "the other goes on" : "the others go on";
  return `${which}: ${rest}, nothing is lost.`;
}

function summaryOf({ recovery, stepsRedone }: RunStatus): string {
  const { departuresTotal, stall } = recovery;
  if (departuresTotal === 0) return "Nobody has vanished so far.";
  const many = departuresTotal === 1
    ? "One computer has vanished"
    : `${count(departuresTotal)} computers have vanished`;
  const lost = stepsRedone === 0
    ? "no step was lost"
    : `${plural(stepsRedone, "step")} ${stepsRedone === 1 ? "was" : "were"} done again`;
  const late = stall === null
    ? ""
    : ` The step in hand came ${duration(stall.median)} late in the median, ${
      duration(stall.worst)
    } at worst.`;
  return `${many} so far, ${lost}.${late}`;
}

function departureRow(departure: DepartureStatus, status: RunStatus): DepartureRow {
  const { peer, how, atMs, step, stallMs, reassigned, lost } = departure;
  const open = stallMs === null && status.state !== "finished" && status.state !== "failed";
  return {
    key: `${peer} ${atMs}`,
    at: clock(atMs),
    peer,
    how,
    step: count(step + 1),
    late: stallMs !== null ? duration(stallMs) : open ? NOT_YET : "the run ended",
    taken: reassigned === 0 ? "nothing" : plural(reassigned, "micro-batch"),
    // Before the next commit another one may vanish, and more be lost.
    lost: lost > 0 ? plural(lost, "step") : open ? "nothing so far" : "nothing",
    tone: lost > 0 ? "warn" : open ? "info" : "good",
  };
}

function costsOf({ recovery, peers }: RunStatus): Fact[] {
  const { stall, suspects } = recovery;
  const stalls: Fact[] = stall === null ? [] : [
    { label: "Last delay", value: duration(stall.last) },
    { label: "Median delay", value: duration(stall.median) },
    { label: "95% within", value: duration(stall.p95) },
    { label: "Worst delay", value: duration(stall.worst) },
  ];
  const differed = suspects.reduce((sum, suspect) => sum + suspect.count, 0);
  const names = suspects.slice(-SUSPECTS_NAMED_MAX).map((suspect) => suspect.peer).join(", ");
  return [
    ...stalls,
    { label: "Micro-batches done again", value: count(recovery.recomputed) },
    { label: "Moved for recovery", value: bytes(recovery.bytes) },
    { label: "Kept to send again, most", value: bytes(Math.max(0, ...peers.map((it) => it.retainedBytes))) },
    { label: "Stale frames refused", value: count(recovery.fenced) },
    { label: "Totals that differed", value: differed === 0 ? "none" : `${count(differed)} (${names})` },
  ];
}
