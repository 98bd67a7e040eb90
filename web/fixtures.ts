// Every state of both pages, by name. The page test draws each one; nothing here ships with the pages.
// A new phase or error code belongs here in the same change.
import type { RunStatus } from "../peer/wire/status.ts";
import { losses, status } from "./fixtures_data.ts";
import { measuredStatus, tracedFirst, tracedMany, tracedTwice, tracedUsual } from "./fixtures_measured.ts";
import { invited, invitedByAnother, ordered } from "./fixtures_orders.ts";
import { atRisk, learning, recovering, rolledBack, safe } from "./fixtures_recovery.ts";
import { admin, board, type Fixture } from "./fixtures_kinds.ts";
import { generating } from "./fixtures_generate.ts";
import { runs } from "./fixtures_runs.ts";
import { plans } from "./fixtures_plan.ts";
import { corpora } from "./fixtures_corpora.ts";
import { contributor } from "./fixtures_tab.ts";

const empty: Partial<RunStatus> = {
  step: 0,
  trainLoss: null,
  valLoss: null,
  gradNorm: null,
  tokensPerS: 0,
  tokensTotal: 0,
  losses: [],
  stages: [],
  safety: [],
  recovery: { ...status.recovery, snapshotStep: 0 },
  peers: [],
  checkpoints: [],
  events: [],
  sample: null,
  stepsRedone: 0,
};

const boards: Fixture[] = [
  admin("asking", {}),
  admin("no-token", { refusal: { code: "no-token", message: "" } }),
  admin("bad-token", { refusal: { code: "bad-token", message: "" } }),
  admin("unreachable", { refusal: { code: "offline", message: "no answer from shoal.example" } }),
  board("waiting", { ...empty, state: "waiting", reason: "0 of 4 peers have joined." }),
  board("warming-up", {
    ...empty,
    state: "warming up",
    reason: "Peers load their stages.",
    peers: status.peers,
  }),
  board("training", measuredStatus, tracedUsual),
  board("traced-first", measuredStatus, tracedFirst),
  board("traced-many", measuredStatus, tracedMany),
  board("traced-twice", measuredStatus, tracedTwice),
  board("ordered", ordered, invited),
  board("ordered-by-another", ordered, invitedByAnother),
  board("safe", safe),
  board("at-risk", atRisk),
  board("learning", learning),
  board("recovering", recovering),
  board("rolled-back", rolledBack),
  board("gone", { peers: status.peers.filter((peer) => peer.id !== "tab-c377") }),
  board("paused", { state: "paused", reason: "Paused from this page." }, { note: "Pausing." }),
  board("stale", {}, { refusal: { code: "offline", message: "no answer from shoal.example" } }),
  board("finished", {
    state: "finished",
    reason: "All 2,000 steps are done.",
    step: 2000,
    losses: losses(2000),
    tokensPerS: 0,
    joinLink: null,
  }),
  board("failed", {
    state: "failed",
    reason: "Stage 3 has no holder left and no checkpoint to resume from.",
  }),
];

/** Where the lists are joined: a further one is a file of its own beside this, and a line here. */
export const fixtures: readonly Fixture[] = [
  ...contributor,
  ...boards,
  ...plans,
  ...runs,
  ...corpora,
  ...generating,
];
