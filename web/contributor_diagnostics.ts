// A report for whoever helps a contributor: what the page knows, as text. Pure. What must stay true: no token, no network
// address and no link is in it, wherever they may have come from.
import type { TabModel } from "./view_model_tab.ts";

/** Of the surroundings; strings of the browser. */
export interface Surroundings {
  userAgent: string;
  protocol: number;
  cores: number;
  at: Date;
}

/** IPv4, IPv6 (at least two colons), host names with a port, links. */
const ADDRESSES = [
  /\b[a-z][a-z0-9+.-]*:\/\/\S+/gi,
  /\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b/g,
  /(?<![\w:.])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}(?:%\w+)?(?![\w:])/gi,
  /\b(?:[a-z0-9-]+\.)+[a-z]{2,}(?::\d+)?\b/gi,
  /\b[\w-]+:\d{2,5}\b/g,
];

export function diagnostics(model: TabModel, around: Surroundings, token: string): string {
  const { snapshot } = model;
  const report = {
    at: around.at.toISOString(),
    browser: around.userAgent,
    cores: around.cores,
    protocol: around.protocol,
    secure: model.secure,
    webgpu: model.webgpu,
    engine_asked: model.engine,
    state: model.invite?.state ?? "unknown",
    refusal: model.refusal === null ? null : model.refusal.code,
    refusal_text: free(model.refusal?.message ?? "", token),
    limits: model.limits,
    ruling: model.ruling,
    paused_by_owner: model.ownerPaused,
    hidden: model.hidden,
    today: model.today,
    ...(snapshot === null ? {} : {
      phase: snapshot.phase,
      code: snapshot.code ?? "",
      reason: free(snapshot.reason, token),
      adapter: snapshot.adapter,
      engine: snapshot.engine,
      stage: snapshot.stage,
      stages: snapshot.stageCount,
      layers: snapshot.layers,
      step: snapshot.step,
      own_step_ms: Math.round(snapshot.ownStepMs),
      group_step_ms: Math.round(snapshot.groupStepMs),
      held: snapshot.held ?? null,
      memory_bytes: snapshot.memoryBytes,
      tokens: snapshot.tokens,
      bytes_up: snapshot.bytesUp,
      bytes_down: snapshot.bytesDown,
      direct: snapshot.links.direct,
      relayed: snapshot.links.relayed,
      relayed_why: free(snapshot.links.why ?? "", token),
    }),
  };
  return JSON.stringify(report, null, 2);
}

/** Text that others wrote, without what could name a person's computer or open a run. */
export function free(text: string, token: string): string {
  let clean = token.length < 4 ? text : text.replaceAll(token, "(token)");
  for (const pattern of ADDRESSES) clean = clean.replace(pattern, "(address)");
  return clean;
}
