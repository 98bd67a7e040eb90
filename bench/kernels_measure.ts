// Times every kernel of a micro-batch on one device, in a Deno process or in a tab; the shapes are the engine's own.
// It prints nothing and opens no device. Buffers hold random values: what is timed does not depend on them.
import { arenaLimits, tensorOf, type TensorRequest } from "../peer/gpu/arena.ts";
import type { GpuDevice } from "../peer/gpu/device.ts";
import { tokenLookup } from "../peer/gpu/kernels/embedding.ts";
import { type MatmulChoice, matmulTraits, presumedChoice } from "../peer/gpu/kernels/matmul.ts";
import type { DispatchPlan } from "../peer/gpu/program.ts";
import type { StageBuild } from "../peer/engine/engine.ts";
import type { AdapterTraits } from "../peer/engine/wgsl_names.ts";
import { backwardName, forwardName, planStage, weightGradName } from "../peer/engine/wgsl_plan.ts";
import { wholeModel } from "../peer/model/layout.ts";
import type { ModelSpec } from "../peer/wire/run.ts";
import { CasesProgram, enoughRepeats, msOfOne, type Repeatable } from "./engine_program.ts";
import { median } from "./support.ts";

/** The demo's block and its two ends: B 8, T 64, C 64, H 4, Hk 2, D 16, I 192, V 83. */
export const DEMO_SPEC: ModelSpec = {
  vocab_size: 83,
  block_size: 64,
  n_layer: 1,
  n_head: 4,
  n_kv_head: 2,
  n_embd: 64,
  n_inner: 192,
  tie_word_embeddings: false,
  rope_theta: 10_000,
  norm_eps: 1e-5,
};
export const DEMO_BATCH = 8;

/** One kernel with one shape, and how often a micro-batch (F, B and W) runs it. */
export interface KernelCase {
  name: string;
  count: number;
  dispatch: DispatchPlan;
}

export interface KernelTime {
  name: string;
  count: number;
  /** Milliseconds of one dispatch, the median of the rounds. */
  ms: number;
  /** Multiplications and additions of one dispatch; 0 where they are not what takes the time. */
  flops: number;
  /** Read and written by one dispatch, each bound range once. */
  bytes: number;
}

export interface Timings {
  adapter: string;
  times: KernelTime[];
}

export interface KernelCases {
  tensors: readonly TensorRequest[];
  cases: KernelCase[];
}

/** The kernels of one micro-batch of the demo's model. */
export function demoCases(adapter: AdapterTraits): KernelCases {
  return casesOf({
    ...{ spec: DEMO_SPEC, stage: wholeModel(DEMO_SPEC), batchSize: DEMO_BATCH, slots: 1 },
    ...{ codecForward: "raw32", codecBackward: "raw32" },
  }, adapter);
}

/** The kernels of one micro-batch (F, B and W) of a stage, in the order of their first run. */
export function casesOf(build: StageBuild, adapter: AdapterTraits): KernelCases {
  const { plan } = planStage(build, adapter);
  const cases = new Map<string, KernelCase>();
  for (const operation of [forwardName(0), backwardName(0), weightGradName(0)]) {
    for (const dispatch of plan.operations.get(operation)?.dispatches ?? []) {
      const name = caseName(dispatch);
      const known = cases.get(name);
      if (known) known.count++;
      else cases.set(name, { name, count: 1, dispatch });
    }
  }
  return { tensors: plan.tensors, cases: [...cases.values()] };
}

/** A product's name carries its shape, because one kernel serves several. */
function caseName({ spec, params: { M, N, K } }: DispatchPlan): string {
  return M === undefined ? spec.name : `${spec.name} ${M}x${N}x${K}`;
}

/** Products of the causal half of the scores: q k and p v; for dq, q k, dO v and dS k; for dk and dv, one more. */
const ATTENTION_PRODUCTS = [
  [/^attention_forward/, 2],
  [/^attention_query_grad/, 3],
  [/^attention_key_?value_grad/, 4],
] as const;

export function flopsOf({ spec, params }: DispatchPlan): number {
  const { M = 0, N = 0, K = 0, R = 0, T = 0, H = 0, D = 0 } = params;
  if (/^matmul_(nn|nt|tn)/.test(spec.name)) return 2 * M * N * K;
  const products = ATTENTION_PRODUCTS.find(([name]) => name.test(spec.name))?.[1] ?? 0;
  return 2 * products * R * H * D * (T + 1) / 2;
}

/** Bytes of the ranges that a dispatch binds; one that is bound twice is not moved twice. */
export function bytesOf({ spec, tensors }: DispatchPlan, requests: readonly TensorRequest[]): number {
  const sizes = new Map(requests.map(({ name, bytes }) => [name, bytes]));
  const ranges = new Map<string, number>();
  for (const { name } of spec.bindings.slice(1)) {
    const ref = tensors[name];
    if (ref === undefined) throw new Error(`${spec.name} has no tensor for ${name}`);
    const { offset, bytes } = typeof ref === "string" ? { offset: 0, bytes: sizes.get(ref) ?? 0 } : ref;
    ranges.set(`${tensorOf(ref)} ${offset}`, bytes);
  }
  return [...ranges.values()].reduce((total, bytes) => total + bytes, 0);
}

/** What the engine knows of a device when it chooses kernels; without `matmul`, what it presumes of products. */
export function traitsOf(gpu: GpuDevice, matmul: MatmulChoice = presumedChoice(matmulTraits(gpu))) {
  return { software: gpu.software, matmul, limits: arenaLimits(gpu.limits) } satisfies AdapterTraits;
}

/** Times the demo's kernels as the engine would choose them for this device. */
export async function timeDemo(gpu: GpuDevice, rounds: number): Promise<Timings> {
  return await timeCases(gpu, demoCases(traitsOf(gpu)), { rounds, vocabulary: DEMO_SPEC.vocab_size });
}

export interface TimingOptions {
  rounds: number;
  /** Ids in the tensors that hold ids stay below this. */
  vocabulary: number;
  /** How one run of a case is timed; default: by the clock, without the wait for its end. */
  msOf?: (work: Repeatable, repeats: number) => Promise<number>;
}

/** Rounds go through all cases in turn, so that a machine that gets slower or faster treats all alike. */
export async function timeCases(
  gpu: GpuDevice,
  { tensors, cases }: KernelCases,
  { rounds, vocabulary, msOf = msOfOne }: TimingOptions,
): Promise<Timings> {
  const dispatches = new Map(cases.map(({ name, dispatch }) => [name, [dispatch]]));
  const program = await CasesProgram.build(gpu, "kernels", { tensors, cases: dispatches });
  try {
    for (const { name, bytes } of tensors) program.fill(name, content(name, bytes, vocabulary));
    const samples = cases.map((): number[] => []);
    const works = cases.map(({ name }) => program.repeatable(name));
    const repeats: number[] = [];
    for (const work of works) repeats.push(await enoughRepeats(work));
    for (let round = 0; round < rounds; round++) {
      for (const [i, work] of works.entries()) samples[i]!.push(await msOf(work, repeats[i]!));
    }
    const times = cases.map(({ name, count, dispatch }, i) => {
      const work = { flops: flopsOf(dispatch), bytes: bytesOf(dispatch, tensors) };
      return { name, count, ms: median(samples[i]!), ...work };
    });
    return { adapter: `${gpu.adapterName} (${gpu.provider})`, times };
  } finally {
    program.destroy();
  }
}

/** Rows by token as the engine uploads them, for as many rows as the tensor has room for. */
function lookupContent(words: number, vocabulary: number): Float32Array<ArrayBuffer> {
  const rows = words - 1 > 3 * vocabulary ? words - 1 - 2 * vocabulary : (words - 1) / 3;
  const lookup = tokenLookup(
    Uint32Array.from({ length: rows }, (_, row) => (row * 37) % vocabulary),
    vocabulary,
  );
  return new Float32Array(lookup.buffer as ArrayBuffer);
}

/** Values in [-1, 1), and ids below the vocabulary's size where ids belong. */
function content(tensor: string, bytes: number, vocabulary: number): Float32Array<ArrayBuffer> {
  if (tensor.endsWith("lookup")) return lookupContent(bytes / 4, vocabulary);
  const ids = /tokens|targets/.test(tensor);
  const words = new Uint32Array(bytes / 4);
  const values = new Float32Array(words.buffer);
  let state = 1;
  for (let i = 0; i < words.length; i++) {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    if (ids) words[i] = (state >>> 8) % vocabulary;
    else values[i] = (state >>> 8) / 2 ** 23 - 1;
  }
  return values;
}
