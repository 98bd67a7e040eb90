// Every state of the contributor's page, by name. Part of fixtures.ts; nothing here ships with the pages.
import { FREE, type Limits, NO_LIMITS } from "../peer/wire/limits.ts";
import type { TabPhase, TabSnapshot } from "../peer/wire/status.ts";
import { NOTHING } from "./contributor_given.ts";
import { invite, losses, snapshot } from "./fixtures_data.ts";
import type { Fixture } from "./fixtures_kinds.ts";
import type { TabModel } from "./view_model_tab.ts";

/** A page that has asked about the run, in a browser that offers everything. */
export const opened: TabModel = {
  ...{ invite, snapshot: null, asked: false, refusal: null, secure: true, webgpu: true, engine: "auto" },
  ...{
    consent: { standing: "none", until: "" },
    declined: "no",
    limits: NO_LIMITS,
    ruling: FREE,
    ended: null,
  },
  ...{ features: { battery: true, idle: true, wakeLock: true }, ownerPaused: false, hidden: false },
  ...{ onBattery: false, wakeLock: false, name: "", given: NOTHING, today: { up: 0, down: 0 }, pace: null },
  note: "",
};

const agreed: TabModel["consent"] = { standing: "stands", until: "13 April 2026" };
const given = {
  steps: 1_204,
  tokens: 19_726_336,
  bytesUp: 1_840_000_000,
  bytesDown: 1_790_000_000,
  ms: 4_260_000,
};

/** One of each. */
export const strict: Limits = {
  ...{
    duty: 0.5,
    pluggedOnly: true,
    memoryBytes: 800_000_000,
    upBytesPerS: 500_000,
    downBytesPerS: 2_000_000,
  },
  ...{ dayUpBytes: 2_000_000_000, dayDownBytes: 4_000_000_000, battery: { stop: 0.3, resume: 0.5 } },
  ...{ onlyIdle: true, onlyVisible: true, hours: { from: 22 * 60, to: 6 * 60 + 30 } },
};

function tab(name: string, part: Partial<TabModel>): Fixture {
  return { name, page: "contributor", model: { ...opened, ...part } };
}

function phase(name: TabPhase, part: Partial<TabSnapshot> = {}, model: Partial<TabModel> = {}): Fixture {
  const shown = { ...snapshot, phase: name, ...part };
  return tab(name, { asked: true, consent: agreed, given, name: "Ada’s laptop", snapshot: shown, ...model });
}

function refused(code: string, message: string): Fixture {
  return tab(`refused-${code}`, { refusal: { code, message } });
}

function named(name: string, fixture: Fixture): Fixture {
  return { ...fixture, name };
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

/** Nine steps at 2.1 times the best. */
const slowed: TabModel["pace"] = { work: "1 2,4 0.5", recentMs: Array<number>(9).fill(382), bestMs: 182 };

const before: Fixture[] = [
  tab("asking", { invite: null }),
  tab("welcome", {}),
  tab("welcome-first", { invite: { ...invite, peers: 0, state: "waiting" } }),
  tab("welcome-again", { consent: agreed, limits: strict, name: "Ada’s laptop" }),
  tab("welcome-expired", { consent: { standing: "expired", until: "1 March 2026" } }),
  tab("welcome-changed", { consent: { standing: "changed", until: "13 April 2026" } }),
  tab("welcome-day-is-full", {
    ...{ consent: agreed, limits: strict, today: { up: 2_100_000_000, down: 0 } },
    ruling: { verdict: "finish", why: "day-up" },
  }),
  tab("welcome-without-webgpu", {
    webgpu: false,
    features: { battery: false, idle: false, wakeLock: false },
  }),
  tab("no-webgpu", { webgpu: false, engine: "wgsl" }),
  tab("insecure", { webgpu: false, engine: "wgsl", secure: false }),
  tab("run-finished", { invite: { ...invite, state: "finished" } }),
  tab("run-failed", { invite: { ...invite, state: "failed" } }),
  tab("starting", { asked: true }),
  tab("declined", { declined: "refused" }),
  tab("withdrawn", { declined: "withdrawn" }),
  tab("refused-no-token", { invite: null, refusal: { code: "no-token", message: "" } }),
  tab("refused-bad-token", { invite: null, refusal: { code: "bad-token", message: "" } }),
  refused("offline", "no answer from shoal.example (Failed to fetch)"),
  refused("internal", "assertion failed: slot 3 is free twice"),
];

const running: Fixture[] = [
  phase("joining", fresh),
  phase("measuring", fresh),
  phase("spare", { ...fresh, stageCount: 4, step: 341, losses: losses(341) }),
  phase("loading", { ...fresh, stage: 1, stageCount: 4, layers: [2, 4], params: 1_590_528 }),
  phase("training"),
  named("training-alone", phase("training", { alone: [[2, 4]] })),
  named(
    "training-slowed",
    phase("training", {
      ...{
        held: { by: "duty", share: 0.38 },
        writes: true,
        links: { direct: 2, relayed: 2, why: "link-timeout: no direct path in 10 s" },
      },
    }, { limits: strict, pace: slowed, hidden: true, wakeLock: true }),
  ),
  phase("paused", {}, { ownerPaused: true }),
  named(
    "waiting",
    phase("paused", {}, { limits: strict, ruling: { verdict: "wait", why: "battery" }, onBattery: true }),
  ),
  phase("finishing"),
];

const over: Fixture[] = [
  phase("left", { reason: "" }),
  named("left-day-is-full", phase("left", { reason: "" }, { limits: strict, ended: "day-down" })),
  phase("done", { step: 2000, losses: losses(2000) }),
  phase("device-lost", { reason: "The browser reports: device was lost (reason: unknown)." }),
  named("no-adapter", phase("device-lost", { ...fresh, reason: "", code: "no-adapter" })),
  phase("kicked", { reason: "No heartbeat arrived for 15 seconds." }),
  named(
    "run-full",
    phase("kicked", { ...fresh, reason: "the run takes at most 64 peers", code: "run-full" }),
  ),
  named(
    "banned",
    phase("kicked", {
      ...fresh,
      reason: "this computer was put out by the organizer and is kept out for 25 minutes more: wrong class",
      code: "banned",
    }),
  ),
  named(
    "out-of-memory",
    phase("kicked", {
      ...{ reason: "stage 2 needs 1.9 GB, the adapter allows buffers of 256 MB", code: "out-of-memory" },
    }),
  ),
  phase("offline", { reason: "The socket to the coordinator closed and did not open again." }),
  phase("wrong-version", { reason: "The coordinator speaks protocol 2, this page speaks 1." }),
];

export const contributor: Fixture[] = [...before, ...running, ...over];
