// How long the coordinator takes to place a published schedule on so many peers, which it does whenever the layers are cut and
// a peer came or went. Not a planner: coordinator/core/textbook_view.ts is.
import process from "node:process";
import { createFit } from "../coordinator/core/fit.ts";
import { type PeerRecord, zeroCounters } from "../coordinator/core/run_state.ts";
import { planTextbook } from "../coordinator/core/textbook_view.ts";
import { weightOf } from "../coordinator/core/plan_request.ts";
import { readConfig } from "../peer/model/config.ts";
import { specOf } from "../peer/model/layout.ts";
import { isPlaced } from "../peer/schedule/catalogue.ts";
import { SCHEDULE_IDS, type ScheduleId } from "../peer/wire/run.ts";

/** Layers of a model that can use every peer; more than a configuration may have are not to be had. */
const LAYERS_MAX = 256;
/** Of each peer: too little for its stage, so that every size and level of recomputation is tried. */
const MEMORY_BYTES = 30e6;
const VOCABULARY = 80;

export interface Placing {
  schedule: ScheduleId;
  ms: number;
  cpuMs: number;
}

/** The published schedule that takes longest, by processor time. */
export function slowestPlacing(peers: number): Placing {
  const placed = SCHEDULE_IDS.filter((id) => isPlaced(id)).map((schedule) => place(schedule, peers));
  return placed.reduce((slowest, it) => it.cpuMs > slowest.cpuMs ? it : slowest);
}

function place(schedule: ScheduleId, count: number): Placing {
  const config = readConfig({
    ...{
      n_layer: Math.min(LAYERS_MAX, 2 * count),
      n_embd: 128,
      n_head: 4,
      shadows: false,
      recompute: "auto",
    },
    ...{ schedule, gradient_accumulation_steps: Math.min(LAYERS_MAX, 2 * count) },
  });
  const spec = specOf(config, VOCABULARY);
  const peers = Array.from({ length: count }, (_, i) => peerOf(i));
  const [start, cpu] = [performance.now(), process.cpuUsage()];
  planTextbook({ config, spec, peers, fit: createFit(spec, config), speedOf: weightOf });
  return { schedule, ms: performance.now() - start, cpuMs: process.cpuUsage(cpu).user / 1000 };
}

function peerOf(i: number): PeerRecord {
  return {
    ...{ id: `p${i}`, runtime: "deno", adapter: "", engine: "wgsl", name: `p${i}`, joinedAt: i, heardAt: 0 },
    ...{ ...zeroCounters(), paused: false, leaving: false, hidden: false },
    ...{ blockMs: 10 + (i * 37) % 23, memoryBytes: MEMORY_BYTES * (1 + i % 7 / 7) },
  };
}
