// A holder that lacks a total gets it from another: the first hash of a stage wins, and after a commit nobody computes what
// was committed. Pure; mutates the turn's state. What must stay true: every request ends in an applied step, in another
// holder being asked, or in the asking peer being put out; none waits for somebody who is gone.
import { isHolder, isLearner, liveHolders } from "./holders.ts";
import { evict } from "./recovery.ts";
import type { TotalRequest } from "./run_state.ts";
import { note, type Turn } from "./turn.ts";

/** A holder that has not delivered by then is asked no longer; sums may be large and links slow. */
const TOTAL_MS = 10_000;
/** Requests of one peer for one step before it counts as unable to follow. */
const TRIES_MAX = 12;

interface Place {
  cut: number;
  step: number;
  stage: number;
}

/** A peer asks for the total of a step it must apply or adopt. */
export function wantTotal(turn: Turn, peer: string, message: Place): void {
  const { s } = turn;
  const { step, stage } = message;
  if (message.cut !== s.view?.cut || step > s.committed) return;
  if (!isHolder(s, stage, peer) && !isLearner(s, stage, peer)) return;
  const known = s.totalRequests.find((it) => it.peer === peer && it.stage === stage && it.step === step);
  const request = known ?? { peer, stage, step, holder: null, tried: [], at: turn.now, tries: 0 };
  if (known === undefined) s.totalRequests.push(request);
  // Asked again: what the last holder sent was no use, or never came.
  if (request.holder !== null) request.tried.push(request.holder);
  serve(turn, request);
}

/** The stage's winner is known, and this holder has no or another total: it will ask for the winner's. */
export function adoptWinner(turn: Turn, peer: string, place: { stage: number; hash: string }): void {
  const { s } = turn;
  const { stage, hash } = place;
  const step = s.committed;
  const message = { type: "adopt" as const, cut: s.view!.cut, step, stage, hash };
  turn.out.push({ do: "send", peer, message });
}

export function noTotal(turn: Turn, from: string, message: Place & { to: string }): void {
  const { s } = turn;
  if (message.cut !== s.view?.cut) return;
  const request = s.totalRequests.find((it) =>
    it.peer === message.to && it.stage === message.stage && it.step === message.step && it.holder === from
  );
  if (request === undefined) return;
  request.tried.push(from);
  serve(turn, request);
}

/** Asks the next holder; none being known, the request waits for the next one that logs or applies the step. */
function serve(turn: Turn, request: TotalRequest): void {
  const { s } = turn;
  const { stage, step, peer } = request;
  const having = havers(turn, request);
  if (request.tries++ > TRIES_MAX) {
    return evict(turn, peer, `it could not follow step ${step}`, { mayReturn: true });
  }
  const fresh = having.filter((holder) => !request.tried.includes(holder));
  const holder = fresh[0] ?? having[0] ?? null;
  if (fresh.length === 0) request.tried = [];
  Object.assign(request, { holder, at: turn.now });
  if (holder === null) return;
  const message = { type: "send-total" as const, cut: s.view!.cut, step, stage, to: peer };
  turn.out.push({ do: "send", peer: holder, message });
}

/** Live holders that have the total: they logged it, or have applied it. */
function havers({ s }: Turn, { stage, step, peer }: TotalRequest): string[] {
  const plan = s.view!.stages[stage]!;
  const winner = winnerOf(s.logged[stage]);
  const holders = liveHolders(s, plan).map((replica) => replica.peer).filter((it) => it !== peer);
  return holders.filter((holder) => {
    const logged = step === s.committed && winner !== null && s.logged[stage]?.[holder]?.hash === winner;
    const before = s.loggers[step]?.[stage]?.includes(holder) ?? false;
    return logged || before || (s.applied[holder]?.[stage] ?? -1) >= step;
  });
}

/** Hash of the first total that a living holder logged; null if none has. */
export function winnerOf(logged: Record<string, { hash: string }> | undefined): string | null {
  return Object.values(logged ?? {})[0]?.hash ?? null;
}

/** A departure: what was asked of the gone is asked of others, what the gone asked for is forgotten. */
export function reroute(turn: Turn, gone: string): void {
  const { s } = turn;
  s.totalRequests = s.totalRequests.filter((request) => request.peer !== gone);
  for (const request of [...s.totalRequests]) if (request.holder === gone) serve(turn, request);
}

/** A peer that lives has let go of a stage, and of its totals: what it was to send is asked of others. */
export function rerouteStage(turn: Turn, stage: number, former: string): void {
  const { s } = turn;
  const others = ({ stage: of, peer }: TotalRequest) => of !== stage || peer !== former;
  s.totalRequests = s.totalRequests.filter(others);
  for (const request of [...s.totalRequests]) {
    if (request.stage === stage && request.holder === former) serve(turn, request);
  }
}

/** Somebody has logged or applied something: requests that found nobody are served, those fulfilled are dropped. */
export function settleRequests(turn: Turn): void {
  const { s } = turn;
  s.totalRequests = s.totalRequests.filter(({ peer, stage, step }) => {
    const applied = (s.applied[peer]?.[stage] ?? -1) >= step;
    return !applied && s.peers[peer] !== undefined;
  });
  for (const request of [...s.totalRequests]) if (request.holder === null) serveIfKnown(turn, request);
}

function serveIfKnown(turn: Turn, request: TotalRequest): void {
  if (havers(turn, request).length > 0) serve(turn, request);
}

export function timeOutRequests(turn: Turn): void {
  for (const request of [...turn.s.totalRequests]) {
    if (request.holder === null || turn.now - request.at < TOTAL_MS) continue;
    note(turn, "warning", `${request.holder} has not sent ${request.peer} the total of step ${request.step}`);
    request.tried.push(request.holder);
    serve(turn, request);
  }
}
