// The contributor's working screen as data: what this computer does, how quick it is and why not quicker, what it has given, and
// the three ways to stop with what each costs. Pure. Figures come from the peer; nothing here is guessed.
import type { TabSnapshot } from "../peer/wire/status.ts";
import { type Given, slowdownOf } from "./contributor_given.ts";
import { bytes, count, duration, layers, plural } from "./format.ts";
import { type CurveView, curveView } from "./view_model_curve.ts";
import type { Tone } from "./view_model_notice.ts";
import type { TabModel, TabScreen } from "./view_model_tab.ts";
import { type LimitsView, limitsView, rulingSentence } from "./view_model_tab_limits.ts";

export interface Fact {
  label: string;
  value: string;
}

export interface StageCell {
  label: string;
  mine: boolean;
}

export type VerbId = "pause" | "resume" | "finish" | "leave";

/** A way to stop, and what it costs the run. */
export interface Verb {
  id: VerbId;
  label: string;
  cost: string;
  enabled: boolean;
}

export interface LiveView {
  kind: "live";
  phase: string;
  tone: Tone;
  sentence: string;
  /** Whether the owner would be missed; null while nothing is held. */
  standing: { tone: Tone; text: string } | null;
  stages: StageCell[];
  verbs: Verb[];
  pace: { own: string; group: string; ownShare: number; sentence: string } | null;
  /** Why it is slower than it could be; empty if it is not. */
  slow: string[];
  progress: { value: number; max: number; text: string };
  facts: Fact[];
  given: { facts: Fact[]; name: string };
  limits: LimitsView;
  wakeLock: { on: boolean; disabled: boolean; help: string };
  curve: CurveView;
  sample: { title: string; text: string } | null;
}

const PHASE_WORDS: Record<string, string> = {
  joining: "Joining",
  measuring: "Measuring",
  spare: "Spare",
  loading: "Loading",
  training: "Training",
  paused: "Paused",
  finishing: "Finishing",
};

/** A step that takes so many times its best is worth a word; less is chance. */
const SLOWDOWN_TOLD = 1.5;

export function live(model: TabModel, snapshot: TabSnapshot): TabScreen {
  const waits = snapshot.phase === "paused" && !model.ownerPaused && model.ruling.verdict === "wait";
  const phase = waits ? "Waiting" : PHASE_WORDS[snapshot.phase] ?? snapshot.phase;
  const sentence = waits ? rulingSentence(model.ruling, model.limits) : sentenceOf(snapshot);
  return {
    kind: "live",
    phase,
    tone: toneOf(snapshot.phase),
    sentence,
    standing: standingOf(snapshot),
    stages: stageCells(snapshot),
    verbs: verbsOf(model, snapshot),
    pace: paceOf(snapshot),
    slow: slowSentences(model, snapshot),
    progress: progressOf(snapshot),
    facts: liveFacts(snapshot),
    given: { facts: givenFacts(model.given), name: model.name },
    limits: limitsView(model.limits, model.features),
    wakeLock: wakeLockOf(model),
    curve: curveView(snapshot.losses),
    sample: sampleOf(snapshot.sample),
    documentTitle: `${phase}${model.invite ? ` · ${model.invite.runName}` : ""} · Shoal`,
    announce: model.note || `${phase}. ${sentence}`,
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
  return {
    tone: "info",
    text:
      `Only this computer holds ${
        aloneText(alone)
      }. When you go, press “Finish this step and leave”: it hands ` +
      "them over first, which closing the tab does not.",
  };
}

function aloneText(alone: TabSnapshot["alone"]): string {
  return alone.map((range) => layers(...range)).join(" and ");
}

function stageCells(snapshot: TabSnapshot): StageCell[] {
  return Array.from({ length: snapshot.stageCount }, function cell(_, index) {
    const mine = index === snapshot.stage;
    const own = snapshot.layers ? `yours: ${layers(...snapshot.layers)}` : "yours";
    return { label: mine ? own : "others", mine };
  });
}

function verbsOf({ ownerPaused }: TabModel, snapshot: TabSnapshot): Verb[] {
  const { phase, alone, stage } = snapshot;
  const busy = phase === "training" || phase === "spare" || phase === "loading";
  const holds = stage !== null && busy;
  const resume: Verb = {
    ...{ id: "resume", label: "Resume", enabled: phase !== "finishing" },
    cost: "Takes part again from the next step at which there is work for it.",
  };
  const pause: Verb = {
    ...{ id: "pause", label: "Pause", enabled: busy || phase === "paused" },
    cost: holds
      ? "Your piece goes to another computer; this one stays connected and computes nothing."
      : "Stays connected and computes nothing.",
  };
  return [
    ownerPaused ? resume : pause,
    {
      ...{ id: "finish", label: "Finish this step and leave", enabled: busy || phase === "paused" },
      cost: holds ? `Costs the others nothing. ${finishTime(snapshot)}` : "Costs the others nothing.",
    },
    {
      ...{ id: "leave", label: "Leave now", enabled: true },
      cost: !holds
        ? "Nothing is in hand here, so nothing is lost."
        : alone.length > 0
        ? `Steps since the last snapshot of ${aloneText(alone)} may have to be done again.`
        : "The others do again what this computer had in hand of this step.",
    },
  ];
}

function finishTime({ groupStepMs, alone }: TabSnapshot): string {
  if (alone.length > 0) return "Waits until another computer has fetched your piece.";
  return groupStepMs > 0
    ? `Takes a step or two, about ${duration(2 * groupStepMs)}.`
    : "Takes a step or two.";
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

/** Each cause with its remedy. */
function slowSentences(model: TabModel, { held, phase, writes, note }: TabSnapshot): string[] {
  const sentences: string[] = [];
  if (note !== undefined) sentences.push(`${note[0]?.toUpperCase()}${note.slice(1)}.`);
  if (phase !== "training") return sentences;
  const share = held ? `${Math.round(held.share * 100)}% of the time` : "";
  if (held?.by === "duty") sentences.push(`Your limit makes this computer rest ${share}.`);
  if (held?.by === "up") sentences.push(`Your upload limit holds this computer back ${share}.`);
  if (held?.by === "down") sentences.push(`Your download limit holds this computer back ${share}.`);
  if (writes) {
    sentences.push(
      "It helps to write a text that somebody asked the model for; steps take a little longer meanwhile.",
    );
  }
  const slowdown = slowdownOf(model.pace);
  if (slowdown < SLOWDOWN_TOLD) return sentences;
  const times = `A step takes ${Number(slowdown.toFixed(1))} times as long as at its best here`;
  if (model.hidden) sentences.push(`${times}: this tab is in the background. Bring it to the front.`);
  else if (model.onBattery) sentences.push(`${times}: the computer runs on its battery. Plug it in.`);
  else sentences.push(`${times}: something else keeps this computer busy.`);
  return sentences;
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
  return [
    { label: "Tokens processed", value: count(snapshot.tokens) },
    { label: "Sent", value: bytes(snapshot.bytesUp) },
    { label: "Received", value: bytes(snapshot.bytesDown) },
    { label: "Peers connected", value: linksText(snapshot.links) },
    { label: "Parameters held", value: snapshot.params > 0 ? count(snapshot.params) : "none yet" },
    { label: "Memory", value: snapshot.memoryBytes > 0 ? bytes(snapshot.memoryBytes) : "none yet" },
    { label: "Adapter", value: snapshot.adapter || "unknown" },
    { label: "Engine", value: snapshot.engine || "unknown" },
  ];
}

/** A relayed connection is slower and somebody else's traffic, so it has a reason. */
function linksText({ direct, relayed, why }: TabSnapshot["links"]): string {
  const counts = `${count(direct)} direct, ${count(relayed)} relayed`;
  return relayed > 0 && why ? `${counts} (${why.replace(/^[a-z-]+: /, "")})` : counts;
}

function sampleOf(sample: TabSnapshot["sample"]): LiveView["sample"] {
  return sample && { title: `What the model writes at step ${count(sample.step)}`, text: sample.text };
}

function givenFacts(given: Given): Fact[] {
  return [
    { label: "Steps", value: count(given.steps) },
    { label: "Tokens", value: count(given.tokens) },
    { label: "Sent", value: bytes(given.bytesUp) },
    { label: "Received", value: bytes(given.bytesDown) },
    { label: "Time", value: duration(given.ms) },
  ];
}

/** What a leaving contributor has given; empty if nothing was computed. */
export function contribution(snapshot: TabSnapshot, given: Given): Fact[] {
  if (snapshot.tokens === 0) return [];
  return [
    { label: "Tokens processed here", value: count(snapshot.tokens) },
    { label: "Sent", value: bytes(snapshot.bytesUp) },
    { label: "Received", value: bytes(snapshot.bytesDown) },
    { label: "The run reached", value: `${plural(snapshot.step, "step")} of ${count(snapshot.maxIters)}` },
    { label: "Steps with you, all visits", value: count(given.steps) },
    { label: "Time lent, all visits", value: duration(given.ms) },
  ];
}

function wakeLockOf({ wakeLock, features }: TabModel): LiveView["wakeLock"] {
  const help = features.wakeLock
    ? "The screen stays lit while this tab is in front; this uses power."
    : "This browser cannot keep the screen on.";
  return { on: wakeLock, disabled: !features.wakeLock, help };
}
