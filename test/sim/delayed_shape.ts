// Runs with the schedule 2bw, drawn from scenarios in which somebody goes at the wrong moment. Data only. What must stay true: two
// steps are open most of the time, so that faults meet both.
import { pick, type Random } from "../support/random.ts";

/** All whose faults do not hang on another schedule or on a peer in a certain state. */
export const DELAYED: readonly string[] = [
  ...["calm", "crash", "crashes", "zombie", "rejoin", "second-failure", "links", "partition", "oneway"],
  ...["clog", "late", "swizzle", "replay", "pause-leave-join", "replicas", "butterfly", "last-holder"],
  ...["shadow", "coordinator-crash", "torn-log", "disk-full", "clock", "corrupt"],
];

export function inTwoVersions<T extends { config: Record<string, unknown> }>(setting: T, random: Random): T {
  const steps = { max_iters: 8, lr_decay_iters: 8, eval_interval: pick(random, [4, 100]) };
  const tied = random() < 0.2 ? { tie_word_embeddings: true } : {};
  return { ...setting, config: { ...setting.config, ...steps, ...tied, schedule: "2bw" } };
}
