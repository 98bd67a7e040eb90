// Runs that train adapters beside a frozen base, drawn from scenarios in which somebody goes at the wrong moment. Data only. What must
// stay true: every fourth has a tied embedding, whose two ends are frozen and exchange nothing.
import { pick, type Random } from "../support/random.ts";

/** All whose faults do not hang on the trained model's own shape. */
export const ADAPTED: readonly string[] = [
  ...["calm", "crash", "crashes", "zombie", "rejoin", "second-failure", "links", "late", "replay"],
  ...["pause-leave-join", "replicas", "butterfly", "last-holder", "shadow", "coordinator-crash", "torn-log"],
  ...["corrupt", "misled", "2bw"],
];

export function withAdapters<T extends { config: Record<string, unknown> }>(setting: T, random: Random): T {
  const lora = {
    lora_rank: pick(random, [1, 2]),
    lora_targets: pick(random, ["q_proj,v_proj", "down_proj,q_proj"]),
  };
  return { ...setting, config: { ...setting.config, ...lora, tie_word_embeddings: random() < 0.25 } };
}
