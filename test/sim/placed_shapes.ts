// Runs of schedules that have a placement of their own, drawn for the scenarios. Data only. What must stay true: with all of its
// peers there, each is exactly what its schedule needs, so that the run begins in the schedule's order.
import { pick, type Random } from "../support/random.ts";
import { between } from "./faults.ts";

interface PlacedShape {
  peers: number;
  config: Record<string, unknown>;
}

/** Two holders of each stage by themselves: a loss of either needs neither shadow nor snapshot. */
const MIRRORED = ["chimera", "chimera-doubling", "chimera-halving", "dualpipe"];
const LOOPED = ["interleaved", "breadth-first", "zb-v"];
const ONE_EACH = ["zb-h1", "zb-h2"];

export function placedShape(random: Random): PlacedShape {
  return shapeOf(random, pick(random, [...MIRRORED, ...LOOPED, ...ONE_EACH])!);
}

/** Without shadows: the other peer of a pair is all there is. */
export function mirroredShape(random: Random): PlacedShape {
  const { peers, config } = shapeOf(random, pick(random, MIRRORED)!);
  return { peers, config: { ...config, shadows: false } };
}

function shapeOf(random: Random, schedule: string): PlacedShape {
  const used = MIRRORED.includes(schedule) ? pick(random, [2, 4])! : between(random, 2, 4);
  const N = MIRRORED.includes(schedule)
    ? 2 * used
    : schedule === "interleaved"
    ? used
    : between(random, 1, 7);
  const n_layer = (LOOPED.includes(schedule) ? 2 : 1) * used + between(random, 0, 1);
  return {
    peers: used + between(random, 0, 1),
    config: { schedule, n_layer, gradient_accumulation_steps: N, n_stage: 0 },
  };
}
