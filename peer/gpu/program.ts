// Operations compiled into fixed dispatch lists over one arena. All GPU objects are made while building; running
// an operation is one encoder, one compute pass, one submit and at most one readback. Operations do not overlap.
import { messageOf, ShoalError } from "../wire/errors.ts";
import {
  Arena,
  type ArenaPlan,
  planArena,
  tensorOf,
  type TensorRange,
  type TensorRef,
  type TensorRequest,
} from "./arena.ts";
import { alignUp, BINDING_ALIGN_BYTES, BufferUsage, MAP_READ } from "./constants.ts";
import type { GpuDevice } from "./device.ts";
import type { KernelSpec } from "./kernel.ts";
import { compileKernel, type Kernel, packParams } from "./pipeline.ts";

/** One kernel run: parameters and a tensor for every binding after `params`. */
export interface DispatchPlan {
  spec: KernelSpec;
  params: Readonly<Record<string, number>>;
  tensors: Readonly<Record<string, TensorRef>>;
  overrides?: Readonly<Record<string, number>>;
}

export interface OperationPlan {
  dispatches: readonly DispatchPlan[];
  /** Made after the pass, in order. */
  copies?: readonly { from: TensorRef; to: TensorRef }[];
  /** Brought back to the CPU after the copies. */
  readback?: TensorRef;
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
  steps: Step[];
  copies: { from: TensorRange; to: TensorRange }[];
  readback: TensorRange | undefined;
}

/** Where everything of a plan lies, known without a device. */
interface Layout {
  arena: ArenaPlan;
  uniforms: { bytes: Uint8Array<ArrayBuffer>; offsets: Map<DispatchPlan, { offset: number; size: number }> };
  stagingBytes: number;
}

/** Bytes besides the tensors: parameters of all dispatches, and the buffer that readbacks pass through. */
export function overheadBytes(plan: ProgramPlan): number {
  return layoutUniforms(plan).bytes.byteLength + stagingBytes(plan);
}

export class Program {
  readonly #gpu: GpuDevice;
  readonly #arena: Arena;
  readonly #staging: GPUBuffer;
  readonly #uniforms: GPUBuffer;
  #operations = new Map<string, Operation>();

  private constructor(gpu: GpuDevice, arena: Arena, buffers: { staging: GPUBuffer; uniforms: GPUBuffer }) {
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
    const staging = device.createBuffer({
      label: `${plan.label} staging`,
      size: layout.stagingBytes,
      usage: BufferUsage.mapRead | BufferUsage.copyDst,
    });
    const uniforms = device.createBuffer({
      label: `${plan.label} uniforms`,
      size: layout.uniforms.bytes.byteLength,
      usage: BufferUsage.uniform | BufferUsage.copyDst,
    });
    device.queue.writeBuffer(uniforms, 0, layout.uniforms.bytes);
    const program = new Program(gpu, arena, { staging, uniforms });
    try {
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
    for (const [name, { dispatches, copies = [], readback }] of plan.operations) {
      this.#operations.set(name, {
        label: `${plan.label} ${name}`,
        steps: dispatches.map((dispatch) => this.#step(dispatch, kernels.get(dispatch)!, layout)),
        copies: copies.map(({ from, to }) => ({ from: this.#arena.range(from), to: this.#arena.range(to) })),
        readback: readback === undefined ? undefined : this.#arena.range(readback),
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
    this.#gpu.device.queue.writeBuffer(buffer, offset, bytes as Uint8Array<ArrayBuffer>);
  }

  /** Runs an operation; resolves to a copy of its readback, or to no bytes at once after the submit. */
  async run(name: string): Promise<ArrayBuffer> {
    const operation = this.#operations.get(name);
    if (!operation) throw new ShoalError("internal", `no operation ${name}`);
    const { device } = this.#gpu;
    const { label, steps, copies, readback } = operation;
    const encoder = device.createCommandEncoder({ label });
    const pass = encoder.beginComputePass({ label });
    for (const { pipeline, bindGroup, workgroups } of steps) {
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, bindGroup);
      pass.dispatchWorkgroups(...workgroups);
    }
    pass.end();
    for (const { from, to } of copies) {
      encoder.copyBufferToBuffer(from.buffer, from.offset, to.buffer, to.offset, from.size);
    }
    const bytes = readback ? alignUp(readback.size, 4) : 0;
    if (readback) encoder.copyBufferToBuffer(readback.buffer, readback.offset, this.#staging, 0, bytes);
    device.queue.submit([encoder.finish()]);
    return bytes > 0 ? await this.#fetch(bytes, label) : new ArrayBuffer(0);
  }

  /** Errors: device-lost if the device goes while waiting; whatever the device refused before. */
  async #fetch(bytes: number, label: string): Promise<ArrayBuffer> {
    try {
      await this.#staging.mapAsync(MAP_READ, 0, bytes);
    } catch (cause) {
      const earlier = this.#gpu.failure();
      if (earlier) throw earlier;
      const text = `${label}: the GPU went away (${
        messageOf(cause)
      }); join again, the run continues without you`;
      throw new ShoalError("device-lost", text, { cause });
    }
    const copy = this.#staging.getMappedRange(0, bytes).slice(0);
    this.#staging.unmap();
    const failure = this.#gpu.failure();
    if (failure) throw failure;
    return copy;
  }

  destroy(): void {
    this.#operations.clear();
    this.#arena.destroy();
    this.#staging.destroy();
    this.#uniforms.destroy();
  }
}

function layOut(plan: ProgramPlan, limits: GPUSupportedLimits): Layout {
  const dispatches = [...plan.operations.values()].flatMap((operation) => operation.dispatches);
  const arena = planArena(plan.tensors, conflictsOf(dispatches), {
    bufferBytesMax: limits.maxBufferSize,
    bindingBytesMax: limits.maxStorageBufferBindingSize,
  });
  return { arena, uniforms: layoutUniforms(plan), stagingBytes: stagingBytes(plan) };
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
    const block = blocks.get(key) ?? { offset: blocks.size * BINDING_ALIGN_BYTES, bytes };
    blocks.set(key, block);
    offsets.set(dispatch, { offset: block.offset, size: bytes.byteLength });
  }
  const all = new Uint8Array(Math.max(1, blocks.size) * BINDING_ALIGN_BYTES);
  for (const { offset, bytes } of blocks.values()) all.set(bytes, offset);
  return { bytes: all, offsets };
}

/** The largest readback; never 0, which would be no buffer. */
function stagingBytes(plan: ProgramPlan): number {
  const tensors = new Map(plan.tensors.map(({ name, bytes }) => [name, bytes]));
  const sizes = [...plan.operations.values()].map(({ readback }) => {
    if (readback === undefined) return 0;
    return typeof readback === "string" ? tensors.get(readback) ?? 0 : readback.bytes;
  });
  return alignUp(Math.max(BINDING_ALIGN_BYTES, ...sizes), 4);
}
