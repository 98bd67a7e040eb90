// A new run's first checkpoint out of another run's newest one: the same weights, step 0, fresh moments. It lies in the new
// run's own folder, so that the run goes on from it after any restart, whatever becomes of the other run.
import { specOf } from "../../peer/model/layout.ts";
import { blankState, decodeState, encodeState } from "../../peer/model/state_file.ts";
import { ShoalError } from "../../peer/wire/errors.ts";
import type { RunConfig } from "../../peer/wire/run.ts";
import {
  readCheckpoint,
  readTokenizer,
  stageFileName,
  withTokenizer,
  writeCheckpoint,
} from "../store/checkpoints.ts";

/**
 * @param checkpoint folder of the checkpoint whose weights are taken
 * @returns the folder of the new run's first checkpoint
 * @throws {ShoalError} bad-config if the configuration is of a model of another shape; bad-checkpoint
 */
export async function takeWeights(checkpoint: string, runDir: string, config: RunConfig): Promise<string> {
  const { manifest, files } = await readCheckpoint(checkpoint);
  const { spec, stages, vocab } = manifest;
  if (JSON.stringify(specOf(config, vocab.length)) !== JSON.stringify(spec)) {
    throw new ShoalError(
      "bad-config",
      "the weights are those of a model of another shape; keep the model's sizes, or start from fresh weights",
    );
  }
  const shards = files.filter((file) => file.name.endsWith(".safetensors"));
  const fresh = stages.map((stage, index) => {
    const decoded = decodeState(spec, stage, shards[index]?.bytes ?? new Uint8Array());
    if (!decoded.ok) {
      throw new ShoalError("bad-checkpoint", `stage ${index} cannot be read: ${decoded.reason}`);
    }
    const state = blankState(spec, stage);
    state.params.set(decoded.value.params);
    return { name: stageFileName(index, stages.length), bytes: encodeState(state) };
  });
  const about = { config, spec, vocab, stages, valLoss: null, dataCursor: 0, seed: config.seed };
  const tokenizer = await readTokenizer(checkpoint, manifest);
  const content = withTokenizer({ step: 0, files: fresh, manifest: about }, tokenizer ?? undefined);
  return await writeCheckpoint(runDir, content);
}
