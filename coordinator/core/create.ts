// The first state of a run: from the seed, or from the files of a checkpoint.
import type { StateFile } from "../../peer/wire/control.ts";
import type { ModelSpec, RunConfig } from "../../peer/wire/run.ts";
import type { RunCoreState } from "./run_state.ts";

export function createRunState(
  config: RunConfig,
  spec: ModelSpec,
  resume?: { step: number; files: StateFile[] },
): RunCoreState {
  const step = resume?.step ?? 0;
  const source = resume ? { step, files: resume.files } : null;
  return {
    ...{ config, spec, source, status: "waiting", reason: "waiting for peers", gen: 0, committed: step },
    ...{ target: config.max_iters, phase: "idle", phaseSince: 0, view: null, round: null, ready: [] },
    ...{
      logged: {},
      evaluated: {},
      stateHashes: {},
      agreements: 0,
      pending: null,
      snapshots: source ? [source] : [],
    },
    ...{
      replanDue: null,
      broken: false,
      paused: false,
      peers: {},
      beats: {},
      losses: [],
      lastEval: -1,
      valLoss: null,
    },
    ...{ trainLoss: null, gradNorm: null, stepMs: 0, lastCommitAt: 0, started: false, stepsRedone: 0 },
    ...{ tokensTotal: 0, barren: 0, ending: null, sample: null, sampledAt: -1, events: [], eventSeq: 0 },
  };
}
