// The contributor's page as data: what the tab knows -> what its screen says. Pure; draws and fetches nothing.
// Every state has a sentence, and every state that stops the work has a remedy.
import type { EngineWish, Invite, TabInspection, TabSnapshot } from "../peer/wire/status.ts";
import { bytes, count, duration, layers, magnitude, plural, sentenceCase } from "./format.ts";
import { type CurveView, curveView } from "./view_model_curve.ts";
import {
  type Notice,
  noticeForPhase,
  noticeForRefusal,
  noticeForRun,
  noticeForWebGpu,
  type Tone,
} from "./view_model_notice.ts";

/** Everything the page knows; each event replaces some of it. */
export interface TabModel {
  invite: Invite | null;
  inspection: TabInspection | null;
  snapshot: TabSnapshot | null;
  /** The click has happened. */
  asked: boolean;
  /** A coded refusal by the coordinator, the network or the peer. */
  refusal: { code: string; message: string } | null;
  /** https or localhost: WebGPU is absent elsewhere, and the remedy differs. */
  secure: boolean;
  /** What the address asks for; auto, which works without WebGPU too, unless it names one. */
  engine: EngineWish;
}

export interface Fact {
  label: string;
  value: string;
}

export interface WelcomeView {
  kind: "welcome";
  title: string;
  lead: string;
  sections: { title: string; text: string }[];
  /** Null while the adapter is still being looked up. */
  adapter: string | null;
  ready: boolean;
}

export interface StageCell {
  label: string;
  mine: boolean;
}

export interface LiveView {
  kind: "live";
  phase: string;
  tone: Tone;
  sentence: string;
  /** Whether the owner would be missed; null while nothing is held. */
  standing: { tone: Tone; text: string } | null;
  stages: StageCell[];
  pace: { own: string; group: string; ownShare: number; sentence: string } | null;
  progress: { value: number; max: number; text: string };
  facts: Fact[];
  curve: CurveView;
  sample: { title: string; text: string } | null;
  paused: boolean;
  canPause: boolean;
  canFinish: boolean;
}

export interface LoadingView {
  kind: "loading";
  title: string;
}

export interface NoticeView extends Notice {
  kind: "notice";
  facts: Fact[];
}

export type TabScreen = (LoadingView | WelcomeView | LiveView | NoticeView) & {
  documentTitle: string;
  /** For the live region: changes when the situation changes, not with every step. */
  announce: string;
};

const PHASE_WORDS: Record<string, string> = {
  joining: "Joining",
  measuring: "Measuring",
  spare: "Spare",
  loading: "Loading",
  training: "Training",
  paused: "Paused",
  finishing: "Finishing",
};

export function tabScreen(model: TabModel): TabScreen {
  const notice = noticeOf(model);
  if (notice) {
    const facts = model.snapshot ? contribution(model.snapshot) : [];
    return {
      kind: "notice",
      ...notice,
      facts,
      documentTitle: `${notice.title} · Shoal`,
      announce: notice.title,
    };
  }
  if (model.snapshot) return live(model.snapshot, model.invite);
  if (model.asked) return loading("Starting the peer on this computer…");
  if (!model.invite) return loading("Asking the coordinator about this run…");
  return welcome(model.invite, model.inspection, model.secure);
}

function noticeOf(model: TabModel): Notice | null {
  const operator = model.invite?.operator ?? null;
  if (model.refusal) return noticeForRefusal(model.refusal, operator);
  if (model.snapshot) return noticeForPhase(model.snapshot, operator);
  const over = model.invite ? noticeForRun(model.invite) : null;
  const needsWebGpu = model.engine === "wgsl" || model.engine === "tfjs-webgpu";
  return over ?? (model.inspection && needsWebGpu ? noticeForWebGpu(model.inspection, model.secure) : null);
}

function loading(title: string): TabScreen {
  return { kind: "loading", title, documentTitle: "Shoal", announce: title };
}

function welcome(invite: Invite, inspection: TabInspection | null, secure: boolean): TabScreen {
  return {
    kind: "welcome",
    title: `Lend this computer to “${invite.runName}”`,
    lead:
      `${sentenceCase(invite.operator)} is training a language model with ${
        magnitude(invite.params)
      } parameters on the text ` +
      `“${invite.dataset}”, cut into pieces that several computers compute together. ${
        company(invite.peers)
      }`,
    sections: sections(invite),
    adapter: inspection ? adapterSentence(inspection, secure) : null,
    ready: inspection !== null,
    documentTitle: `${invite.runName} · Shoal`,
    announce: inspection ? "Ready. Nothing runs before you press the button." : "",
  };
}

function company(peers: number): string {
  if (peers === 0) return "You would be the first one here.";
  return peers === 1 ? "One computer is lent so far." : `${count(peers)} computers are lent so far.`;
}

function sections(invite: Invite): WelcomeView["sections"] {
  return [
    {
      title: "What will run",
      text:
        "One piece of the model: matrix arithmetic inside this tab, on the graphics processor, or on the processor " +
        "where that is quicker. The computer may feel slower and its fan may spin. Closing the tab ends it.",
    },
    {
      title: "How much it takes",
      text:
        `About ${bytes(invite.memoryBytes)} of memory, and about ${bytes(invite.bytesPerStep)} of network ` +
        "traffic for each training step. On a metered connection, count that first. The browser also keeps a copy " +
        "of the piece in its storage for this page, so that a reload need not fetch it; clearing the site's data " +
        "removes it.",
    },
    {
      title: "What leaves this computer",
      text:
        "Numbers of the shared model (activations, gradients, weights), the name of the graphics adapter, and " +
        "your network address, which the other peers can see. No files, no history, nothing you type.",
    },
    {
      title: "Who runs it",
      text: `The coordinator is run by ${invite.operator}. Pause, finish or leave whenever you like; ` +
        "the others carry on without you.",
    },
  ];
}

function adapterSentence(inspection: TabInspection, secure: boolean): string {
  if (inspection.webgpu !== "ok") {
    const why = inspection.webgpu === "no-adapter"
      ? "the browser offers no graphics adapter"
      : secure
      ? "this browser has no WebGPU"
      : "WebGPU needs https, and this page came over http";
    return `none: ${why}, so the processor computes instead, more slowly than a graphics processor`;
  }
  const name = inspection.adapter || "an unnamed adapter";
  return inspection.software ? `${name} (a software adapter: it works, slowly)` : name;
}

function live(snapshot: TabSnapshot, invite: Invite | null): TabScreen {
  const phase = PHASE_WORDS[snapshot.phase] ?? snapshot.phase;
  const busy = snapshot.phase === "training" || snapshot.phase === "spare" || snapshot.phase === "loading";
  return {
    kind: "live",
    phase,
    tone: toneOf(snapshot.phase),
    sentence: sentenceOf(snapshot),
    standing: standingOf(snapshot),
    stages: stageCells(snapshot),
    pace: paceOf(snapshot),
    progress: progressOf(snapshot),
    facts: liveFacts(snapshot),
    curve: curveView(snapshot.losses),
    sample: sampleOf(snapshot.sample),
    paused: snapshot.phase === "paused",
    canPause: busy,
    canFinish: busy || snapshot.phase === "paused",
    documentTitle: `${phase}${invite ? ` · ${invite.runName}` : ""} · Shoal`,
    announce: `${phase}. ${sentenceOf(snapshot)}`,
  };
}

/** Green only while this computer trains. */
function toneOf(phase: TabSnapshot["phase"]): Tone {
  if (phase === "training") return "good";
  return phase === "paused" ? "warn" : "info";
}

function holding(snapshot: TabSnapshot): string {
  if (snapshot.stage === null) return "no stage yet";
  const part = snapshot.layers ? ` (${layers(...snapshot.layers)})` : "";
  return `stage ${snapshot.stage + 1} of ${snapshot.stageCount}${part}`;
}

function sentenceOf(snapshot: TabSnapshot): string {
  switch (snapshot.phase) {
    case "joining":
      return "Connecting to the coordinator.";
    case "measuring":
      return "Finding out how fast this computer is, so that it gets a piece of the right size.";
    case "spare":
      return "Every stage has its computers. Yours stands by and steps in when one of them leaves.";
    case "loading":
      return `Fetching the weights of ${holding(snapshot)}.`;
    case "paused":
      return "This computer computes nothing until you resume. The others carry on.";
    case "finishing":
      return "This computer completes the step in hand, then leaves. Keep the tab open until it says so.";
    default:
      return `This computer holds ${holding(snapshot)}.`;
  }
}

/** Somebody who trains wants to know how to go without harm. */
function standingOf({ phase, stage, alone }: TabSnapshot): LiveView["standing"] {
  if (phase !== "training" || stage === null) return null;
  if (alone.length === 0) {
    return { tone: "good", text: "Another computer holds the same layers: you may leave at any time." };
  }
  const which = alone.map((range) => layers(...range)).join(" and ");
  return {
    tone: "info",
    text:
      `Only this computer holds ${which}. When you go, press “Finish this step and leave”: it hands them ` +
      "over first, which closing the tab does not.",
  };
}

function stageCells(snapshot: TabSnapshot): StageCell[] {
  return Array.from({ length: snapshot.stageCount }, function cell(_, index) {
    const mine = index === snapshot.stage;
    const own = snapshot.layers ? `yours: ${layers(...snapshot.layers)}` : "yours";
    return { label: mine ? own : "others", mine };
  });
}

function paceOf(snapshot: TabSnapshot): LiveView["pace"] {
  const { ownStepMs, groupStepMs } = snapshot;
  if (!(ownStepMs > 0) || !(groupStepMs > 0)) return null;
  return {
    own: duration(ownStepMs),
    group: duration(groupStepMs),
    ownShare: Math.min(1, ownStepMs / groupStepMs),
    sentence: `This computer works ${duration(ownStepMs)} of each step; the whole group needs ${
      duration(groupStepMs)
    }.`,
  };
}

function progressOf(snapshot: TabSnapshot): LiveView["progress"] {
  const max = Math.max(1, snapshot.maxIters);
  return {
    value: Math.min(snapshot.step, max),
    max,
    text: `Step ${count(snapshot.step)} of ${count(snapshot.maxIters)}`,
  };
}

function liveFacts(snapshot: TabSnapshot): Fact[] {
  const { direct, relayed } = snapshot.links;
  return [
    { label: "Tokens processed", value: count(snapshot.tokens) },
    { label: "Sent", value: bytes(snapshot.bytesUp) },
    { label: "Received", value: bytes(snapshot.bytesDown) },
    { label: "Peers connected", value: `${count(direct)} direct, ${count(relayed)} relayed` },
    { label: "Parameters held", value: snapshot.params > 0 ? count(snapshot.params) : "none yet" },
    { label: "Memory", value: snapshot.memoryBytes > 0 ? bytes(snapshot.memoryBytes) : "none yet" },
    { label: "Adapter", value: snapshot.adapter || "unknown" },
    { label: "Engine", value: snapshot.engine || "unknown" },
  ];
}

function sampleOf(sample: TabSnapshot["sample"]): LiveView["sample"] {
  return sample && { title: `What the model writes at step ${count(sample.step)}`, text: sample.text };
}

/** What a leaving contributor has given; empty if nothing was computed. */
function contribution(snapshot: TabSnapshot): Fact[] {
  if (snapshot.tokens === 0) return [];
  return [
    { label: "Tokens processed here", value: count(snapshot.tokens) },
    { label: "Sent", value: bytes(snapshot.bytesUp) },
    { label: "Received", value: bytes(snapshot.bytesDown) },
    { label: "The run reached", value: `${plural(snapshot.step, "step")} of ${count(snapshot.maxIters)}` },
  ];
}
