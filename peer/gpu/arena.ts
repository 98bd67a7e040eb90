// Named tensors inside few large buffers: a pure plan first, then its allocation. It frees nothing piecemeal.
// Two tensors of which one dispatch reads the first and writes the second never share a buffer, because WebGPU
// tracks usage per buffer. The bytes of the plan are the bytes allocated.
import { ShoalError } from "../wire/errors.ts";
import { paddedBytes, type TensorSize } from "../model/stage_tensors.ts";
import { BufferUsage } from "./constants.ts";
import type { GpuDevice } from "./device.ts";

export type TensorRequest = TensorSize;

export interface TensorPlace {
  /** Index into ArenaPlan.buffers. */
  buffer: number;
  offset: number;
  /** As requested; the place is padded to TENSOR_ALIGN_BYTES. */
  bytes: number;
}

export interface ArenaPlan {
  /** Size of each buffer in bytes. */
  buffers: number[];
  places: ReadonlyMap<string, TensorPlace>;
}

export interface ArenaLimits {
  bufferBytesMax: number;
  bindingBytesMax: number;
}

/** What WebGPU promises on every adapter. */
export const DEFAULT_LIMITS: Readonly<ArenaLimits> = {
  bufferBytesMax: 256 << 20,
  bindingBytesMax: 128 << 20,
};

export function arenaLimits(limits: GPUSupportedLimits): ArenaLimits {
  return { bufferBytesMax: limits.maxBufferSize, bindingBytesMax: limits.maxStorageBufferBindingSize };
}

/** Part of a tensor, in bytes from its start; whole tensors are named by their string alone. */
export interface TensorSlice {
  tensor: string;
  offset: number;
  bytes: number;
}

export type TensorRef = string | TensorSlice;

export function tensorOf(ref: TensorRef): string {
  return typeof ref === "string" ? ref : ref.tensor;
}

/**
 * First fit in the order of `requests`; `conflicts` are pairs that must lie in different buffers.
 * Errors: out-of-memory if a tensor exceeds the adapter's buffer or binding size.
 */
export function planArena(
  requests: readonly TensorRequest[],
  conflicts: Iterable<readonly [string, string]>,
  limits: ArenaLimits,
): ArenaPlan {
  const enemies = neighbours(conflicts);
  const buffers: { bytes: number; names: Set<string> }[] = [];
  const places = new Map<string, TensorPlace>();
  for (const { name, bytes } of requests) {
    const padded = paddedBytes(bytes);
    refuseTooLarge(name, padded, limits);
    if (places.has(name)) throw new ShoalError("internal", `tensor ${name} is requested twice`);
    const avoid = enemies.get(name) ?? new Set<string>();
    let index = buffers.findIndex((buffer) =>
      buffer.bytes + padded <= limits.bufferBytesMax && buffer.names.isDisjointFrom(avoid)
    );
    if (index < 0) index = buffers.push({ bytes: 0, names: new Set() }) - 1;
    const buffer = buffers[index]!;
    places.set(name, { buffer: index, offset: buffer.bytes, bytes });
    buffer.bytes += padded;
    buffer.names.add(name);
  }
  return { buffers: buffers.map((buffer) => buffer.bytes), places };
}

function neighbours(pairs: Iterable<readonly [string, string]>): Map<string, Set<string>> {
  const found = new Map<string, Set<string>>();
  for (const [a, b] of pairs) {
    if (a === b) throw new ShoalError("internal", `tensor ${a} is read and written through two bindings`);
    for (const [from, to] of [[a, b], [b, a]] as const) {
      const set = found.get(from) ?? new Set<string>();
      found.set(from, set.add(to));
    }
  }
  return found;
}

function refuseTooLarge(name: string, bytes: number, limits: ArenaLimits): void {
  const max = Math.min(limits.bufferBytesMax, limits.bindingBytesMax);
  if (bytes <= max) return;
  const remedy = "use a smaller batch_size or block_size, or more stages";
  throw new ShoalError(
    "out-of-memory",
    `tensor ${name} needs ${bytes} bytes, the adapter binds ${max}; ${remedy}`,
  );
}

/** A tensor's place on the device, ready for a bind group or a copy. */
export interface TensorRange {
  buffer: GPUBuffer;
  offset: number;
  size: number;
}

/** The buffers of a plan. Destroy it explicitly: collected buffers are returned late or never. */
export class Arena {
  readonly #plan: ArenaPlan;
  readonly #buffers: GPUBuffer[];

  private constructor(plan: ArenaPlan, buffers: GPUBuffer[]) {
    this.#plan = plan;
    this.#buffers = buffers;
  }

  /** Buffers start zeroed. Errors: out-of-memory with the bytes wanted. */
  static async allocate(gpu: GpuDevice, label: string, plan: ArenaPlan): Promise<Arena> {
    const usage = BufferUsage.storage | BufferUsage.copySrc | BufferUsage.copyDst;
    gpu.device.pushErrorScope("out-of-memory");
    const buffers = plan.buffers.map((size, i) =>
      gpu.device.createBuffer({ label: `${label} arena ${i}`, size, usage })
    );
    const error = await gpu.device.popErrorScope();
    if (!error) return new Arena(plan, buffers);
    for (const buffer of buffers) buffer.destroy();
    const bytes = plan.buffers.reduce((sum, size) => sum + size, 0);
    throw new ShoalError(
      "out-of-memory",
      `${label} needs ${bytes} bytes of GPU memory; lend less or split further`,
      {
        cause: error,
      },
    );
  }

  range(ref: TensorRef): TensorRange {
    const name = tensorOf(ref);
    const place = this.#plan.places.get(name);
    if (!place) throw new ShoalError("internal", `the arena holds no tensor ${name}`);
    const { offset, bytes } = typeof ref === "string" ? { offset: 0, bytes: place.bytes } : ref;
    if (offset < 0 || offset + bytes > place.bytes) {
      throw new ShoalError("internal", `bytes ${offset}..${offset + bytes} are outside tensor ${name}`);
    }
    return { buffer: this.#buffers[place.buffer]!, offset: place.offset + offset, size: bytes };
  }

  destroy(): void {
    for (const buffer of this.#buffers) buffer.destroy();
  }
}
