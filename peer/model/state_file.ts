// A stage's training state as a safetensors file, and any stage's state out of files written with any other cut.
// Not storage (coordinator/store). Weights carry Hugging Face's names, moments and exponents a suffix; a file from
// elsewhere is refused with a code unless every needed tensor is there once, in shape and in range.
import { EXPONENT_LIMIT } from "../exact/optimizer.ts";
import { blockCount, createState, type StageState } from "../exact/state.ts";
import { assert, type ErrorCode, refuse, type Result } from "../wire/errors.ts";
import type { ModelSpec, StageSpec } from "../wire/run.ts";
import { initParams } from "./init.ts";
import { headDim, isTied, stageLayout, type TensorLayout, wholeModel } from "./layout.ts";
import {
  decodeSafetensors,
  encodeSafetensors,
  type Tensor,
  type TensorMap,
  tensorOf,
  toF32,
  toI16,
} from "./safetensors.ts";

/** Re-exported for readers of files that do no arithmetic. */
export { stateHash } from "../exact/hash.ts";
export type { StageState };

export const STATE_FORMAT_VERSION = "1";

/** Suffixes of the moments are PyTorch's names of Adam's state. */
const SUFFIX = { m: ".exp_avg", v: ".exp_avg_sq", exponents: ".grad_exponent" } as const;
/** Suffixes of what a state has besides with the schedule 2bw: the weights one step before, and their exponents. */
const BEFORE = { params: ".before", exponents: ".before_grad_exponent" } as const;

/** State before the first step: initial parameters of the run's seed, zero moments and exponents. */
export function initialState(spec: ModelSpec, stage: StageSpec, seed: number): StageState {
  return createState(stageLayout(spec, stage), initParams(spec, stage, seed));
}

/** A state whose parameters are still to be filled in: all zero, before the first step. */
export function blankState(spec: ModelSpec, stage: StageSpec): StageState {
  const layout = stageLayout(spec, stage);
  return createState(layout, new Float32Array(layout.size));
}

/** All tensors of the state with metadata {format, format_version, step, delay?}; `format` is what transformers insists on. */
export function stateTensors(state: StageState): TensorMap {
  const tensors = new Map<string, Tensor>();
  let block = 0;
  for (const { name, shape, offset, size } of state.layout.tensors) {
    const end = offset + size;
    const blocks = blockCount(size);
    tensors.set(name, tensorOf(state.params.subarray(offset, end), shape));
    tensors.set(name + SUFFIX.m, tensorOf(state.m.subarray(offset, end), shape));
    tensors.set(name + SUFFIX.v, tensorOf(state.v.subarray(offset, end), shape));
    tensors.set(name + SUFFIX.exponents, tensorOf(state.exponents.subarray(block, block + blocks), [blocks]));
    if (state.before !== undefined) {
      const { params, exponents } = state.before;
      tensors.set(name + BEFORE.params, tensorOf(params.subarray(offset, end), shape));
      tensors.set(name + BEFORE.exponents, tensorOf(exponents.subarray(block, block + blocks), [blocks]));
    }
    block += blocks;
  }
  const metadata = { format: "pt", format_version: STATE_FORMAT_VERSION, step: String(state.step) };
  return { metadata: state.before === undefined ? metadata : { ...metadata, delay: "1" }, tensors };
}

/** One stage's state as safetensors bytes. */
export function encodeState(state: StageState): Uint8Array<ArrayBuffer> {
  return encodeSafetensors(stateTensors(state));
}

/** The state of `stage` out of one file that contains it. Refuses with bad-state. */
export function decodeState(spec: ModelSpec, stage: StageSpec, bytes: Uint8Array): Result<StageState> {
  const file = decodeSafetensors(bytes);
  return file.ok ? mergeStates(spec, [file.value], stage) : file;
}

/**
 * The state of `stage` out of files that were written with any cut into stages, by tensor name. Refuses with `code`
 * (default bad-state): differing steps or versions, a missing, repeated, mis-shaped or non-finite tensor. Only a tied
 * embedding may occur twice, and then its copies must agree bit for bit.
 */
export function mergeStates(
  spec: ModelSpec,
  files: readonly TensorMap[],
  stage: StageSpec,
  code: ErrorCode = "bad-state",
): Result<StageState> {
  const step = commonStep(files);
  if (typeof step === "string") return refuse(code, step);
  const layout = stageLayout(spec, stage);
  const state = createState(layout, new Float32Array(layout.size));
  state.step = step;
  if (files.some(({ metadata }) => metadata.delay === "1")) {
    state.before = { params: new Float32Array(layout.size), exponents: state.exponents.slice() };
  }
  let block = 0;
  for (const tensor of layout.tensors) {
    const problem = fillTensor(state, files, { tensor, block, twice: isTied(spec, tensor.name) });
    if (problem !== null) return refuse(code, problem);
    block += blockCount(tensor.size);
  }
  return { ok: true, value: state };
}

/**
 * A file with the weights alone, as inference tools read them. `files` together hold the whole model, in any cut.
 * Refuses with bad-state like mergeStates.
 */
export function encodeWeights(spec: ModelSpec, files: readonly TensorMap[]): Result<Uint8Array<ArrayBuffer>> {
  const layout = stageLayout(spec, wholeModel(spec));
  const tensors = new Map<string, Tensor>();
  for (const tensor of layout.tensors) {
    const found = findOne(files, tensor.name, {
      shape: tensor.shape,
      dtype: "F32",
      twice: isTied(spec, tensor.name),
    });
    if (typeof found === "string") return refuse("bad-state", found);
    tensors.set(tensor.name, found);
  }
  return { ok: true, value: encodeSafetensors({ metadata: { format: "pt" }, tensors }) };
}

/** Hugging Face's config.json for LlamaForCausalLM, beside the file of encodeWeights. */
export function llamaConfig(spec: ModelSpec): Record<string, unknown> {
  return {
    architectures: ["LlamaForCausalLM"],
    model_type: "llama",
    torch_dtype: "float32",
    vocab_size: spec.vocab_size,
    max_position_embeddings: spec.block_size,
    num_hidden_layers: spec.n_layer,
    num_attention_heads: spec.n_head,
    num_key_value_heads: spec.n_kv_head,
    head_dim: headDim(spec),
    hidden_size: spec.n_embd,
    intermediate_size: spec.n_inner,
    hidden_act: "silu",
    rms_norm_eps: spec.norm_eps,
    rope_theta: spec.rope_theta,
    tie_word_embeddings: spec.tie_word_embeddings,
    attention_bias: false,
    mlp_bias: false,
    // Said outright, because Llama's defaults are tokens 1 and 2, which here are characters: text would end at one of them.
    bos_token_id: null,
    eos_token_id: null,
    pad_token_id: null,
  };
}

function commonStep(files: readonly TensorMap[]): number | string {
  const first = files[0];
  if (first === undefined) return "there is no state file";
  for (const { metadata } of files) {
    const { format_version: version, step } = metadata;
    if (version !== STATE_FORMAT_VERSION) {
      return `state format version ${quoted(version)} is not ${STATE_FORMAT_VERSION}`;
    }
    if (step === undefined || !/^\d{1,9}$/.test(step)) return `step ${quoted(step)} is not a step number`;
    if (step !== first.metadata.step) {
      return `the files are of steps ${quoted(first.metadata.step)} and ${quoted(step)}`;
    }
  }
  return Number(first.metadata.step);
}

interface Slot {
  tensor: TensorLayout;
  /** First exponent of the tensor. */
  block: number;
  /** May occur in two files. */
  twice: boolean;
}

/** Copies one tensor's weights, moments and exponents into the state, or says what is wrong with them. */
function fillTensor(state: StageState, files: readonly TensorMap[], slot: Slot): string | null {
  const { tensor: { name, shape, offset }, twice } = slot;
  const { before } = state;
  const floats: [string, Float32Array][] = [["", state.params], [SUFFIX.m, state.m], [SUFFIX.v, state.v]];
  if (before !== undefined) floats.push([BEFORE.params, before.params]);
  for (const [suffix, target] of floats) {
    const found = findOne(files, name + suffix, { shape, dtype: "F32", twice });
    if (typeof found === "string") return found;
    const values = toF32(found);
    const least = suffix === SUFFIX.v ? 0 : -Infinity;
    const wrong = values.find((value) => !(Number.isFinite(value) && value >= least));
    if (wrong !== undefined) return `tensor ${name + suffix} contains ${wrong}`;
    target.set(values, offset);
  }
  const own = fillExponents(state.exponents, files, { ...slot, suffix: SUFFIX.exponents });
  if (own !== null || before === undefined) return own;
  return fillExponents(before.exponents, files, { ...slot, suffix: BEFORE.exponents });
}

function fillExponents(
  target: Int16Array,
  files: readonly TensorMap[],
  { tensor, block, twice, suffix }: Slot & { suffix: string },
): string | null {
  const name = tensor.name + suffix;
  const found = findOne(files, name, { shape: [blockCount(tensor.size)], dtype: "I16", twice });
  if (typeof found === "string") return found;
  const exponents = toI16(found);
  const wrong = exponents.find((value) => Math.abs(value) > EXPONENT_LIMIT);
  if (wrong !== undefined) return `tensor ${name} contains ${wrong}, allowed is ±${EXPONENT_LIMIT}`;
  target.set(exponents, block);
  return null;
}

interface Wanted {
  shape: readonly number[];
  dtype: Tensor["dtype"];
  twice: boolean;
}

function findOne(files: readonly TensorMap[], name: string, wanted: Wanted): Tensor | string {
  const all = files.flatMap((file) => file.tensors.get(name) ?? []);
  const first = all[0];
  if (first === undefined) return `tensor ${name} is missing`;
  if (all.length > (wanted.twice ? 2 : 1)) return `tensor ${name} occurs ${all.length} times`;
  for (const tensor of all) {
    if (tensor.dtype !== wanted.dtype || String(tensor.shape) !== String(wanted.shape)) {
      return `tensor ${name} is ${tensor.dtype} [${tensor.shape}], expected ${wanted.dtype} [${wanted.shape}]`;
    }
    if (!sameBytes(first.bytes, tensor.bytes)) return `the two copies of tensor ${name} differ`;
  }
  return first;
}

function sameBytes(a: Uint8Array, b: Uint8Array): boolean {
  assert(a.length === b.length, "equal shapes have equal sizes");
  return a === b || a.every((byte, i) => byte === b[i]);
}

function quoted(value: unknown): string {
  return (JSON.stringify(value) ?? "(absent)").slice(0, 40);
}
