// manifest.json of a checkpoint: what the run was, which files belong to it, and their hashes.
// Not reading or writing files (checkpoints.ts). A manifest may come from anywhere, so every field is checked before
// use; whatever passes describes a run that this version can continue.
import * as v from "valibot";
import { readConfig } from "../../peer/model/config.ts";
import { specOf } from "../../peer/model/layout.ts";
import { charTokenizer, VOCAB_MAX } from "../../peer/model/tokenizer.ts";
import { messageOf, refuse, type Result, ShoalError } from "../../peer/wire/errors.ts";
import type { ModelSpec, RunConfig, StageSpec } from "../../peer/wire/run.ts";

export const CHECKPOINT_FORMAT = 1;
/** Files of one checkpoint: a shard per stage plus descriptions. */
const FILES_MAX = 1024;

export interface CheckpointFile {
  name: string;
  bytes: number;
  sha256: string;
}

export interface CheckpointManifest {
  format: typeof CHECKPOINT_FORMAT;
  /** Committed steps contained in the state. */
  step: number;
  config: RunConfig;
  spec: ModelSpec;
  /** Characters by token number; with `tokenizer` the names that it gives its tokens. */
  vocab: string[];
  /** File of the checkpoint with the tokenizer (Hugging Face's tokenizer.json); absent: one token per character. */
  tokenizer?: string;
  /** The cut into stages that the files were written with. */
  stages: StageSpec[];
  files: CheckpointFile[];
  /** Validation loss in nats, if it was measured. */
  valLoss: number | null;
  /** First step whose data has not been used; with the seed it determines all further data. */
  dataCursor: number;
  seed: number;
}

/** What the caller knows; the rest is derived from the files. */
export type ManifestInput = Omit<CheckpointManifest, "format" | "step" | "files">;

const COUNT = v.pipe(v.number(), v.integer(), v.minValue(0), v.maxValue(Number.MAX_SAFE_INTEGER));

const SCHEMA = v.strictObject({
  format: v.literal(CHECKPOINT_FORMAT),
  step: COUNT,
  config: v.record(v.string(), v.unknown()),
  spec: v.record(v.string(), v.unknown()),
  vocab: v.array(v.string()),
  tokenizer: v.optional(v.pipe(v.string(), v.check(isFileName, "not a plain file name"))),
  stages: v.array(v.strictObject({
    ...{ index: COUNT, firstLayer: COUNT, endLayer: COUNT },
    ...{ embed: v.boolean(), head: v.boolean() },
  })),
  files: v.pipe(
    v.array(v.strictObject({
      name: v.pipe(v.string(), v.check(isFileName, "not a plain file name")),
      bytes: COUNT,
      sha256: v.pipe(v.string(), v.regex(/^[0-9a-f]{64}$/)),
    })),
    v.maxLength(FILES_MAX),
  ),
  valLoss: v.nullable(v.pipe(v.number(), v.finite())),
  dataCursor: COUNT,
  seed: COUNT,
});

/** A name that stays inside its folder on every system. */
export function isFileName(name: string): boolean {
  return /^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$/.test(name);
}

/** Checks a manifest's text. Refuses with bad-checkpoint and the offending field. */
export function parseManifest(text: string): Result<CheckpointManifest> {
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch {
    return refuse("bad-checkpoint", "manifest.json is not JSON");
  }
  const parsed = v.safeParse(SCHEMA, json);
  if (!parsed.success) {
    const { issues: [issue] } = parsed;
    return refuse("bad-checkpoint", `manifest.json: ${v.getDotPath(issue) ?? "(root)"}: ${issue.message}`);
  }
  return checkMeaning(parsed.output);
}

function checkMeaning(raw: v.InferOutput<typeof SCHEMA>): Result<CheckpointManifest> {
  try {
    const config = readConfig(raw.config);
    const { tokenizer, ...rest } = raw;
    const vocab = tokenizer === undefined ? charTokenizer(raw.vocab).vocab : checkNames(raw.vocab);
    const spec = specOf(config, vocab.length);
    const problem = findMismatch(raw, spec);
    if (problem !== null) return refuse("bad-checkpoint", `manifest.json: ${problem}`);
    const named = tokenizer === undefined ? {} : { tokenizer };
    return { ok: true, value: { ...rest, ...named, config, vocab, spec } };
  } catch (error) {
    if (error instanceof ShoalError) return refuse("bad-checkpoint", `manifest.json: ${messageOf(error)}`);
    throw error;
  }
}

/** Names of a sub-word tokenizer's tokens. @throws {ShoalError} bad-checkpoint if there are none, too many, or two alike. */
function checkNames(vocab: string[]): string[] {
  if (vocab.length >= 1 && vocab.length <= VOCAB_MAX && new Set(vocab).size === vocab.length) return vocab;
  throw new ShoalError(
    "bad-checkpoint",
    `vocab has ${vocab.length} names, or two alike; 1 to ${VOCAB_MAX} are possible`,
  );
}

function findMismatch(raw: v.InferOutput<typeof SCHEMA>, spec: ModelSpec): string | null {
  const wrong = Object.entries(spec).find(([key, value]) =>
    JSON.stringify(raw.spec[key]) !== JSON.stringify(value)
  );
  if (wrong) {
    return `spec.${wrong[0]} is ${JSON.stringify(raw.spec[wrong[0]])}, config and vocab say ${
      JSON.stringify(wrong[1])
    }`;
  }
  if (raw.tokenizer !== undefined && !raw.files.some((file) => file.name === raw.tokenizer)) {
    return `tokenizer ${raw.tokenizer} is not among the files`;
  }
  if (new Set(raw.files.map((file) => file.name)).size !== raw.files.length) return "files repeat a name";
  if (raw.seed !== raw.config.seed) return `seed ${raw.seed} is not the configuration's`;
  return stagesCover(raw.stages, spec) ? null : `stages do not cover the ${spec.n_layer} layers in order`;
}

function stagesCover(stages: readonly StageSpec[], spec: ModelSpec): boolean {
  let next = 0;
  const fits = stages.every((stage, index) => {
    const follows = stage.index === index && stage.firstLayer === next && stage.endLayer > next;
    next = stage.endLayer;
    return follows && stage.embed === (index === 0) && stage.head === (index === stages.length - 1);
  });
  return fits && next === spec.n_layer;
}
