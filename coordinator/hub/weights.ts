// A new run's first checkpoint out of another run's newest one: the same weights, step 0, fresh moments. It lies in the new
// run's own folder, so that the run goes on from it after any restart, whatever becomes of the other run. Where the new run trains
// adapters, the other's weights become their base; where the other trained some and this one does not, they are merged.
import {
  baseSpec,
  findTensor,
  specOf,
  stageLayout,
  type TensorLayout,
  wholeModel,
} from "../../peer/model/layout.ts";
import {
  blankState,
  decodeState,
  encodeState,
  initialState,
  type StageState,
} from "../../peer/model/state_file.ts";
import { ShoalError } from "../../peer/wire/errors.ts";
import type { LoraSpec, ModelSpec, RunConfig, StageSpec } from "../../peer/wire/run.ts";
import { copyBase, writeBase } from "../store/base.ts";
import { baseFolderOf } from "../store/base_place.ts";
import { readSource, SOURCE_NAME, type SourcePlace } from "../store/base_source.ts";
import {
  type Checkpoint,
  type NamedBytes,
  readCheckpoint,
  readTokenizer,
  stageFileName,
  withTokenizer,
  writeCheckpoint,
} from "../store/checkpoints.ts";
import { readWeights } from "../store/weights.ts";

export interface Taken {
  /** Folder of the new run's first checkpoint. */
  checkpoint: string;
  /** The configuration that was asked for; adapters also name their base. */
  config: RunConfig;
}

/**
 * @param from folder of the checkpoint whose weights are taken
 * @param runDir the new run's folder, which is there
 * @throws {ShoalError} bad-config if the configuration is of a model of another shape; bad-checkpoint
 */
export async function takeWeights(from: string, runDir: string, asked: RunConfig): Promise<Taken> {
  const source = await readCheckpoint(from);
  const { spec: had, vocab } = source.manifest;
  const wanted = specOf(asked, vocab.length);
  if (JSON.stringify(baseSpec(wanted)) !== JSON.stringify(baseSpec(had))) {
    throw new ShoalError(
      "bad-config",
      "the weights are those of a model of another shape; keep the model's sizes, or start from fresh weights",
    );
  }
  const config = await withBase(source, runDir, { asked, wanted });
  const spec = specOf(config, vocab.length);
  const states = await statesOf(source, spec, config.seed);
  const stages = states.map(({ stage }) => stage);
  const files = states.map(({ state, stage }) => (
    { name: stageFileName(stage.index, states.length), bytes: encodeState(state) }
  ));
  const manifest = { config, spec, vocab, stages, valLoss: null, dataCursor: 0, seed: config.seed };
  const tokenizer = await readTokenizer(from, source.manifest);
  const content = withTokenizer(
    { step: 0, files: [...files, ...(spec.lora === undefined ? whereFrom(source) : [])], manifest },
    tokenizer ?? undefined,
  );
  return { checkpoint: await writeCheckpoint(runDir, content), config };
}

/** Weights that were imported and not trained since lie elsewhere, too, as they did. */
function whereFrom({ manifest, files }: Checkpoint): NamedBytes[] {
  const same = manifest.step === 0 && manifest.spec.lora === undefined;
  return same ? files.filter(({ name }) => name === SOURCE_NAME) : [];
}

/** The same for a base that is written of them. @throws {ShoalError} bad-checkpoint */
function placesFrom(checkpoint: Checkpoint) {
  const hashes = new Map<string, string>(), places = new Map<string, SourcePlace>();
  const [file] = whereFrom(checkpoint);
  if (file === undefined) return { hashes };
  const read = readSource(new TextDecoder().decode(file.bytes));
  if (!read.ok) {
    throw new ShoalError(read.code, `checkpoint ${checkpoint.path}: ${SOURCE_NAME}: ${read.reason}`);
  }
  const { files, tensors } = read.value;
  for (const { name, sha256, ...place } of tensors) {
    hashes.set(name, sha256);
    places.set(name, place);
  }
  return { hashes, source: { files, place: ({ name }: TensorLayout) => places.get(name) ?? null } };
}

/** Adapters of the same base go on beside a copy of it; others begin beside the other run's weights. */
async function withBase(
  checkpoint: Checkpoint,
  runDir: string,
  { asked, wanted }: { asked: RunConfig; wanted: ModelSpec },
): Promise<RunConfig> {
  if (wanted.lora === undefined) return { ...asked, lora_base: "" };
  const { path, manifest } = checkpoint;
  const { lora: had } = manifest.spec;
  if (had?.base !== undefined && sameAdapters(had, wanted.lora)) {
    await copyBase(await baseFolderOf(path), runDir);
    return { ...asked, lora_base: had.base };
  }
  const { params } = await readWeights(path);
  const { hashes, ...from } = placesFrom(checkpoint);
  const lora_base = await writeBase(runDir, {
    ...{ spec: wanted, ...from },
    read: ({ name, offset, size }, into) => {
      into.set(params.subarray(offset, offset + size));
      return Promise.resolve(hashes.get(name) ?? null);
    },
  });
  return { ...asked, lora_base };
}

/** The state before the first step, in the source's cut. */
async function statesOf(
  { path, manifest, files }: Checkpoint,
  spec: ModelSpec,
  seed: number,
): Promise<{ stage: StageSpec; state: StageState }[]> {
  const { spec: had, stages } = manifest;
  const same = JSON.stringify(spec) === JSON.stringify(had);
  if (!same && spec.lora !== undefined) {
    return stages.map((stage) => ({ stage, state: initialState(spec, stage, seed) }));
  }
  if (!same) return merged(spec, stages, (await readWeights(path)).params);
  const shards = files.filter((file) => file.name.endsWith(".safetensors"));
  return stages.map((stage, index) => {
    const decoded = decodeState(spec, stage, shards[index]?.bytes ?? new Uint8Array());
    if (!decoded.ok) {
      throw new ShoalError("bad-checkpoint", `stage ${index} cannot be read: ${decoded.reason}`);
    }
    const state = blankState(spec, stage);
    state.params.set(decoded.value.params);
    return { stage, state };
  });
}

/** The stages of whole weights, in which adapters have been added to their base. */
function merged(spec: ModelSpec, stages: readonly StageSpec[], params: Float32Array) {
  const whole = stageLayout(spec, wholeModel(spec));
  return stages.map((stage) => {
    const state = blankState(spec, stage);
    for (const { name, offset, size } of state.layout.tensors) {
      const from = findTensor(whole, name)!.offset;
      state.params.set(params.subarray(from, from + size), offset);
    }
    return { stage, state };
  });
}

function sameAdapters(a: LoraSpec, b: LoraSpec): boolean {
  const shape = ({ rank, alpha, targets }: LoraSpec) => JSON.stringify([rank, alpha, targets]);
  return shape(a) === shape(b);
}
