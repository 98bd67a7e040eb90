// What is known of a peer's speed for micro-batches of one size, told for another. Pure. What must stay true: records of peers hold
// for the size that the run has at present, so that peers measured at different times can be compared.
import type { PeerMessage } from "../../peer/wire/control.ts";
import type { OpMs } from "../../peer/wire/measures.ts";
import type { RunConfig } from "../../peer/wire/run.ts";
import type { PeerRecord, RunCoreState } from "./run_state.ts";

/** What does not grow with the size is at most this share of a block: a line through two noisy times proves no more. */
const FIXED_SHARE_MAX = 0.9;

/** Clocks are coarse, and no block is done in no time. */
const BLOCK_MS_MIN = 0.01;

type Speeds = Pick<PeerRecord, "blockMs" | "fixedMs" | "opMs" | "codingMs">;

/** Its times with micro-batches of `to` sequences instead of `from`; what was never measured apart grows with the size. */
export function sizedPeer<T extends Speeds>(peer: T, from: number, to: number): T {
  if (from === to || !(peer.blockMs > 0)) return peer;
  const { blockMs, opMs, codingMs } = peer;
  const fixed = fixedOf(peer);
  const sized = fixed + (blockMs - fixed) * to / from;
  return {
    ...{ ...peer, blockMs: sized },
    ...(opMs === undefined ? {} : { opMs: scaled(opMs, sized / blockMs) }),
    ...(codingMs === undefined ? {} : { codingMs: codingMs * to / from }),
  };
}

/** Share of a block's time that does not grow with the size; undefined where it was not measured. */
export function fixedShareOf(peer: Pick<PeerRecord, "blockMs" | "fixedMs">): number | undefined {
  return peer.fixedMs === undefined || !(peer.blockMs > 0) ? undefined : fixedOf(peer) / peer.blockMs;
}

function fixedOf({ blockMs, fixedMs = 0 }: Pick<PeerRecord, "blockMs" | "fixedMs">): number {
  return Math.min(fixedMs, blockMs * FIXED_SHARE_MAX);
}

function scaled({ forward, backward, weightGrad }: OpMs, by: number): OpMs {
  return { forward: forward * by, backward: backward * by, weightGrad: weightGrad * by };
}

/** What a peer has measured when it joined; the run's size may have changed since it was welcomed. */
export function takeMeasured(
  peer: PeerRecord,
  { blockMs, opMs, fixedMs, sequences }: PeerMessage & { type: "measured" },
  { batch_size }: Pick<RunConfig, "batch_size">,
): void {
  peer.blockMs = Math.max(blockMs, BLOCK_MS_MIN);
  if (opMs !== undefined) peer.opMs = opMs;
  if (fixedMs !== undefined) peer.fixedMs = fixedMs;
  Object.assign(peer, sizedPeer(peer, sequences || batch_size, batch_size));
}

/** Every record is told for the new size. */
export function resizePeers(s: RunCoreState, from: number, to: number): void {
  for (const peer of Object.values(s.peers)) Object.assign(peer, sizedPeer(peer, from, to));
}
