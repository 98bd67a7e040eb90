// Which keys of a run's configuration may change while it runs, and how a change is told. Plain data that the coordinator, its
// peers and the pages agree on; coordinator/core/changes.ts decides when one counts.
import type { RunConfig } from "./run.ts";

/** What of a run is not its model, its data or its past. */
export const CHANGEABLE_KEYS = [
  ...["learning_rate", "min_lr", "batch_size", "gradient_accumulation_steps", "max_iters"] as const,
  ...["warmup_iters", "lr_decay_iters", "weight_decay", "beta1", "beta2", "grad_clip"] as const,
  ...["eval_interval", "eval_iters", "checkpoint_interval", "snapshot_interval", "sample_chars"] as const,
  ...["n_stage", "shadows", "parity", "schedule", "codec_forward", "codec_backward", "reduce"] as const,
  ...["codec_per_link", "recompute", "optimizer", "micro_batch"] as const,
] satisfies readonly (keyof RunConfig)[];

export type ChangeableKey = typeof CHANGEABLE_KEYS[number];
export type ConfigValues = Partial<Pick<RunConfig, ChangeableKey>>;

/** From committed step `step` on these keys have these values. */
export interface ConfigChange {
  step: number;
  set: ConfigValues;
  /** Once it has begun to count: what they were before. */
  was?: ConfigValues;
  /** The planner's own, of the size of micro-batches. */
  planned?: true;
}
