// Runs in which the plan changes while they train, drawn from a seed: peers become slow or quick, the organizer plans anew, and
// somebody goes or comes at the wrong moment. Data only.
import { pick, type Random } from "../support/random.ts";
import { between, type Fault } from "./faults.ts";

/** Of a few steps each. */
const FIRST_MS = 150;
const LAST_MS = 4_000;

export function replanFaults(random: Random): Fault[] {
  const when = () => between(random, FIRST_MS, LAST_MS);
  // Early, so that three steps can be told of.
  const slow = (): Fault => ({
    ...{ at: between(random, 0, 800), do: "slow", who: random() },
    factor: pick(random, [0.2, 3, 5, 8])!,
  });
  const faults: Fault[] = [slow(), { at: when(), do: "replan" }];
  if (random() < 0.5) faults.push(slow());
  if (random() < 0.4) faults.push({ at: when(), do: "replan" });
  if (random() < 0.5) faults.push({ at: when(), do: "join" });
  if (random() < 0.5) faults.push({ at: when(), do: "crash", who: random(), lose: [] });
  if (random() < 0.2) faults.push({ at: when(), do: "leave", who: random() });
  return faults;
}

/** Long enough for what is measured to be believed, and no longer than a log of totals. */
export function replanShape(random: Random): { peers: number; config: Record<string, unknown> } {
  const config = {
    ...{ n_stage: pick(random, [0, 1, 2, 3]), max_iters: 8, lr_decay_iters: 8 },
    ...{ gradient_accumulation_steps: pick(random, [4, 6]), shadows: random() < 0.7 },
  };
  // Every other world leaves the schedule to the planner, which follows another order wherever links were measured first.
  const schedule = config.gradient_accumulation_steps === 6 ? "auto" : "dynamic";
  return { peers: between(random, 3, 5), config: { ...config, schedule } };
}
