// The first state of a run: from the seed, or from the files of a checkpoint.
import type { StateFile } from "../../peer/wire/control.ts";
import type { ModelSpec, RunConfig } from "../../peer/wire/run.ts";
import { noPlanning } from "./planning.ts";
import { noProbing } from "./probes.ts";
import { type RunCoreState, zeroCosts } from "./run_state.ts";
import { noSnapshots } from "./snapshot_state.ts";
import { noTexts } from "./text_state.ts";
import { noTraces } from "./trace.ts";

/** What belongs to one cut of the layers and begins anew with the next. */
export function fresh() {
  return {
    ...{
      logged: {},
      evaluated: {},
      ready: [],
      stateHashes: {},
      stateTold: {},
      dispute: null,
      applied: {},
      warm: {},
      loggers: {},
    },
    ...{
      totalRequests: [],
      learnerHashes: {},
      replicaSince: {},
      transfers: [],
      amendedStep: -1,
      tidyDue: false,
      toldLearners: "",
      lostLinks: {},
      cutBase: 0,
    },
  } satisfies Partial<RunCoreState>;
}

export function createRunState(
  config: RunConfig,
  spec: ModelSpec,
  resume?: { step: number; files: StateFile[] },
): RunCoreState {
  const step = resume?.step ?? 0;
  const source = resume ? { step, files: resume.files } : null;
  return {
    ...{ config, spec, source, status: "waiting", reason: "waiting for peers", gen: 0, committed: step },
    ...{ target: config.max_iters, phase: "idle", phaseSince: 0, view: null, round: null },
    ...{
      agreements: 0,
      changes: [],
      changed: false,
      pending: null,
      snapshots: source ? [source] : [],
      kept: { ...noSnapshots(), lastStep: step },
      restoring: null,
    },
    ...{
      replanDue: null,
      planning: noPlanning(),
      probing: noProbing(),
      broken: false,
      paused: false,
      peers: {},
      beats: {},
      ear: null,
      suspected: [],
      losses: [],
      lastEval: -1,
      valLoss: null,
    },
    ...fresh(),
    ...{
      suspects: {},
      disputes: {},
      lastCommit: null,
      lossScales: [],
      departures: [],
      reassigned: 0,
      recoveryBytes: 0,
      report: null,
    },
    ...{ costs: zeroCosts(), toldHolders: "", traces: noTraces(), texts: noTexts() },
    ...{ trainLoss: null, gradNorm: null, stepMs: 0, lastCommitAt: 0, started: false, stepsRedone: 0 },
    stepsSkipped: 0,
    ...{ tokensTotal: 0, barren: 0, ending: null, sample: null, sampledAt: -1, events: [], eventSeq: 0 },
  };
}
