// Every state of both pages, by name. The page test draws each one; nothing here ships with the pages.
// A new phase or error code belongs here in the same change.
import type { RunStatus, TabPhase, TabSnapshot } from "../peer/wire/status.ts";
import { inspection, invite, losses, snapshot, status } from "./fixtures_data.ts";
import { atRisk, learning, recovering, rolledBack, safe } from "./fixtures_recovery.ts";
import type { AdminModel } from "./view_model_admin.ts";
import type { TabModel } from "./view_model_tab.ts";

export type Fixture =
  | { name: string; page: "contributor"; model: TabModel }
  | { name: string; page: "admin"; model: AdminModel };

const opened: TabModel = {
  ...{ invite, inspection, snapshot: null, asked: false, refusal: null, secure: true },
  engine: "auto",
};
const missing: TabModel["inspection"] = { webgpu: "missing", adapter: "", software: false };

function tab(name: string, part: Partial<TabModel>): Fixture {
  return { name, page: "contributor", model: { ...opened, ...part } };
}

function phase(name: TabPhase, part: Partial<TabSnapshot> = {}): Fixture {
  return tab(name, { asked: true, snapshot: { ...snapshot, phase: name, ...part } });
}

function refused(code: string, message: string): Fixture {
  return tab(`refused-${code}`, { refusal: { code, message } });
}

/** A snapshot before anything was computed. */
const fresh: Partial<TabSnapshot> = {
  stage: null,
  stageCount: 0,
  layers: null,
  params: 0,
  memoryBytes: 0,
  ownStepMs: 0,
  groupStepMs: 0,
  tokens: 0,
  bytesUp: 2_100,
  bytesDown: 8_900,
  links: { direct: 0, relayed: 0 },
  losses: [],
  sample: null,
};

const contributor: Fixture[] = [
  tab("asking", { invite: null, inspection: null }),
  tab("looking-up-adapter", { inspection: null }),
  tab("welcome", {}),
  tab("welcome-software-first", {
    invite: { ...invite, peers: 0, state: "waiting" },
    inspection: { webgpu: "ok", adapter: "google swiftshader", software: true },
  }),
  tab("welcome-without-webgpu", { inspection: missing }),
  tab("no-webgpu", { inspection: missing, engine: "wgsl" }),
  tab("insecure", { inspection: missing, engine: "wgsl", secure: false }),
  tab("no-adapter", { inspection: { ...missing, webgpu: "no-adapter" }, engine: "wgsl" }),
  tab("run-finished", { invite: { ...invite, state: "finished" } }),
  tab("run-failed", { invite: { ...invite, state: "failed" } }),
  tab("starting", { asked: true }),
  tab("refused-no-token", { invite: null, refusal: { code: "no-token", message: "" } }),
  tab("refused-bad-token", { invite: null, refusal: { code: "bad-token", message: "" } }),
  refused("offline", "no answer from shoal.example (Failed to fetch)"),
  refused("run-full", "the run takes at most 64 peers"),
  refused("out-of-memory", "stage 2 needs 1.9 GB, the adapter allows buffers of 256 MB"),
  refused("internal", "assertion failed: slot 3 is free twice"),
  phase("joining", fresh),
  phase("measuring", fresh),
  phase("spare", { ...fresh, stageCount: 4, step: 341, losses: losses(341) }),
  phase("loading", { ...fresh, stage: 1, stageCount: 4, layers: [2, 4], params: 1_590_528 }),
  phase("training"),
  { ...phase("training", { alone: [[2, 4]] }), name: "training-alone" },
  phase("paused"),
  phase("finishing"),
  phase("left", { reason: "" }),
  phase("done", { step: 2000, losses: losses(2000) }),
  phase("device-lost", { reason: "The browser reports: device was lost (reason: unknown)." }),
  phase("kicked", { reason: "No heartbeat arrived for 15 seconds." }),
  phase("offline", { reason: "The socket to the coordinator closed and did not open again." }),
  phase("wrong-version", { reason: "The coordinator speaks protocol 2, this page speaks 1." }),
];

function board(name: string, part: Partial<RunStatus>, model: Partial<AdminModel> = {}): Fixture {
  return {
    name: `admin-${name}`,
    page: "admin",
    model: { status: { ...status, ...part }, refusal: null, note: "", ...model },
  };
}

function admin(name: string, model: Partial<AdminModel>): Fixture {
  return { name: `admin-${name}`, page: "admin", model: { status: null, refusal: null, note: "", ...model } };
}

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
  board("training", {}),
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

export const fixtures: Fixture[] = [...contributor, ...boards];
