// What a run must have computed, whatever happened to it: the same steps in one process, without peers, frames or faults.
// Not the run's own record: nothing here reads what the run wrote except the checkpoint that it is compared with.
import { readCheckpoint, stageStateOf } from "../../coordinator/store/checkpoints.ts";
import { loadCorpus } from "../../coordinator/store/corpus.ts";
import { stateHash } from "../../peer/exact/hash.ts";
import { wholeModel } from "../../peer/model/layout.ts";
import { runOneProcess } from "../support/one_process.ts";

export interface Comparison {
  step: number;
  /** Hashes of parameters and both moments. */
  found: string;
  expected: string;
  equal: boolean;
  /** Training loss of each step of the fault-free run. */
  losses: number[];
}

/**
 * Compares a checkpoint with a fault-free run of as many steps on the CPU engine, over the whole model's parameters
 * and moments. The learning rates are the run's own: they depend on lr_decay_iters, not on when the run was stopped.
 */
export async function compareWithFaultless(checkpointPath: string): Promise<Comparison> {
  const checkpoint = await readCheckpoint(checkpointPath);
  const { config, spec, step, vocab } = checkpoint.manifest;
  const corpus = await loadCorpus(config.dataset, vocab);
  const short = { ...config, max_iters: step };
  const reference = await runOneProcess(short, spec, corpus.tokens);
  const found = stateHash(stageStateOf(checkpoint, wholeModel(spec)));
  const expected = stateHash(reference.state);
  return { step, found, expected, equal: found === expected, losses: reference.losses };
}
