// I6 as a bystander checks it: what a peer keeps for others is of the round that is open, queues have the length that the run's
// shape allows, the log of totals and what is kept for snapshots are bounded. Reads only; invariants.ts asks after every job.
import type { Instance } from "../../peer/core/peer_state.ts";
import type { Held } from "../../peer/held.ts";
import type { RunConfig } from "../../peer/wire/run.ts";
import { isDelayed, roundOrder } from "../../peer/wire/view.ts";
import type { SimPeer } from "./types.ts";

/** Committed totals in a holder's log; so many more while somebody learns the stage. */
const LOG_MOST = 8;
const LOG_LEARNING_MOST = 64;
/** Rounds beside the open one whose frames may be here before the word that opens them. */
const ROUNDS_AHEAD = 3;
/** Bytes of a state per parameter, and of a file's header for a few dozen tensors. */
const STATE_BYTES = 13;
/** The same with older weights beside the newest (schedule 2bw). */
const DELAYED_STATE_BYTES = 18;
const HEADER_BYTES = 8_192;
/** The complete snapshot and the one that comes after it. */
const COPIES = 2;

/** What is more than it may be, or null. */
export function excess(peer: SimPeer, config: RunConfig): string | null {
  const { instances, loaded } = peer.core.state;
  // Until a new cut is loaded the holder has the former one's.
  if (!loaded) return null;
  for (const held of peer.holder.instances()) {
    const instance = instances.find((it) => it.plan.index === held.plan.index);
    // Let go of with the next effect.
    if (instance?.step == null) continue;
    const found = excessOf(held, instance, config);
    if (found !== null) return `${found} of stage ${held.plan.index}`;
  }
  return null;
}

function excessOf(held: Held, instance: Instance, config: RunConfig): string | null {
  const { gradient_accumulation_steps: count, eval_iters } = config;
  const step = instance.step!;
  const sent = new Set([...held.outbox.values()].map(({ order }) => order));
  const delayed = isDelayed(config);
  const open = delayed ? 2 : 1;
  // A boundary tensor each way for every micro-batch of the step, none in an evaluation's second direction; there, one more that
  // was being computed when the evaluation began anew.
  const most = open * Math.max(2 * count, eval_iters + 1);
  if (held.outbox.size > most) return `${held.outbox.size} sent frames, at most ${most}`;
  if (sent.size > open) return `sent frames of ${sent.size} rounds`;
  // Those of the step before go when the next round begins.
  const oldest = roundOrder("eval", Math.max(0, step - 1));
  const newest = roundOrder("train", step) + ROUNDS_AHEAD + (delayed ? 2 : 0);
  for (const order of [...sent, ...[...held.inbox.values()].map((it) => it.order)]) {
    if (order < oldest || order > newest) return `a frame of round ${order} at step ${step}`;
  }
  const learning = instance.plan.replicas.some((replica) => replica.learning === true);
  const totals = learning ? LOG_LEARNING_MOST : LOG_MOST;
  return held.log.size > totals ? `${held.log.size} totals in the log, at most ${totals}` : null;
}

/** Bytes that snapshots may take of a peer in a run of `parameters` in `stages` stages: every stage twice, and own copies. */
export function snapshotBytesMost(
  parameters: number,
  { stages, delayed }: { stages: number; delayed: boolean },
): number {
  const bytes = delayed ? DELAYED_STATE_BYTES : STATE_BYTES;
  return 2 * COPIES * (parameters * bytes + stages * HEADER_BYTES);
}
