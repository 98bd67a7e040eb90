// Times every kernel of a micro-batch on one device, in a Deno process or in a tab; the shapes are the engine's own.
// It prints nothing and opens no device. Buffers hold random values: what is timed does not depend on them.
import { tensorOf, type TensorRef, type TensorRequest } from "../peer/gpu/arena.ts";
import type { GpuDevice } from "../peer/gpu/device.ts";
import { wideTiles } from "../peer/gpu/kernels/matmul.ts";
import { type DispatchPlan, type OperationPlan, Program } from "../peer/gpu/program.ts";
import type { AdapterTraits } from "../peer/engine/wgsl_names.ts";
import { backwardName, forwardName, planStage, weightGradName } from "../peer/engine/wgsl_plan.ts";
import { wholeModel } from "../peer/model/layout.ts";
import type { ModelSpec } from "../peer/wire/run.ts";

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

/** Dispatches in one submit. The first count that takes SUBMIT_MS is used, so that the wait for the end weighs little. */
const REPEATS = [1, 4, 16, 64];
const SUBMIT_MS = 60;

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
}

export interface Timings {
  adapter: string;
  times: KernelTime[];
}

/** The kernels of one micro-batch, in the order of their first run. */
export function demoCases(
  adapter: AdapterTraits,
): { tensors: readonly TensorRequest[]; cases: KernelCase[] } {
  const { plan } = planStage({
    ...{ spec: DEMO_SPEC, stage: wholeModel(DEMO_SPEC), batchSize: DEMO_BATCH, slots: 1 },
    ...{ codecForward: "raw32", codecBackward: "raw32" },
  }, adapter);
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

export function flopsOf({ spec, params }: DispatchPlan): number {
  const { M = 0, N = 0, K = 0, R = 0, C = 0, V = 0, tile = 0 } = params;
  if (spec.name.startsWith("matmul")) return 2 * M * N * K;
  return spec.name.startsWith("head") ? 2 * R * C * (V + tile) : 0;
}

/** Times the demo's kernels as the engine would choose them for this device. */
export async function timeDemo(gpu: GpuDevice, rounds: number): Promise<Timings> {
  const traits = { software: gpu.software, wideTiles: wideTiles(gpu.adapterName) };
  return await timeCases(gpu, demoCases(traits), rounds);
}

/** Rounds go through all cases in turn, so that a machine that gets slower or faster treats all alike. */
export async function timeCases(
  gpu: GpuDevice,
  { tensors, cases }: { tensors: readonly TensorRequest[]; cases: readonly KernelCase[] },
  rounds: number,
): Promise<Timings> {
  const program = await Program.build(gpu, { label: "kernels", tensors, operations: operationsOf(cases) });
  try {
    fill(program, tensors);
    const samples = cases.map((): number[] => []);
    const repeats: number[] = [];
    for (const i of cases.keys()) repeats.push(await enoughRepeats(program, i));
    for (let round = 0; round < rounds; round++) {
      const wait = await elapsed(program, WAIT);
      for (const [i, count] of repeats.entries()) {
        samples[i]!.push(Math.max(0, await elapsed(program, operationName(i, count)) - wait) / count);
      }
    }
    const times = cases.map(({ name, count, dispatch }, i) => {
      return { name, count, ms: median(samples[i]!), flops: flopsOf(dispatch) };
    });
    return { adapter: `${gpu.adapterName} (${gpu.provider})`, times };
  } finally {
    program.destroy();
  }
}

/** Runs nothing and reads back, which every operation pays once. */
const WAIT = "wait";

function operationName(index: number, repeats: number): string {
  return `${index} x ${repeats}`;
}

/** Each reads back a few bytes that its kernel wrote, so that its end can be awaited. */
function operationsOf(cases: readonly KernelCase[]): Map<string, OperationPlan> {
  const operations = new Map<string, OperationPlan>();
  for (const [i, { dispatch }] of cases.entries()) {
    const readback = fewBytesOf(dispatch);
    for (const repeats of REPEATS) {
      const dispatches = new Array<DispatchPlan>(repeats).fill(dispatch);
      operations.set(operationName(i, repeats), { dispatches, readback });
    }
    operations.set(WAIT, { dispatches: [], readback });
  }
  return operations;
}

function fewBytesOf({ spec, tensors }: DispatchPlan): TensorRef {
  const written = spec.bindings.find(({ type }) => type === "storage");
  const ref = tensors[written?.name ?? ""];
  if (ref === undefined) throw new Error(`${spec.name} writes no tensor`);
  return { tensor: tensorOf(ref), offset: 0, bytes: 4 };
}

/** The first run compiles what a driver leaves until then; the second one counts. */
async function enoughRepeats(program: Program, index: number): Promise<number> {
  for (const repeats of REPEATS) {
    await program.run(operationName(index, repeats));
    if (await elapsed(program, operationName(index, repeats)) >= SUBMIT_MS) return repeats;
  }
  return REPEATS.at(-1)!;
}

async function elapsed(program: Program, operation: string): Promise<number> {
  const start = performance.now();
  await program.run(operation);
  return performance.now() - start;
}

/** Values in [-1, 1), and ids below the vocabulary's size where ids belong. */
function fill(program: Program, tensors: readonly TensorRequest[]): void {
  let state = 1;
  for (const { name, bytes } of tensors) {
    const ids = /tokens|targets/.test(name);
    const words = new Uint32Array(bytes / 4);
    const values = new Float32Array(words.buffer);
    for (let i = 0; i < words.length; i++) {
      state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
      if (ids) words[i] = (state >>> 8) % DEMO_SPEC.vocab_size;
      else values[i] = (state >>> 8) / 2 ** 23 - 1;
    }
    program.upload(name, new Uint8Array(words.buffer));
  }
}

export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)] ?? NaN;
}
