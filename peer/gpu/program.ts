// Operations compiled into fixed dispatch lists over one arena. All GPU objects are made while building; running
// an operation is one encoder, one compute pass, one submit and at most one readback. Operations do not overlap.
import { stagingPieces, UNIFORM_BYTES } from "../model/stage_memory.ts";
import { TENSOR_ALIGN_BYTES } from "../model/stage_tensors.ts";
import { ShoalError } from "../wire/errors.ts";
import {
  Arena,
  arenaLimits,
  type ArenaPlan,
  planArena,
  tensorOf,
  type TensorRange,
  type TensorRef,
  type TensorRequest,
} from "./arena.ts";
import { BufferUsage } from "./constants.ts";
import type { GpuDevice } from "./device.ts";
import type { KernelSpec } from "./kernel.ts";
import { compileKernel, type Kernel, packParams } from "./pipeline.ts";
import { Staging } from "./staging.ts";

/**
 * Longest single write. A write goes through memory of its own, and a long one through fresh pages: 100 MB in one piece
 * took 0.7 to 1.3 s with Deno's built-in WebGPU, in pieces of this size 0.1 s, through a buffer mapped at creation 3 to 4 s.
 */
const UPLOAD_PIECE_BYTES = 4 << 20;

/** One kernel run: parameters and a tensor for every binding after `params`. */
export interface DispatchPlan {
  spec: KernelSpec;
  params: Readonly<Record<string, number>>;
  tensors: Readonly<Record<string, TensorRef>>;
  overrides?: Readonly<Record<string, number>>;
}

export interface OperationPlan {
  /** Set to zero before the pass. */
  clears?: readonly TensorRef[];
  dispatches: readonly DispatchPlan[];
  /** How many of them, the last ones, only make what is brought back fit to travel. Default none. */
  tail?: number;
  /** Brought back to the CPU after the pass, one after the other. */
  readback?: TensorRef | readonly TensorRef[];
}

export interface ProgramPlan {
  label: string;
  tensors: readonly TensorRequest[];
  operations: ReadonlyMap<string, OperationPlan>;
}

interface Step {
  pipeline: GPUComputePipeline;
  bindGroup: GPUBindGroup;
  workgroups: [number, number, number];
}

interface Operation {
  label: string;
  clears: TensorRange[];
  steps: Step[];
  tail: number;
  readback: TensorRange[];
}

/** Where everything of a plan lies, known without a device. */
interface Layout {
  arena: ArenaPlan;
  uniforms: { bytes: Uint8Array<ArrayBuffer>; offsets: Map<DispatchPlan, { offset: number; size: number }> };
  readbackBytes: number;
}

export class Program {
  readonly #gpu: GpuDevice;
  readonly #arena: Arena;
  readonly #staging: Staging;
  readonly #uniforms: GPUBuffer;
  #operations = new Map<string, Operation>();

  private constructor(gpu: GpuDevice, arena: Arena, buffers: { staging: Staging; uniforms: GPUBuffer }) {
    this.#gpu = gpu;
    this.#arena = arena;
    this.#staging = buffers.staging;
    this.#uniforms = buffers.uniforms;
  }

  /** Errors: shader-invalid, out-of-memory, internal for a plan that WebGPU refuses. */
  static async build(gpu: GpuDevice, plan: ProgramPlan): Promise<Program> {
    const { device, limits } = gpu;
    const layout = layOut(plan, limits);
    const arena = await Arena.allocate(gpu, plan.label, layout.arena);
    device.pushErrorScope("out-of-memory");
    const staging = new Staging(gpu, plan.label, stagingPieces(layout.readbackBytes));
    const uniforms = device.createBuffer({
      label: `${plan.label} uniforms`,
      size: UNIFORM_BYTES,
      usage: BufferUsage.uniform | BufferUsage.copyDst,
    });
    const error = await device.popErrorScope();
    const program = new Program(gpu, arena, { staging, uniforms });
    try {
      if (error) throw outOfMemory(plan.label, layout.readbackBytes, error);
      device.queue.writeBuffer(uniforms, 0, layout.uniforms.bytes);
      await program.#compile(plan, layout);
      return program;
    } catch (error) {
      program.destroy();
      throw error;
    }
  }

  async #compile(plan: ProgramPlan, layout: Layout): Promise<void> {
    const { device } = this.#gpu;
    const dispatches = [...plan.operations.values()].flatMap((operation) => operation.dispatches);
    const compiling = dispatches.map(({ spec, overrides }) => compileKernel(device, spec, overrides));
    const kernels = new Map((await Promise.all(compiling)).map((kernel, i) => [dispatches[i]!, kernel]));
    // Nothing awaits inside the scope: scopes form one stack per device, which other programs may share.
    device.pushErrorScope("validation");
    for (const [name, operation] of plan.operations) {
      const { clears = [], dispatches, tail = 0 } = operation;
      this.#operations.set(name, {
        label: `${plan.label} ${name}`,
        clears: clears.map((ref) => this.#arena.range(ref)),
        steps: dispatches.map((dispatch) => this.#step(dispatch, kernels.get(dispatch)!, layout)),
        tail,
        readback: refsOf(operation.readback).map((ref) => this.#arena.range(ref)),
      });
    }
    const error = await device.popErrorScope();
    if (error) throw new ShoalError("internal", `WebGPU refuses ${plan.label}: ${error.message}`);
  }

  #step(dispatch: DispatchPlan, kernel: Kernel, layout: Layout): Step {
    const { spec, params, tensors } = dispatch;
    const entries = spec.bindings.map(({ name }, binding) => {
      if (binding === 0) {
        return { binding, resource: { buffer: this.#uniforms, ...layout.uniforms.offsets.get(dispatch)! } };
      }
      const ref = tensors[name];
      if (ref === undefined) throw new ShoalError("internal", `${spec.name} has no tensor for ${name}`);
      return { binding, resource: this.#arena.range(ref) };
    });
    return {
      pipeline: kernel.pipeline,
      bindGroup: this.#gpu.device.createBindGroup({ label: spec.name, layout: kernel.layout, entries }),
      workgroups: spec.workgroups(params, kernel.overrides),
    };
  }

  /** Queues bytes for the start of a tensor; they arrive before the next operation. A multiple of 4 bytes. */
  upload(ref: TensorRef, bytes: Uint8Array): void {
    const { buffer, offset, size } = this.#arena.range(ref);
    if (bytes.byteLength > size) {
      throw new ShoalError("internal", `${bytes.byteLength} bytes do not fit ${tensorOf(ref)} of ${size}`);
    }
    for (let at = 0; at < bytes.byteLength; at += UPLOAD_PIECE_BYTES) {
      const piece = bytes.subarray(at, at + UPLOAD_PIECE_BYTES) as Uint8Array<ArrayBuffer>;
      this.#gpu.device.queue.writeBuffer(buffer, offset + at, piece);
    }
  }

  /**
   * Runs an operation; resolves to a copy of its readback, or to no bytes at once after the submit. With `computed` it stops
   * before the operation's tail, calls it, and goes on: to tell computing from what follows costs that stop.
   */
  async run(name: string, computed?: () => void): Promise<ArrayBuffer> {
    const operation = this.#operations.get(name);
    if (!operation) throw new ShoalError("internal", `no operation ${name}`);
    const { queue } = this.#gpu.device;
    const { label, clears, steps, tail, readback } = operation;
    const first = computed === undefined ? steps.length : steps.length - tail;
    const begun = this.#encode(label, steps.slice(0, first), clears);
    if (computed === undefined) return await this.#staging.submitAndRead(begun, readback, label);
    queue.submit([begun.finish()]);
    await queue.onSubmittedWorkDone();
    computed();
    return await this.#staging.submitAndRead(this.#encode(label, steps.slice(first), []), readback, label);
  }

  #encode(label: string, steps: readonly Step[], clears: readonly TensorRange[]): GPUCommandEncoder {
    const encoder = this.#gpu.device.createCommandEncoder({ label });
    for (const { buffer, offset, size } of clears) encoder.clearBuffer(buffer, offset, size);
    const pass = encoder.beginComputePass({ label });
    for (const { pipeline, bindGroup, workgroups } of steps) {
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, bindGroup);
      pass.dispatchWorkgroups(...workgroups);
    }
    pass.end();
    return encoder;
  }

  destroy(): void {
    this.#operations.clear();
    this.#arena.destroy();
    this.#staging.destroy();
    this.#uniforms.destroy();
  }
}

function outOfMemory(label: string, bytes: number, cause: unknown): ShoalError {
  const text = `${label} needs staging for readbacks of ${bytes} bytes; lend less or split further`;
  return new ShoalError("out-of-memory", text, { cause });
}

function layOut(plan: ProgramPlan, limits: GPUSupportedLimits): Layout {
  const dispatches = [...plan.operations.values()].flatMap((operation) => operation.dispatches);
  const arena = planArena(plan.tensors, conflictsOf(dispatches), arenaLimits(limits));
  return { arena, uniforms: layoutUniforms(plan), readbackBytes: readbackBytes(plan) };
}

/** Pairs of tensors that one dispatch reads and writes. */
function* conflictsOf(dispatches: readonly DispatchPlan[]): Iterable<[string, string]> {
  for (const { spec, tensors } of dispatches) {
    const named = spec.bindings.slice(1).map(({ name, type }) => ({
      type,
      tensor: tensorOf(tensors[name] ?? name),
    }));
    for (const read of named) {
      if (read.type !== "read-only-storage") continue;
      for (const write of named) if (write.type === "storage") yield [read.tensor, write.tensor];
    }
  }
}

/** Equal parameter blocks (the same layer shape, another slot) share one place. */
function layoutUniforms(plan: ProgramPlan): Layout["uniforms"] {
  const blocks = new Map<string, { offset: number; bytes: Uint8Array }>();
  const offsets = new Map<DispatchPlan, { offset: number; size: number }>();
  for (const dispatch of [...plan.operations.values()].flatMap((operation) => operation.dispatches)) {
    const bytes = packParams(dispatch.spec, dispatch.params);
    const key = bytes.join();
    const block = blocks.get(key) ?? { offset: blocks.size * TENSOR_ALIGN_BYTES, bytes };
    blocks.set(key, block);
    offsets.set(dispatch, { offset: block.offset, size: bytes.byteLength });
  }
  const needed = blocks.size * TENSOR_ALIGN_BYTES;
  if (needed > UNIFORM_BYTES) {
    throw new ShoalError(
      "internal",
      `${blocks.size} parameter blocks exceed the ${UNIFORM_BYTES} bytes reserved`,
    );
  }
  const all = new Uint8Array(Math.max(TENSOR_ALIGN_BYTES, needed));
  for (const { offset, bytes } of blocks.values()) all.set(bytes, offset);
  return { bytes: all, offsets };
}

function refsOf(readback: OperationPlan["readback"] = []): readonly TensorRef[] {
  return typeof readback === "string" || "tensor" in readback ? [readback] : readback;
}

/** The longest readback of an operation. */
export function readbackBytes(plan: ProgramPlan): number {
  const tensors = new Map(plan.tensors.map(({ name, bytes }) => [name, bytes]));
  const bytesOf = (ref: TensorRef) => typeof ref === "string" ? tensors.get(ref) ?? 0 : ref.bytes;
  const sizes = [...plan.operations.values()].map(({ readback }) =>
    refsOf(readback).reduce((sum, ref) => sum + bytesOf(ref), 0)
  );
  return Math.max(0, ...sizes);
}
