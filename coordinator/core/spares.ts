// Peers that were believed slow and got no work because of it: nobody measures them any more, so after a while they are believed as
// quick as they measured themselves at first, and the plan may try them. Pure; changes peers' records only. What must stay true: who
// turns out slow again waits twice as long for the next try.
import { shareOf } from "../../peer/wire/view.ts";
import { RATIO } from "../plan/stragglers.ts";
import type { PeerRecord, RunCoreState } from "./run_state.ts";

/** Without work for so long, a peer may have become another: a video call has ended, a laptop is plugged in again. */
export const FORGIVEN_MS = 600_000;
/** Doublings of that time at most: about ten days. */
const DOUBLINGS_MAX = 10;

/** Names those whose slowness is forgotten now. */
export function forgiveSpares(s: RunCoreState, now: number): string[] {
  const forgiven: string[] = [];
  for (const peer of Object.values(s.peers)) {
    if ((peer.slowdown ?? 1) <= RATIO || computes(s, peer)) delete peer.idleSince;
    else if (isForgiven(peer, now)) forgiven.push(peer.id);
  }
  return forgiven;
}

function computes({ view }: RunCoreState, { id }: PeerRecord): boolean {
  return view?.stages.some((stage) => shareOf(stage, id).length > 0) ?? false;
}

function isForgiven(peer: PeerRecord, now: number): boolean {
  peer.idleSince ??= now;
  const { forgiven = 0 } = peer;
  if (now - peer.idleSince < FORGIVEN_MS * 2 ** Math.min(DOUBLINGS_MAX, forgiven)) return false;
  peer.forgiven = forgiven + 1;
  delete peer.idleSince;
  delete peer.slowdown;
  return true;
}
