// Views that are exactly a placed schedule, for tests of its order: peers p0, p1, ... are its devices, each layer is a stage.
import assert from "node:assert/strict";
import fc from "fast-check";
import {
  directionsOf,
  emitSchedule,
  type PlacedScheduleId,
  stagesFor,
} from "../../peer/schedule/catalogue.ts";
import { flatOrders, pipelineShare, slotsNeeded } from "../../peer/schedule/placed.ts";
import type { StagePlan, View } from "../../peer/wire/run.ts";

export interface PlacedCase {
  schedule: PlacedScheduleId;
  P: number;
  N: number;
  /** Chunks of a peer in the looped schedules, pairs of pipelines in `chimera`; default 2 and 1. */
  v?: number;
  pairs?: number;
}

export function placedView({ schedule, P, N, v = 2, pairs = 1 }: PlacedCase): View {
  const looped = schedule === "interleaved" || schedule === "breadth-first";
  const stages = stagesFor(schedule, P, looped ? v * P : 0);
  assert.ok(typeof stages === "number", String(stages));
  const directions = directionsOf(schedule, pairs);
  const order = emitSchedule(schedule, { devices: P, stages, microBatches: N, directions });
  assert.ok(typeof order !== "string", String(order));
  const slots = slotsNeeded(flatOrders(order), stages);
  const plans = slots.map((inflight, index): StagePlan => ({
    ...{
      index,
      firstLayer: index,
      endLayer: index + 1,
      embed: index === 0,
      head: index === stages - 1,
      inflight,
    },
    replicas: order.placement.map((devices, direction) => ({
      peer: `p${devices[index]}`,
      microBatches: pipelineShare(direction, directions, N),
    })),
  }));
  const codecs = { codecForward: "raw32" as const, codecBackward: "raw32" as const };
  return { gen: 1, cut: 1, baseStep: 0, stages: plans, schedule, ...codecs };
}

const small = (min: number, max: number) => fc.integer({ min, max });

/** Sizes of every placed schedule, awkward ones included. */
export const anyPlaced: fc.Arbitrary<PlacedCase> = fc.oneof(
  fc.tuple(small(2, 5), small(1, 3), small(2, 3)).map(([P, k, v]): PlacedCase => (
    { schedule: "interleaved", P, N: k * P, v }
  )),
  fc.tuple(small(2, 5), small(1, 9), small(2, 3)).map(([P, N, v]): PlacedCase => (
    { schedule: "breadth-first", P, N, v }
  )),
  fc.tuple(small(1, 3), small(1, 3)).map(([h, k]): PlacedCase => (
    { schedule: "chimera", P: 2 * h, N: 2 * h * k }
  )),
  fc.tuple(small(1, 2), small(1, 2)).map(([h, k]): PlacedCase => (
    { schedule: "chimera", P: 4 * h, N: 4 * h * k, pairs: 2 }
  )),
  fc.tuple(small(1, 3), small(1, 2), fc.boolean()).map(([h, k, halves]): PlacedCase => (
    { schedule: halves ? "chimera-halving" : "chimera-doubling", P: 2 * h, N: 4 * h * k }
  )),
  fc.tuple(fc.constantFrom("zb-h1" as const, "zb-h2" as const, "zb-v" as const), small(2, 5), small(1, 11))
    .map(([schedule, P, N]): PlacedCase => ({ schedule, P, N })),
  fc.tuple(small(1, 3), small(0, 3)).map(([h, more]): PlacedCase => (
    { schedule: "dualpipe", P: 2 * h, N: 4 * h + 2 * more }
  )),
);
