// The contributor's page as data: what the tab knows -> what its screen says. Pure; draws and fetches nothing.
// Every state has a sentence, and every state that stops the work has a remedy.
import type { LimitReason, Limits, Ruling } from "../peer/wire/limits.ts";
import type { EngineWish, Invite, TabSnapshot } from "../peer/wire/status.ts";
import { type Standing, type Term, termsOf } from "./contributor_consent.ts";
import type { Given, PaceRecord } from "./contributor_given.ts";
import type { Traffic } from "./contributor_kept.ts";
import { count, sentenceCase, trainingText } from "./format.ts";
import { type Features, type LimitsView, limitsView, rulingSentence } from "./view_model_tab_limits.ts";
import { contribution, type Fact, live, type LiveView } from "./view_model_tab_live.ts";
import {
  type Notice,
  noticeForCode,
  noticeForPhase,
  noticeForRefusal,
  noticeForRun,
} from "./view_model_notice.ts";

export type { Fact, LiveView, StageCell } from "./view_model_tab_live.ts";

/** Everything the page knows; each event replaces some of it. */
export interface TabModel {
  invite: Invite | null;
  snapshot: TabSnapshot | null;
  /** The click has happened. */
  asked: boolean;
  /** A coded refusal by the coordinator, the network or the peer. */
  refusal: { code: string; message: string } | null;
  /** https or localhost: WebGPU is absent elsewhere, and the remedy differs. */
  secure: boolean;
  /** The browser knows WebGPU; whether it has an adapter is found out after the click. */
  webgpu: boolean;
  /** What the address asks for; auto, which works without WebGPU too, unless it names one. */
  engine: EngineWish;
  consent: { standing: Standing; until: string };
  /** The owner has said no, or has withdrawn. */
  declined: "no" | "refused" | "withdrawn";
  limits: Limits;
  features: Features;
  ruling: Ruling;
  /** Which limit has ended the visit; null if none has. */
  ended: LimitReason | null;
  ownerPaused: boolean;
  hidden: boolean;
  onBattery: boolean;
  wakeLock: boolean;
  name: string;
  given: Given;
  today: Traffic;
  pace: PaceRecord | null;
  /** Outcome of a press that changes nothing else: "Copied." */
  note: string;
}

export interface WelcomeView {
  kind: "welcome";
  title: string;
  lead: string;
  terms: Term[];
  /** What has become of an earlier agreement; "" if there was none. */
  consent: string;
  agreed: boolean;
  adapter: string;
  name: string;
  limits: LimitsView;
  /** Why it cannot start now; "" if it can. */
  blocked: string;
}

export interface LoadingView {
  kind: "loading";
  title: string;
}

export interface NoticeView extends Notice {
  kind: "notice";
  facts: Fact[];
  /** Something is stored here that can be deleted. */
  canWithdraw: boolean;
}

export type TabScreen = (LoadingView | WelcomeView | LiveView | NoticeView) & {
  documentTitle: string;
  /** For the live region: changes when the situation changes, not with every step. */
  announce: string;
};

export function tabScreen(model: TabModel): TabScreen {
  const notice = noticeOf(model);
  if (notice) return noticeScreen(notice, model);
  if (model.snapshot) return live(model, model.snapshot);
  if (model.asked) return loading("Starting the peer on this computer…");
  if (!model.invite) return loading("Asking the coordinator about this run…");
  return welcome(model, model.invite);
}

function noticeScreen(notice: Notice, model: TabModel): TabScreen {
  return {
    kind: "notice",
    ...notice,
    facts: model.snapshot ? contribution(model.snapshot, model.given) : [],
    canWithdraw: model.declined === "no" && model.consent.standing !== "none",
    documentTitle: `${notice.title} · Shoal`,
    announce: model.note || notice.title,
  };
}

function noticeOf(model: TabModel): Notice | null {
  const operator = model.invite?.operator ?? null;
  if (model.declined !== "no") return noticeForCode(model.declined, "", operator);
  if (model.refusal) return noticeForRefusal(model.refusal, operator);
  if (model.snapshot) {
    const reason = model.ended === null
      ? model.snapshot.reason
      : rulingSentence({ verdict: "finish", why: model.ended }, model.limits);
    return noticeForPhase({ ...model.snapshot, reason }, operator);
  }
  const over = model.invite ? noticeForRun(model.invite) : null;
  const needsWebGpu = model.engine === "wgsl" || model.engine === "tfjs-webgpu";
  if (over !== null || !needsWebGpu || model.webgpu) return over;
  return noticeForCode(model.secure ? "no-webgpu" : "insecure", "", operator);
}

function loading(title: string): TabScreen {
  return { kind: "loading", title, documentTitle: "Shoal", announce: title };
}

function welcome(model: TabModel, invite: Invite): TabScreen {
  const blocked = model.ruling.verdict === "finish" ? rulingSentence(model.ruling, model.limits) : "";
  return {
    kind: "welcome",
    title: `Lend this computer to “${invite.runName}”`,
    lead: `${sentenceCase(invite.operator)} is ${
      trainingText({ params: invite.params, baseParams: invite.base?.params })
    } on the text “${invite.dataset}”, cut into pieces that several computers compute together. ${
      company(invite.peers)
    }`,
    terms: termsOf(invite),
    consent: consentSentence(model.consent),
    agreed: model.consent.standing === "stands",
    adapter: adapterSentence(model),
    name: model.name,
    limits: limitsView(model.limits, model.features),
    blocked,
    documentTitle: `${invite.runName} · Shoal`,
    announce: model.note || "Ready. Nothing runs before you press the button.",
  };
}

function company(peers: number): string {
  if (peers === 0) return "You would be the first one here.";
  return peers === 1 ? "One computer is lent so far." : `${count(peers)} computers are lent so far.`;
}

function consentSentence({ standing, until }: TabModel["consent"]): string {
  switch (standing) {
    case "none":
      return "";
    case "stands":
      return `You have agreed to this; you are asked again after ${until}.`;
    case "expired":
      return "You agreed to this a while ago. Please read it again.";
    case "changed":
      return "The run or this text has changed since you agreed. Please read it again.";
  }
}

function adapterSentence({ webgpu, secure, engine }: TabModel): string {
  if (engine === "cpu" || engine === "tfjs-wasm") return "The processor, as the address asks.";
  if (webgpu) {
    return "The graphics processor, if it turns out to be the quicker one. That is found out after you press.";
  }
  const why = secure ? "this browser has no WebGPU" : "WebGPU needs https, and this page came over http";
  return `The processor: ${why}, so it is slower than it could be.`;
}
