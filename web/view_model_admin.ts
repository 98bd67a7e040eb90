// The admin page as data: the coordinator's status -> what the board shows. Pure; draws and fetches nothing.
// Every colour it asks for (tone) comes with a word that says the same.
import type {
  CheckpointInfo,
  EventLine,
  LinkStatus,
  PeerStatus,
  RunState,
  RunStatus,
  StepTrace,
} from "../peer/wire/status.ts";
import type { BanStatus, Invitations, OrganizerList } from "../peer/wire/invitations.ts";
import type { StageTimes } from "../peer/wire/measures.ts";
import { isLora } from "../peer/wire/view.ts";
import {
  bytes,
  clock,
  count,
  duration,
  loss,
  magnitude,
  parametersText,
  percent,
  plural,
  significant,
} from "./format.ts";
import { type CurveView, curveView } from "./view_model_curve.ts";
import { type GanttView, ganttView } from "./view_model_gantt.ts";
import { type Notice, noticeForRefusal, type Tone } from "./view_model_notice.ts";
import {
  type Alert,
  alertsOf,
  type InvitationsView,
  invitationsView,
  type OrdersView,
  ordersView,
} from "./view_model_orders.ts";
import { type PeopleView, peopleView } from "./view_model_people.ts";
import { type PlanView, planView, type Replan } from "./view_model_plan.ts";
import { type PipelineView, pipelineView } from "./view_model_pipeline.ts";
import { type RecoveryView, recoveryView } from "./view_model_recovery.ts";
import type { Fact } from "./view_model_tab.ts";

/** The log on the page is for the last minutes; the whole one is in the run's folder. */
export const EVENTS_SHOWN_MAX = 60;
/** A peer silent for longer than this is marked, well before the coordinator gives it up. */
export const SILENT_MARK_MS = 3000;

/** More names than that are a number. */
const NAMES_MAX = 3;

export interface AdminModel {
  status: RunStatus | null;
  /** The last poll's refusal; with a status it means that the board is stale. */
  refusal: { code: string; message: string } | null;
  /** Outcome of the last order; empty after a while. */
  note: string;
  /** The step that is drawn; absent or null before the first. */
  trace?: StepTrace | null;
  /** Private ways in; absent or null until they are known. */
  invitations?: Invitations | null;
  /** Who is kept out, and who steers; absent or null until they are known. */
  bans?: BanStatus[] | null;
  organizers?: OrganizerList | null;
  /** The page's clock, ms since 1970; absent: what is there now. */
  now?: number;
  /** The reader wants that step to stay. */
  held?: boolean;
  /** The dry run of a new plan; absent or null: none was asked for. */
  replan?: Replan | null;
}

export interface PeerRow {
  id: string;
  runtime: string;
  adapter: string;
  engine: string;
  role: string;
  block: string;
  step: string;
  traffic: string;
  links: string;
  /** One line per link: the other end, round trip, rates, path. */
  linkLines: string[];
  /** One line per stage that it computes: F, B and W of a micro-batch, and its wait. */
  operations: { times: string; wait: string }[];
  /** "ok", "hidden tab", "1 total differed" or "silent for 4 s". */
  health: string;
  tone: Tone;
  /** What it keeps to send again; empty if nothing. */
  kept: string;
  /** "nothing lost" or "3 steps done again". */
  loss: string;
  /** What the organizer reads before removing it. */
  removal: string;
  /** "pinned to stage 2"; empty if it may compute any. */
  pinned: string;
  /** Stages that it could be pinned to, and "any". */
  pins: { value: string; text: string }[];
}

export interface BoardView {
  kind: "board";
  state: { word: string; tone: Tone; reason: string };
  stale: string | null;
  alerts: Alert[];
  orders: OrdersView;
  /** What a change is compared with. */
  current: Pick<RunStatus, "config" | "step">;
  invitations: InvitationsView | null;
  people: PeopleView | null;
  /** Outcome of the last order, to be seen for a while. */
  note: string;
  title: string;
  subtitle: string;
  progress: { value: number; max: number; text: string; percent: string };
  readings: Fact[];
  risk: { tone: Tone; text: string };
  curve: CurveView;
  sample: { title: string; text: string } | null;
  pipeline: PipelineView;
  plan: PlanView | null;
  gantt: GanttView | null;
  held: boolean;
  recovery: RecoveryView;
  peers: PeerRow[];
  events: { key: number; at: string; kind: string; text: string }[];
  checkpoints: {
    key: string;
    name: string;
    step: string;
    size: string;
    val: string;
    files: string[];
    /** It holds adapters, which have a format of their own. */
    adapters: boolean;
    mayGoBack: boolean;
  }[];
  joinLink: string | null;
  /** Before the first step the invitation matters most and stands first. */
  gathering: boolean;
  controls: { toggle: "pause" | "resume" | null; canStop: boolean };
}

export type AdminScreen = (BoardView | { kind: "loading" } | ({ kind: "notice" } & Notice)) & {
  documentTitle: string;
  announce: string;
};

const TONES: Record<RunState, Tone> = {
  "waiting": "info",
  "warming up": "info",
  "training": "good",
  "paused": "warn",
  "finished": "good",
  "failed": "bad",
};

export function adminScreen(model: AdminModel): AdminScreen {
  const { status, refusal } = model;
  if (refusal && (!status || refusal.code === "bad-token")) {
    const notice = noticeForRefusal(refusal, "the operator");
    return { kind: "notice", ...notice, documentTitle: `${notice.title} · Shoal`, announce: notice.title };
  }
  if (!status) return { kind: "loading", documentTitle: "Shoal", announce: "Loading the run's status…" };
  return board(status, model);
}

function board(status: RunStatus, model: AdminModel): AdminScreen {
  const word = status.state[0]?.toUpperCase() + status.state.slice(1);
  return {
    kind: "board",
    state: { word, tone: TONES[status.state], reason: status.reason },
    stale: model.refusal
      ? `The coordinator does not answer; these are its last figures. ${model.refusal.message}`
      : null,
    alerts: alertsOf(status),
    orders: ordersView(status),
    current: { config: status.config, step: status.step },
    invitations: invitationsView(model.invitations ?? null, model.now ?? 0),
    people: peopleView(model.bans ?? null, model.organizers ?? null, model.now ?? 0),
    note: model.note,
    title: status.runName,
    subtitle: subtitleOf(status),
    progress: progressOf(status),
    readings: readingsOf(status),
    risk: riskOf(status),
    curve: curveView(status.losses),
    sample: status.sample && {
      title: `Sample at step ${count(status.sample.step)}`,
      text: status.sample.text,
    },
    pipeline: pipelineView(status),
    plan: planView(status, model.replan ?? null),
    gantt: ganttView(model.trace ?? null),
    held: model.held ?? false,
    recovery: recoveryView(status),
    peers: status.peers.map((peer) => peerRow(peer, status.stages.length)),
    events: eventRows(status.events),
    checkpoints: status.checkpoints.map((it) => checkpointRow(it, status)).reverse(),
    joinLink: status.joinLink,
    gathering: status.step === 0,
    controls: controlsOf(status.state),
    documentTitle: `${word}, step ${count(status.step)} · ${status.runName} · Shoal`,
    announce: model.note || `Run is ${status.state}. ${status.reason}`,
  };
}

function subtitleOf(status: RunStatus): string {
  const { config } = status;
  const shape = `${plural(config.n_layer, "layer")}, width ${count(config.n_embd)}, context ${
    count(config.block_size)
  }`;
  return `${parametersText(status)} (${shape}) on “${config.dataset}”, run by ${status.operator}`;
}

function progressOf(status: RunStatus): BoardView["progress"] {
  const max = Math.max(1, status.maxIters);
  return {
    value: Math.min(status.step, max),
    max,
    text: `Step ${count(status.step)} of ${count(status.maxIters)}`,
    percent: percent(status.step, status.maxIters),
  };
}

function readingsOf(status: RunStatus): Fact[] {
  return [
    { label: "Training loss", value: loss(status.trainLoss) },
    { label: "Validation loss", value: loss(status.valLoss) },
    { label: "Tokens per second", value: count(status.tokensPerS) },
    { label: "Tokens in all", value: magnitude(status.tokensTotal) },
    { label: "Learning rate", value: significant(status.lr) },
    { label: "Gradient norm", value: significant(status.gradNorm) },
    { label: "Generation", value: count(status.gen) },
    { label: "Steps redone", value: count(status.stepsRedone) },
    ...(status.stepsSkipped === undefined
      ? []
      : [{ label: "Steps skipped (f16)", value: count(status.stepsSkipped) }]),
  ];
}

function riskOf(status: RunStatus): BoardView["risk"] {
  if (status.step === 0 && status.safety.length === 0) {
    // Nobody is there who could vanish.
    return { tone: "info", text: "Nothing is at risk: training has not begun." };
  }
  if (status.stepsAtRisk === 0) {
    const text = status.safety.some((stage) => stage.redundancy === "none")
      ? "No step at risk: the newest snapshot has everything."
      : "No step at risk: any one computer may vanish now.";
    return { tone: "good", text };
  }
  const steps = plural(status.stepsAtRisk, "committed step");
  const them = status.stepsAtRisk === 1 ? "it is" : "they are";
  return { tone: "warn", text: `${steps} at risk: if ${missed(status)} vanishes now, ${them} done again.` };
}

/** Those whose departure would cost steps. */
function missed({ peers }: RunStatus): string {
  const names = peers.filter((peer) => peer.stepsAtRisk > 0).map((peer) => peer.id);
  if (names.length === 0 || names.length > NAMES_MAX) return `one of ${names.length || "the"} computers`;
  return names.join(" or ");
}

function runtimeText(runtime: string): string {
  return runtime === "tab" ? "browser tab" : runtime === "deno" ? "Deno process" : runtime;
}

function peerRow(peer: PeerStatus, stages: number): PeerRow {
  return {
    id: peer.id,
    runtime: [...(peer.name ? [`“${peer.name}”`] : []), runtimeText(peer.runtime)].join(", "),
    adapter: peer.adapter || "unknown",
    engine: peer.engine || "unknown",
    role: peer.role,
    block: peer.blockMs > 0 ? duration(peer.blockMs) : "not measured",
    step: peer.stepMs > 0 ? duration(peer.stepMs) : "not yet",
    traffic: `${bytes(peer.bytesUp)} up, ${bytes(peer.bytesDown)} down`,
    links: `${peer.links.direct} direct, ${peer.links.relayed} relayed`,
    linkLines: [...(peer.linkFigures ?? []).map(linkLine), ...presumedLine(peer)],
    operations: operationsOf(peer),
    ...healthOf(peer),
    kept: peer.retainedBytes > 0 ? `keeps ${bytes(peer.retainedBytes)}` : "",
    loss: peer.stepsAtRisk === 0 ? "nothing lost" : `${plural(peer.stepsAtRisk, "step")} done again`,
    removal: removalOf(peer),
    pinned: peer.pin === undefined ? "" : `pinned to stage ${peer.pin + 1}`,
    pins: pinsFor(peer, stages),
  };
}

/** What holds now stands first, so that looking changes nothing. */
function pinsFor({ pin }: PeerStatus, stages: number): PeerRow["pins"] {
  const any = { value: "any", text: "any stage" };
  const each = Array.from({ length: stages }, (_, i) => ({ value: String(i + 1), text: `stage ${i + 1}` }));
  const now = pin === undefined ? any : each[pin];
  return now === undefined ? [any, ...each] : [now, ...[any, ...each].filter((it) => it !== now)];
}

function operationsOf({ ops = [] }: PeerStatus): PeerRow["operations"] {
  return ops.filter((it) => it.microBatches > 0).map(
    ({ stage, forwardMs, backwardMs, weightGradMs, waitMs, ...boundary }) => {
      const where = ops.length > 1 ? `stage ${stage + 1}: ` : "";
      const times = `${where}F ${duration(forwardMs)}, B ${duration(backwardMs)}, W ${
        duration(weightGradMs)
      }`;
      return { times, wait: [`waits ${duration(waitMs)}`, ...boundaryText(boundary)].join("; ") };
    },
  );
}

/** What of a micro-batch goes into the tensors that cross to other stages, where the engine can tell. */
function boundaryText({ encodeMs, decodeMs, sendMs }: Partial<StageTimes>): string[] {
  const parts = [["encode", encodeMs], ["decode", decodeMs], ["send", sendMs]] as const;
  const known = parts.flatMap(([name, ms]) => ms === undefined ? [] : [`${name} ${duration(ms)}`]);
  return known.length === 0 ? [] : [known.join(", ")];
}

function presumedLine({ linksPresumed = 0 }: PeerStatus): string[] {
  return linksPresumed === 0 ? [] : [`${plural(linksPresumed, "further link")} not measured: plans presume`];
}

function linkLine({ peer, rttMs, upBytesPerS, downBytesPerS, path }: LinkStatus): string {
  const rate = (value: number) => value > 0 ? `${bytes(value)}/s` : "not measured";
  return `${peer}: ${duration(rttMs)}, ${rate(upBytesPerS)} up, ${rate(downBytesPerS)} down, ${PATHS[path]}`;
}

const PATHS: Record<LinkStatus["path"], string> = {
  direct: "direct",
  turn: "over a TURN server",
  relay: "through the coordinator",
  loopback: "in one process",
};

function healthOf(peer: PeerStatus): Pick<PeerRow, "health" | "tone"> {
  if (peer.silentMs >= SILENT_MARK_MS) {
    return { health: `silent for ${duration(peer.silentMs)}`, tone: "bad" };
  }
  if (peer.suspect > 0) return { health: `${plural(peer.suspect, "total")} differed`, tone: "warn" };
  return peer.hidden ? { health: "hidden tab", tone: "warn" } : { health: "ok", tone: "good" };
}

function removalOf(peer: PeerStatus): string {
  if (peer.stepsAtRisk > 0) {
    return `Nobody else holds its layers: ${plural(peer.stepsAtRisk, "step")} would be done again. ` +
      "Better wait until another computer has a copy. Its owner can join again.";
  }
  return "Its work goes to other computers and the step in hand completes. Its owner can join again.";
}

function eventRows(events: readonly EventLine[]): BoardView["events"] {
  return events.slice(-EVENTS_SHOWN_MAX).reverse().map((event) => ({
    key: event.seq,
    at: clock(event.atMs),
    kind: event.kind,
    text: event.text,
  }));
}

/** Events whose kind or text has every word of `wanted`, whatever their case. */
export function eventsLike(events: BoardView["events"], wanted: string): BoardView["events"] {
  const words = wanted.toLowerCase().split(/\s+/).filter((word) => word !== "");
  return events.filter(({ kind, text }) => {
    const line = `${kind} ${text}`.toLowerCase();
    return words.every((word) => line.includes(word));
  });
}

function checkpointRow(
  checkpoint: CheckpointInfo,
  { state, step, config }: RunStatus,
): BoardView["checkpoints"][number] {
  return {
    key: checkpoint.name,
    name: checkpoint.name,
    step: count(checkpoint.step),
    size: bytes(checkpoint.bytes),
    val: checkpoint.valLoss === null ? "not measured" : loss(checkpoint.valLoss),
    // Adapters can be used only with what they belong to.
    files: isLora(config) ? [...checkpoint.files, "base.safetensors"] : checkpoint.files,
    adapters: isLora(config),
    mayGoBack: state !== "finished" && state !== "failed" && checkpoint.step < step,
  };
}

/** A finished or failed run takes no more orders; layers and peers stay visible. */
function controlsOf(state: RunState): BoardView["controls"] {
  if (state === "finished" || state === "failed") return { toggle: null, canStop: false };
  return { toggle: state === "paused" ? "resume" : "pause", canStop: true };
}
