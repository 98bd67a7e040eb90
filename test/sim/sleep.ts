// Peers that are stopped and not ended (SIGSTOP, a closed lid): what reaches them waits, in order, until they thaw. A dead peer
// hears nothing.
import type { SimPeer } from "./types.ts";

/** Runs what reached a peer, at once or when it is awake again. */
export function wake(peer: SimPeer | undefined, run: () => void | Promise<void>): void | Promise<void> {
  if (peer === undefined || peer.dead) return;
  if (peer.stalled === null) return run();
  peer.stalled.push(() => peer.dead ? undefined : run());
}

/** False if it is asleep already, or dead. */
export function fallAsleep(peer: SimPeer | undefined): peer is SimPeer {
  if (peer === undefined || peer.dead || peer.stalled !== null) return false;
  peer.stalled = [];
  return true;
}

export async function thaw(peer: SimPeer): Promise<void> {
  const waiting = peer.stalled ?? [];
  peer.stalled = null;
  for (const run of waiting) await run();
}
