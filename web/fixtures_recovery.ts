// Plausible departures for the fixtures: all stages safe, one with a single holder, a learner at work, a recovery under way, and
// one that lost steps. Pure and fixed, like fixtures_data.ts.
import type { StagePlan } from "../peer/wire/run.ts";
import type { DepartureStatus, RecoveryStatus, RunStatus, StageSafety } from "../peer/wire/status.ts";
import { peers, stages, status } from "./fixtures_data.ts";
import { noDepartures, safetyOf } from "./fixtures_safety.ts";

/** The page's own clock shows it; the same in every screenshot. */
const AT_MS = Date.UTC(2026, 2, 14, 9, 41, 7);

const departures: DepartureStatus[] = [
  departure("tab-a001", "connection closed", { step: 141, stallMs: 640, reassigned: 16 }),
  departure("deno-5e2c", "silent for 1 s", { step: 208, stallMs: 1310, reassigned: 8 }),
  departure("tab-6bd0", "said goodbye: its page was closed", { step: 305, stallMs: 180, reassigned: 0 }),
];

function departure(peer: string, how: string, part: Partial<DepartureStatus>): DepartureStatus {
  const minutes = Math.round((part.step ?? 0) / 25);
  return {
    peer,
    how,
    atMs: AT_MS + minutes * 60_000,
    step: 0,
    stallMs: null,
    reassigned: 0,
    lost: 0,
    ...part,
  };
}

export const survived: RecoveryStatus = {
  ...noDepartures,
  departures,
  departuresTotal: 3,
  stall: { last: 180, median: 640, p95: 1310, worst: 1310 },
  recomputed: 11,
  bytes: 96_400_000,
  fenced: 4,
  snapshotStep: 340,
};

/** The stages without every second holder of one stage. */
function lone(index: number, learner?: string): StagePlan[] {
  return stages.map(function thin(stage) {
    if (stage.index !== index) return stage;
    const [first] = stage.replicas;
    const learning = learner === undefined ? [] : [{ peer: learner, microBatches: [], learning: true }];
    return { ...stage, replicas: [first!, ...learning] };
  });
}

/** A run that depends on the one holder of stage 3. */
function dependent(part: Partial<RunStatus>, learner?: string): Partial<RunStatus> {
  const thinned = lone(2, learner);
  const safety = safetyOf(thinned).map((stage): StageSafety =>
    stage.redundancy === "none" ? { ...stage, stepsAtRisk: 3 } : stage
  );
  const recovery = { ...survived, snapshotStep: 338 };
  return {
    ...{ stages: thinned, safety, stepsAtRisk: 3, recovery },
    peers: peers.map((peer) => peer.id === "tab-c377" ? { ...peer, stepsAtRisk: 3 } : peer),
    ...part,
  };
}

export const atRisk = dependent({});

export const learning = dependent({
  peers: dependent({}).peers!.map((peer) =>
    peer.id === "tab-77e2" ? { ...peer, role: "fetching stage 3", stage: 2, blockMs: 14.2 } : peer
  ),
}, "tab-77e2");

/** Somebody has just gone; the step in hand has not come yet. */
export const recovering: Partial<RunStatus> = {
  gen: 8,
  recovery: {
    ...survived,
    departures: [
      ...departures,
      departure("tab-9f13", "connection closed", { step: 341, reassigned: 16 }),
    ],
    departuresTotal: 4,
    bytes: 101_200_000,
    suspects: [{ peer: "tab-9f13", count: 1 }],
  },
  peers: peers.map((peer) => peer.id === "deno-81c0" ? { ...peer, suspect: 1 } : peer),
};

/** The only holder of a stage has gone: the run went back, and says how far. */
export const rolledBack = dependent({
  gen: 9,
  stepsRedone: 3,
  recovery: {
    ...survived,
    departures: [
      ...departures,
      departure("tab-9f13", "silent for 2 s", { step: 341, stallMs: 7400, lost: 3 }),
    ],
    departuresTotal: 4,
    stall: { last: 7400, median: 640, p95: 7400, worst: 7400 },
    snapshotStep: 338,
  },
});

export const safe: Partial<RunStatus> = { recovery: survived, safety: status.safety };
