// Plausible plans for the fixtures: the present one with its reasons, and dry runs that gain, change nothing, cannot be, are asked
// for, are applied, and failed. Part of fixtures.ts; nothing here ships with the pages.
import type { PlanStatus, ReplanPreview } from "../peer/wire/status.ts";
import { status } from "./fixtures_data.ts";
import { board, type Fixture } from "./fixtures_kinds.ts";
import type { Replan } from "./view_model_plan.ts";

export const plan: PlanStatus = {
  schedule: "dynamic",
  seconds: 0.644,
  bubble: 0.21,
  reasons: [
    "4 stages, as the run asks.",
    "tab-c377 holds 2 layers: its memory is the limit.",
    "deno-81c0 shares stage 1 with tab-4f21, which is the slowest alone.",
  ],
  spares: ["tab-77e2"],
  changes: [
    "2 micro-batches of stage 1 went from tab-4f21 to deno-81c0: 0.71 s per step expected, 0.70 s since.",
  ],
  standBy: [
    {
      peer: "tab-09ae",
      sentence: "If tab-09ae left: the others would take over at once, 0.911 s per step; layers cut anew, " +
        "0.702 s after 3.1 s.",
    },
    {
      peer: "tab-c377",
      sentence: "If tab-c377 left: nobody else holds its layers; from a snapshot a step would take 0.733 s.",
    },
  ],
};

const gaining: ReplanPreview = {
  ...{ possible: true, reason: "", before: 0.644, after: 0.487, seconds: 4.6, paysAfter: 30 },
  bytes: 38_172_672,
  transfers: [
    { peer: "tab-77e2", from: "tab-09ae", firstLayer: 2, endLayer: 4, bytes: 19_086_336, seconds: 4.1 },
    { peer: "deno-1d5b", from: "tab-c377", firstLayer: 4, endLayer: 5, bytes: 9_543_168, seconds: 1.2 },
    { peer: "tab-c377", from: null, firstLayer: 3, endLayer: 4, bytes: 9_543_168, seconds: null },
  ],
  sentences: [],
  reasons: [
    "tab-77e2 computes half of stage 2: it was without a part.",
    "deno-1d5b holds 3 layers: it is fastest.",
  ],
  stages: [
    {
      ...{ firstLayer: 0, endLayer: 2, shadows: ["deno-1d5b"] },
      replicas: [{ peer: "tab-4f21", microBatches: 11 }, { peer: "deno-81c0", microBatches: 5 }],
    },
    {
      ...{ firstLayer: 2, endLayer: 4, shadows: [] },
      replicas: [{ peer: "tab-09ae", microBatches: 9 }, { peer: "tab-77e2", microBatches: 7 }],
    },
    { firstLayer: 4, endLayer: 5, shadows: ["tab-4f21"], replicas: [{ peer: "tab-c377", microBatches: 16 }] },
    {
      firstLayer: 5,
      endLayer: 8,
      shadows: ["tab-09ae"],
      replicas: [{ peer: "deno-1d5b", microBatches: 16 }],
    },
  ],
  spares: [],
};

const unchanged: ReplanPreview = {
  ...gaining,
  ...{ after: 0.643, bytes: 0, seconds: 0, paysAfter: 0, transfers: [] },
};

const infeasible: ReplanPreview = {
  ...{ possible: false, before: null, after: null, bytes: 0, seconds: null, paysAfter: null },
  ...{ transfers: [], sentences: [], reasons: [], stages: [], spares: [] },
  reason: "The model needs 412 MB in all, and the five computers offer 371 MB: 41 MB are missing.",
};

function planned(name: string, replan: Replan): Fixture {
  return board(`plan-${name}`, { plan }, { replan });
}

export const plans: Fixture[] = [
  planned("previewed", { phase: "shown", preview: gaining }),
  planned("unchanged", { phase: "shown", preview: unchanged }),
  planned("infeasible", { phase: "shown", preview: infeasible }),
  planned("asking", { phase: "asking" }),
  planned("applied", { phase: "applied", preview: gaining, gen: status.gen }),
  planned("failed", { phase: "failed", message: "no answer from shoal.example" }),
];
