// What peers of a simulation make of being asked to measure a link: in most worlds nobody can, as old peers cannot; in the others most
// pairs tell after a moment, some say that no link came about, and some never answer. Not the measuring itself: peer/prober.ts is.
import type { PeerMessage } from "../../peer/wire/control.ts";
import type { Random } from "../support/random.ts";
import type { KeepingWorld } from "./keeping.ts";
import type { SimPeer, WorldOptions } from "./types.ts";

/** In every so many worlds of these scenarios peers can measure links. The others' faults are timed by a start without it. */
const ABLE_EVERY = 3;
const ABLE = ["calm", "rejoin", "replan", "links", "partition", "everything"];
/** How long an answer takes at most, ms: newcomers wait for it, and faults are to meet them at work. */
const ANSWER_MS = 150;
/** Shares of the questions that end without a link, and that nobody answers: a newcomer then waits for three seconds. */
const NO_LINK = 0.1;
const NO_ANSWER = 0.05;
/** Round trips, ms, and bytes per second that are told: homes of one country. */
const RTT_MS = [2, 60] as const;
const BYTES_PER_S = [1e6, 2e7] as const;

/** Whether peers of a scenario's world can measure links. */
export function mayProbe({ scenario, seed }: { scenario: string; seed: number }): boolean {
  return ABLE.includes(scenario) && seed % ABLE_EVERY === 0;
}

/** What a peer of this world has measured and can do. With which size of micro-batches it was welcomed does not matter. */
export function measuredOf({ gpuOptimizer = false, probes = false, config }: WorldOptions, random: Random) {
  const blockMs = 5 + random() * 20;
  const sized = config.micro_batch === "auto"
    ? { fixedMs: blockMs * random(), sequences: config.batch_size }
    : {};
  return { blockMs, ...sized, memoryBytes: 1e9, gpuOptimizer, writes: true, probes };
}

/** The coordinator asks an end to measure its link to another peer. */
export function answerProbe(world: KeepingWorld & { random: Random }, peer: SimPeer, other: string): void {
  const { clock, random } = world;
  const luck = random();
  if (luck < NO_ANSWER) return;
  const between = ([least, most]: readonly [number, number]) => least * (most / least) ** random();
  const link = {
    ...{ peer: other, path: "direct" as const, rttMs: between(RTT_MS), upBytesPerS: between(BYTES_PER_S) },
  };
  const answer: PeerMessage = {
    type: "probed",
    peer: other,
    ...(luck < NO_ANSWER + NO_LINK ? {} : { link }),
  };
  // Who is gone by then, or stopped, answers nothing.
  clock.after(random() * ANSWER_MS, () => {
    if (!peer.dead && peer.stalled === null) world.say(peer.id, answer);
  });
}
