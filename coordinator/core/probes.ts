// Which links are measured although no frame of the run uses them: a newcomer's to a few others before it gets work, and, rarely,
// one that nobody has measured or not for long. Pure; mutates the turn's state and asks peers. What must stay true: nobody waits
// longer than PATIENCE_MS for a probe, a peer is in one pair at a time, and a peer that cannot probe is admitted at once.
import type { PeerMessage } from "../../peer/wire/control.ts";
import { takeLink } from "./measures.ts";
import type { PeerRecord, RunCoreState } from "./run_state.ts";
import { note, type Turn } from "./turn.ts";

/** Peers to which a newcomer's links are measured: enough for a guess at all its others, few enough for three seconds. */
export const PARTNERS_MAX = 4;
/** A newcomer gets work after so long, whatever is known of its links by then. */
export const PATIENCE_MS = 3_000;
/** A pair that has not told everything by then is given up; peers themselves give up earlier. */
export const PAIR_MS = 12_000;
/** How often one link of peers that are in the run is looked for that is worth a probe. */
export const AGAIN_MS = 60_000;
/** What was measured longer ago, on a link that nothing uses, may be another line by now. */
export const STALE_MS = 600_000;
/** Links that one peer may have open because of probes: half of what a peer can have at all. */
const LINKS_MAX = 32;
/** Beyond this many open links a peer is known well enough by the others that it has. */
const LINKS_ENOUGH = 8;

type Measured = PeerMessage & { type: "measured" };

/** A newcomer whose links are being measured. */
interface Admission {
  measured: Measured;
  /** Peers to whom its link is still to be measured. */
  partners: string[];
  until: number;
}

export interface Probing {
  /** By peer. */
  waiting: Record<string, Admission>;
  /** Pairs that were asked; `told` names the ends that have answered. */
  pairs: { peers: [string, string]; at: number; told: string[] }[];
  /** When the next link of those in the run may be looked for; 0 = the first look is still to come. */
  againAt: number;
}

export function noProbing(): Probing {
  return { waiting: {}, pairs: [], againAt: 0 };
}

/** A peer has measured itself: it is admitted by the next stepProbes(), or once some of its links are measured too. */
export function beginAdmission({ s, now }: Turn, peer: PeerRecord, measured: Measured): void {
  const known = s.probing.waiting[peer.id];
  if (known !== undefined) return void (known.measured = measured);
  if (measured.probes === true) peer.probes = true;
  if (measured.writes === true) peer.writes = true;
  const admission: Admission = { measured, partners: [], until: now + PATIENCE_MS };
  s.probing.waiting[peer.id] = admission;
  // Who measures itself once more is in the run already.
  if (peer.blockMs === 0) admission.partners = partnersOf(s, peer);
}

/** One end of a pair has measured their link, or could not. */
export function recordProbed({ s }: Turn, peer: PeerRecord, message: PeerMessage & { type: "probed" }): void {
  const pair = s.probing.pairs.find(({ peers }) => peers.includes(peer.id) && peers.includes(message.peer));
  if (pair === undefined || message.peer === peer.id || pair.told.includes(peer.id)) return;
  pair.told.push(peer.id);
  if (message.link?.peer === message.peer) takeLink(s, peer, message.link);
}

/** Asks the pairs that are due. Returns whom nothing holds back any more; they are to be admitted now. */
export function stepProbes(turn: Turn): { peer: PeerRecord; measured: Measured }[] {
  const { s, now } = turn;
  const { probing } = s;
  probing.pairs = probing.pairs.filter(({ peers, at, told }) =>
    told.length < 2 && now - at < PAIR_MS && peers.every((id) => s.peers[id] !== undefined)
  );
  const ready: { peer: PeerRecord; measured: Measured }[] = [];
  for (const [id, admission] of Object.entries(probing.waiting)) {
    const peer = s.peers[id];
    if (peer !== undefined) askNext(turn, peer, admission);
    const done = admission.partners.length === 0 && !isBusy(s, id);
    if (peer !== undefined && !done && now < admission.until) continue;
    delete probing.waiting[id];
    if (peer !== undefined) ready.push({ peer, measured: admission.measured });
  }
  probeAgain(turn);
  return ready;
}

function askNext(turn: Turn, peer: PeerRecord, admission: Admission): void {
  const { s } = turn;
  admission.partners = admission.partners.filter((id) => mayProbe(s.peers[id]));
  if (!mayProbe(peer)) admission.partners = [];
  if (isBusy(s, peer.id)) return;
  const next = admission.partners.find((id) => !isBusy(s, id));
  if (next === undefined) return;
  admission.partners = admission.partners.filter((id) => id !== next);
  // Another newcomer may have asked for the same link.
  if (!isMeasured(s, peer.id, next)) ask(turn, peer.id, next);
}

function ask({ s, now, out }: Turn, a: string, b: string): void {
  s.probing.pairs.push({ peers: [a, b], at: now, told: [] });
  out.push({ do: "send", peer: a, message: { type: "probe", peer: b } });
  out.push({ do: "send", peer: b, message: { type: "probe", peer: a } });
}

/** Those with the fewest links first, so that everybody gets some; among equals who came first. */
function partnersOf(s: RunCoreState, peer: PeerRecord): string[] {
  const others = Object.values(s.peers).filter((other) =>
    other.id !== peer.id && mayProbe(other) && openLinks(other) < LINKS_MAX
  );
  return mayProbe(peer) ? others.sort(fewestLinks).slice(0, PARTNERS_MAX).map(({ id }) => id) : [];
}

function fewestLinks(a: PeerRecord, b: PeerRecord): number {
  return openLinks(a) - openLinks(b) || a.joinedAt - b.joinedAt || (a.id < b.id ? -1 : 1);
}

/** It is here, has measured itself and told that it can, and its owner has not asked for rest. */
function mayProbe(peer: PeerRecord | undefined): peer is PeerRecord {
  return peer?.probes === true && !peer.paused && !peer.leaving;
}

function isBusy(s: RunCoreState, id: string): boolean {
  return s.probing.pairs.some(({ peers }) => peers.includes(id));
}

function openLinks({ links = {} }: PeerRecord): number {
  return Object.values(links).filter(({ open }) => open).length;
}

/** By either end: a round trip is the same from both, and what one end sends shows what the line is like. */
export function isMeasured(s: Pick<RunCoreState, "peers">, a: string, b: string): boolean {
  return [s.peers[a]?.links?.[b], s.peers[b]?.links?.[a]].some((link) => (link?.rttMs ?? 0) > 0);
}

/** While nobody waits: one link between two peers of the run that nobody has measured, or not for long. */
function probeAgain(turn: Turn): void {
  const { s, now } = turn;
  if (now < s.probing.againAt) return;
  const first = s.probing.againAt === 0;
  s.probing.againAt = now + AGAIN_MS;
  if (first || s.status !== "training" || s.probing.pairs.length > 0) return;
  const peers = Object.values(s.peers).filter((peer) => mayProbe(peer)).sort(fewestLinks);
  for (const [i, a] of peers.entries()) {
    const b = peers.slice(i + 1).find((other) => isWorthIt(s, [a, other], now));
    if (b === undefined) continue;
    note(turn, "probe", `${a.id} and ${b.id} measure their link`);
    return ask(turn, a.id, b.id);
  }
}

function isWorthIt(s: RunCoreState, [a, b]: [PeerRecord, PeerRecord], now: number): boolean {
  const known = [a.links?.[b.id], b.links?.[a.id]].filter((link) => link !== undefined);
  if (known.some(({ open }) => open)) return false;
  if (!isMeasured(s, a.id, b.id)) return openLinks(a) < LINKS_ENOUGH && openLinks(b) < LINKS_ENOUGH;
  return known.every(({ at }) => at === undefined || now - at >= STALE_MS);
}
