// Runs in which a bit changes in the memory of a peer that computes nothing, drawn from a seed. Data only.
import type { Random } from "../support/random.ts";
import { between, type Fault } from "./faults.ts";

export interface RottenShape {
  peers: number;
  config: Record<string, unknown>;
  faults: Fault[];
  /** When somebody goes; null for nobody. */
  later: number | null;
  mayRedo: boolean;
}

export function rottenShape(random: Random): RottenShape {
  const at = between(random, 500, 1_000);
  const rot = (state: string): Fault => ({ at, do: "rot-in", state, forMs: between(random, 0, 500) });
  if (random() < 0.4) {
    // Of two who differ nobody can say who is right, and both go back; were one to go, the other would be believed.
    const config = { n_stage: 1, gradient_accumulation_steps: 1, min_peers: 2 };
    return { peers: 2, config, faults: [rot("shadow: logged")], later: null, mayRedo: true };
  }
  const config = { n_stage: 1, gradient_accumulation_steps: 4 };
  // A newcomer learns the stage where there are more micro-batches than holders.
  const [state, peers]: [string, number] = random() < 0.5
    ? ["shadow: logged", 6]
    : ["learner: installing", 3];
  const faults: Fault[] = [{ at: at - 200, do: "join" }, rot(state)];
  return { peers, config, faults, later: at + between(random, 700, 1_500), mayRedo: false };
}

/** The same among several of whom most are right, and the coordinator ends before it has heard of it, or just after. */
export function rottenRestart(random: Random): [Fault[], Omit<RottenShape, "faults" | "later">] {
  const at = between(random, 500, 1_000);
  const crash = { nth: 1, downMs: between(random, 100, 2_000), tear: false, lose: random() < 0.5 };
  const config = { n_stage: 1, gradient_accumulation_steps: 4 };
  return [[
    { at, do: "rot-in", state: "shadow: logged", forMs: between(random, 0, 800) },
    { at: at + between(random, 0, 800), do: "coordinator", point: "now", ...crash },
  ], { peers: between(random, 5, 7), config, mayRedo: false }];
}
