// Where every parameter of a stage lives in one flat f32 array, and how layers are cut into stages.
// Not initialisation (init.ts) and not arithmetic. Names, shapes and row order are Hugging Face's Llama, so weight
// files need no renaming; GPT-2 has the same names where it has the same parts, and coordinator/export renames them.
// Every holder of a stage must compute the same offsets from the same spec.
import { assert, ShoalError } from "../wire/errors.ts";
import { isLora } from "../wire/view.ts";
import { LORA_TARGETS, type LoraSpec, type ModelSpec, type RunConfig, type StageSpec } from "../wire/run.ts";

/** Group starts, in floats: 256 bytes is WebGPU's largest minimum offset alignment of a storage binding. */
export const GROUP_ALIGNMENT = 64;

export const EMBEDDING_NAME = "model.embed_tokens.weight";
export const HEAD_NAME = "lm_head.weight";
/** Learned positions, [T, C], in the first stage of a GPT-2. */
export const POSITIONS_NAME = "model.embed_positions.weight";
/** Gain of the norm before the head, and what GPT-2 adds to it. */
export const FINAL_NORM_NAME = "model.norm.weight";
export const FINAL_BIAS_NAME = "model.norm.bias";

export interface TensorLayout {
  name: string;
  /** Row-major, [out, in] for projections. */
  shape: number[];
  /** In floats from the start of the stage's array. */
  offset: number;
  /** Number of floats. */
  size: number;
}

/** Tensors ascend by offset and never overlap; gaps are padding and always hold 0. */
export interface StageLayout {
  tensors: TensorLayout[];
  /** Floats in the whole array, a multiple of GROUP_ALIGNMENT. */
  size: number;
}

type Shape = readonly [name: string, shape: number[]];

/** Contiguous tensors: a kernel may read one group as a single matrix (q, k, v; gate, up). */
type Group = Shape[];

/** Width of one attention head. */
export function headDim(spec: ModelSpec): number {
  return spec.n_embd / spec.n_head;
}

export function isGpt2({ architecture }: Pick<ModelSpec, "architecture">): boolean {
  return architecture === "gpt2";
}

function layerGroups(spec: ModelSpec, layer: number): Group[] {
  if (isGpt2(spec)) return gpt2Groups(spec, layer);
  const { n_embd: C, n_inner: I } = spec;
  const D = headDim(spec);
  const [q, kv] = [spec.n_head * D, spec.n_kv_head * D];
  const prefix = `model.layers.${layer}`;
  return [
    [[`${prefix}.input_layernorm.weight`, [C]]],
    [
      [`${prefix}.self_attn.q_proj.weight`, [q, C]],
      [`${prefix}.self_attn.k_proj.weight`, [kv, C]],
      [`${prefix}.self_attn.v_proj.weight`, [kv, C]],
    ],
    [[`${prefix}.self_attn.o_proj.weight`, [C, q]]],
    [[`${prefix}.post_attention_layernorm.weight`, [C]]],
    [[`${prefix}.mlp.gate_proj.weight`, [I, C]], [`${prefix}.mlp.up_proj.weight`, [I, C]]],
    [[`${prefix}.mlp.down_proj.weight`, [C, I]]],
  ];
}

/** A norm's gain and bias are one group, which a kernel reads as [2, C]; so are the biases of q, k and v. */
function gpt2Groups({ n_embd: C, n_inner: I }: ModelSpec, layer: number): Group[] {
  const prefix = `model.layers.${layer}`;
  const heads = ["q", "k", "v"].map((name) => `${prefix}.self_attn.${name}_proj`);
  const norm = (name: string): Group => [[`${prefix}.${name}.weight`, [C]], [`${prefix}.${name}.bias`, [C]]];
  const linear = (name: string, out: number, into: number): Group[] => [
    [[`${prefix}.${name}.weight`, [out, into]]],
    [[`${prefix}.${name}.bias`, [out]]],
  ];
  return [
    norm("input_layernorm"),
    heads.map((name): Shape => [`${name}.weight`, [C, C]]),
    heads.map((name): Shape => [`${name}.bias`, [C]]),
    ...linear("self_attn.o_proj", C, C),
    norm("post_attention_layernorm"),
    ...linear("mlp.up_proj", I, C),
    ...linear("mlp.down_proj", C, I),
  ];
}

/** Ends of the names of a matrix' two adapters: A, [rank, in], and B, [out, rank]. */
export const LORA_A = ".lora_A.weight";
export const LORA_B = ".lora_B.weight";

/** What is trained in place of a layer: for each targeted matrix [out, in] one group of its two adapters. */
function adapterGroups(groups: readonly Group[], { rank, targets }: LoraSpec): Group[] {
  const ends = targets.map((target) => `${target}.weight`);
  return groups.flat().flatMap(([name, [out, into]]): Group[] => {
    if (into === undefined || !ends.some((end) => name.endsWith(`.${end}`))) return [];
    const module = name.slice(0, -".weight".length);
    return [[[module + LORA_A, [rank, into]], [module + LORA_B, [out!, rank]]]];
  });
}

function stageGroups(spec: ModelSpec, stage: StageSpec): Group[] {
  const groups = denseGroups(spec, stage);
  return spec.lora === undefined ? groups : adapterGroups(groups, spec.lora);
}

function denseGroups(spec: ModelSpec, stage: StageSpec): Group[] {
  const { n_embd: C, vocab_size: V } = spec;
  const groups: Group[] = [];
  if (stage.embed) groups.push([[EMBEDDING_NAME, [V, C]]]);
  if (stage.embed && isGpt2(spec)) groups.push([[POSITIONS_NAME, [spec.block_size, C]]]);
  for (let layer = stage.firstLayer; layer < stage.endLayer; layer++) {
    groups.push(...layerGroups(spec, layer));
  }
  if (!stage.head) return groups;
  groups.push(
    [FINAL_NORM_NAME, ...(isGpt2(spec) ? [FINAL_BIAS_NAME] : [])].map((name): Shape => [name, [C]]),
  );
  if (!spec.tie_word_embeddings) groups.push([[HEAD_NAME, [V, C]]]);
  else if (!stage.embed) groups.push([[EMBEDDING_NAME, [V, C]]]);
  return groups;
}

function alignUp(floats: number): number {
  return Math.ceil(floats / GROUP_ALIGNMENT) * GROUP_ALIGNMENT;
}

function product(shape: readonly number[]): number {
  return shape.reduce((size, n) => size * n, 1);
}

/** Layout of what is trained of one stage: with LoRA its adapters, and the base's is that of baseSpec(spec). With tied embeddings a head stage holds the embedding instead of `lm_head.weight`. */
export function stageLayout(spec: ModelSpec, stage: StageSpec): StageLayout {
  const tensors: TensorLayout[] = [];
  let end = 0;
  for (const group of stageGroups(spec, stage)) {
    end = alignUp(end);
    for (const [name, shape] of group) {
      const size = product(shape);
      tensors.push({ name, shape, offset: end, size });
      end += size;
    }
  }
  return { tensors, size: alignUp(end) };
}

/** Where the stage's groups begin, in floats: only there may the flat array be cut, besides between rows of one matrix. */
export function groupOffsets(spec: ModelSpec, stage: StageSpec): number[] {
  const layout = stageLayout(spec, stage);
  return stageGroups(spec, stage).map(([first]) => findTensor(layout, first![0])!.offset);
}

export function findTensor(layout: StageLayout, name: string): TensorLayout | undefined {
  return layout.tensors.find((tensor) => tensor.name === name);
}

/** True for the tensor that both ends of a tied model hold and must update alike. */
export function isTied(spec: ModelSpec, name: string): boolean {
  return spec.tie_word_embeddings && name === EMBEDDING_NAME;
}

/** The model as a single stage. */
export function wholeModel(spec: ModelSpec): StageSpec {
  return { index: 0, firstLayer: 0, endLayer: spec.n_layer, embed: true, head: true };
}

/** Number of trained parameters, padding excluded; a tied embedding counts once. */
export function paramCount(spec: ModelSpec): number {
  return stageLayout(spec, wholeModel(spec)).tensors.reduce((sum, tensor) => sum + tensor.size, 0);
}

/** The model that adapters belong to: what engines compute with, and what a base's file holds. Itself without LoRA. */
export function baseSpec(spec: ModelSpec): ModelSpec {
  const { lora: _, ...base } = spec;
  return base;
}

/** Number of parameters that are computed with: the base's, without the adapters. */
export function baseParamCount(spec: ModelSpec): number {
  return paramCount(baseSpec(spec));
}

/** The model's shape, taken from a run's configuration and its corpus' vocabulary size. */
export function specOf(config: RunConfig, vocabSize: number): ModelSpec {
  const { block_size, n_layer, n_head, n_kv_head, n_embd, n_inner, rope_theta, norm_eps } = config;
  const { tie_word_embeddings } = config;
  return {
    ...(config.architecture === "gpt2" ? { architecture: "gpt2" as const } : {}),
    ...{ vocab_size: vocabSize, block_size, n_layer, n_head, n_kv_head, n_embd, n_inner },
    ...{ tie_word_embeddings, rope_theta, norm_eps },
    ...loraOf(config),
  };
}

function loraOf(config: RunConfig): Pick<ModelSpec, "lora"> {
  const { lora_rank: rank, lora_alpha: alpha, lora_targets, lora_base: base } = config;
  if (!isLora(config)) return {};
  const named = lora_targets.split(",");
  const targets = LORA_TARGETS.filter((target) => named.includes(target));
  return { lora: { rank, alpha, targets, ...(base === "" ? {} : { base }) } };
}

/**
 * Cuts the layers into contiguous stages, as proportional to `weights` as whole layers allow: largest remainder, at
 * least one layer each, ties to the earlier stage.
 * @throws {ShoalError} bad-config if there are no weights, a bad weight, or more stages than layers.
 */
export function splitLayers(spec: ModelSpec, weights: readonly number[]): StageSpec[] {
  checkWeights(spec, weights);
  const counts = layerCounts(spec.n_layer, weights);
  const last = counts.length - 1;
  let firstLayer = 0;
  return counts.map((count, index) => {
    const stage = {
      index,
      firstLayer,
      endLayer: firstLayer + count,
      embed: index === 0,
      head: index === last,
    };
    firstLayer += count;
    return stage;
  });
}

function checkWeights(spec: ModelSpec, weights: readonly number[]): void {
  if (weights.length < 1 || weights.length > spec.n_layer) {
    throw new ShoalError(
      "bad-config",
      `cannot cut ${spec.n_layer} layers into ${weights.length} stages; use 1 to ${spec.n_layer} stages`,
    );
  }
  const bad = weights.find((weight) => !(weight >= 0 && weight < Infinity));
  if (bad !== undefined) {
    throw new ShoalError(
      "bad-config",
      `stage weight ${bad} is not usable; use a finite number of at least 0`,
    );
  }
}

function layerCounts(layers: number, weights: readonly number[]): number[] {
  const sum = weights.reduce((a, b) => a + b, 0);
  // All-zero (or overflowing) weights say nothing about speed, so every stage counts the same.
  const usable = sum > 0 && sum < Infinity;
  const quotas = weights.map((weight) => layers * (usable ? weight / sum : 1 / weights.length));
  const counts = quotas.map((quota) => Math.max(1, Math.floor(quota)));
  let left = layers - counts.reduce((a, b) => a + b, 0);
  while (left !== 0) {
    const way = left > 0 ? 1 : -1;
    const index = mostWrong(quotas, counts, way);
    counts[index] = counts[index]! + way;
    left -= way;
  }
  return counts;
}

/** The stage that lies furthest below (way 1) or above (way -1) its quota; one layer always stays. */
function mostWrong(quotas: readonly number[], counts: readonly number[], way: 1 | -1): number {
  let best = -1;
  let worst = -Infinity;
  counts.forEach((count, index) => {
    const error = way * (quotas[index]! - count);
    if (error > worst && (way === 1 || count > 1)) [best, worst] = [index, error];
  });
  assert(best >= 0, "a cut with at most as many stages as layers exists");
  return best;
}
