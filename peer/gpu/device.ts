// Opens the one GPU device of a peer and says what it is. It knows no kernels and no model.
// Whatever adapter exists is taken, software adapters included; of two providers the quicker readback wins.
import { messageOf, ShoalError } from "../wire/errors.ts";
import { BufferUsage, MAP_READ } from "./constants.ts";

export type ProviderName = "builtin" | "dawn";

/** Copies timed per provider; the first ones pay for start-up, so the least counts. */
const LATENCY_SAMPLES = 4;
/** What adapters that compute on the CPU call themselves; only informs people and autotuning. */
const SOFTWARE_NAMES = /llvmpipe|lavapipe|swiftshader|software|basic render/i;
/** What some kernels use where it is there (KernelSpec.feature). */
const KERNEL_FEATURES: readonly GPUFeatureName[] = ["subgroups"];
const NO_ADAPTER_REMEDY = "update the graphics driver, enable WebGPU in the browser " +
  "(Chromium: --enable-unsafe-webgpu, Linux also --enable-features=Vulkan), or install Mesa's software Vulkan driver";

export interface OpenDeviceOptions {
  /** Default "auto": every provider present is measured. */
  provider?: "auto" | ProviderName;
  /** Loads Dawn outside a browser (provider_deno.ts); null if it does not load here. */
  dawn?: () => Promise<GPU | null>;
  /** Asked for where the adapter offers them; default none. */
  features?: readonly GPUFeatureName[];
  signal?: AbortSignal;
}

export interface GpuDevice {
  readonly device: GPUDevice;
  /** What a person reads, such as "llvmpipe (LLVM 15.0.6, 256 bits)". */
  readonly adapterName: string;
  readonly provider: ProviderName;
  readonly software: boolean;
  /** Waiting for the device is a busy loop of this provider: ask late (patience.ts). */
  readonly polls: boolean;
  readonly limits: GPUSupportedLimits;
  /** Settles once, with the reason, when the device is gone (also after destroy). */
  readonly lost: Promise<string>;
  /** The first error that no error scope caught; undefined while all is well. */
  failure(): ShoalError | undefined;
  destroy(): void;
}

/** Errors: no-adapter if no provider offers an adapter; the signal's reason if aborted. */
export async function openDevice(options: OpenDeviceOptions = {}): Promise<GpuDevice> {
  const { provider = "auto", signal } = options;
  const opened: GpuDevice[] = [];
  const failures: string[] = [];
  for (const name of ["builtin", "dawn"] as const) {
    if (provider !== "auto" && provider !== name) continue;
    if (signal?.aborted) break;
    try {
      const gpu = await openOne(name, options);
      if (gpu) opened.push(gpu);
    } catch (error) {
      failures.push(`${name}: ${messageOf(error)}`);
    }
  }
  if (signal?.aborted) {
    for (const gpu of opened) gpu.destroy();
    signal.throwIfAborted();
  }
  if (opened.length > 0) return await quicker(opened);
  const tried = [`provider ${provider}`, ...failures].join("; ");
  throw new ShoalError("no-adapter", `no WebGPU adapter (${tried}); ${NO_ADAPTER_REMEDY}`);
}

async function openOne(name: ProviderName, options: OpenDeviceOptions): Promise<GpuDevice | undefined> {
  const gpu = name === "builtin" ? globalThis.navigator?.gpu : await options.dawn?.();
  const adapter = await gpu?.requestAdapter({ powerPreference: "high-performance" });
  if (!adapter) return undefined;
  const { limits } = adapter;
  const device = await adapter.requestDevice({
    label: "shoal",
    requiredFeatures: [...KERNEL_FEATURES, ...options.features ?? []].filter((feature) =>
      adapter.features.has(feature)
    ),
    requiredLimits: {
      maxBufferSize: limits.maxBufferSize,
      maxStorageBufferBindingSize: limits.maxStorageBufferBindingSize,
      maxStorageBuffersPerShaderStage: limits.maxStorageBuffersPerShaderStage,
    },
  });
  return describe(name, adapter, device);
}

function describe(provider: ProviderName, adapter: GPUAdapter, device: GPUDevice): GpuDevice {
  const { vendor, architecture, device: model, description } = adapter.info;
  const adapterName = description || [vendor, architecture, model].filter(Boolean).join(" ") ||
    "unnamed adapter";
  let failure: ShoalError | undefined;
  device.onuncapturederror = (event) => {
    const { error } = event as GPUUncapturedErrorEvent;
    failure ??= new ShoalError("internal", `the GPU refused a command: ${error.message}`);
  };
  return {
    device,
    adapterName,
    provider,
    polls: provider === "dawn",
    software: isFallback(adapter) || SOFTWARE_NAMES.test(`${architecture} ${adapterName}`),
    limits: device.limits,
    lost: device.lost.then((info) => info.message || info.reason),
    failure: () => failure,
    destroy: () => device.destroy(),
  };
}

/** The flag moved from the adapter to its info; older browsers have only the former. */
function isFallback(adapter: GPUAdapter): boolean {
  const info = adapter.info as { isFallbackAdapter?: boolean };
  const old = adapter as unknown as { isFallbackAdapter?: boolean };
  return info.isFallbackAdapter ?? old.isFallbackAdapter ?? false;
}

/** The one whose readback takes the least time; the others are destroyed. There is at least one. */
export async function quicker(opened: readonly GpuDevice[]): Promise<GpuDevice> {
  const [first, ...others] = opened;
  if (others.length === 0) return first!;
  let best = { gpu: first!, ms: await readbackMs(first!.device) };
  for (const gpu of others) {
    const ms = await readbackMs(gpu.device);
    const slower = ms < best.ms ? best.gpu : gpu;
    if (ms < best.ms) best = { gpu, ms };
    slower.destroy();
  }
  return best.gpu;
}

/** Least milliseconds from submitting a 4-byte copy to holding its bytes; what every operation pays. */
export async function readbackMs(device: GPUDevice): Promise<number> {
  const source = device.createBuffer({ label: "latency source", size: 4, usage: BufferUsage.copySrc });
  const staging = device.createBuffer({
    label: "latency staging",
    size: 4,
    usage: BufferUsage.mapRead | BufferUsage.copyDst,
  });
  let least = Infinity;
  for (let i = 0; i < LATENCY_SAMPLES; i++) {
    const start = performance.now();
    const encoder = device.createCommandEncoder({ label: "latency" });
    encoder.copyBufferToBuffer(source, 0, staging, 0, 4);
    device.queue.submit([encoder.finish()]);
    await staging.mapAsync(MAP_READ);
    staging.unmap();
    least = Math.min(least, performance.now() - start);
  }
  source.destroy();
  staging.destroy();
  return least;
}
