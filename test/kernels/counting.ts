// A device that counts the objects made and the work sent through it, for the tests of memory and of the steady state.
// It wraps only what our code calls; the device underneath is shared and stays as it was.
import type { GpuDevice } from "../../peer/gpu/device.ts";

export interface DeviceCounts {
  /** Buffers, bind groups, pipelines, layouts and shader modules made. */
  created: number;
  bufferBytes: number;
  submits: number;
  dispatches: number;
}

export function countingDevice(gpu: GpuDevice): { counted: GpuDevice; counts: DeviceCounts } {
  const counts: DeviceCounts = { created: 0, bufferBytes: 0, submits: 0, dispatches: 0 };
  const queue = proxied(gpu.device.queue, (name) => {
    if (name === "submit") counts.submits++;
  });
  const device = proxied(gpu.device, (name, args) => {
    if (!name.startsWith("create") || name === "createCommandEncoder") return;
    counts.created++;
    if (name === "createBuffer") counts.bufferBytes += (args[0] as GPUBufferDescriptor).size;
  }, { queue, createCommandEncoder });
  function createCommandEncoder(descriptor?: GPUCommandEncoderDescriptor): GPUCommandEncoder {
    const encoder = gpu.device.createCommandEncoder(descriptor);
    return proxied(encoder, () => {}, { beginComputePass: () => countingPass(encoder, counts) });
  }
  return { counted: { ...gpu, device }, counts };
}

function countingPass(encoder: GPUCommandEncoder, counts: DeviceCounts): GPUComputePassEncoder {
  return proxied(encoder.beginComputePass(), (name) => {
    if (name === "dispatchWorkgroups") counts.dispatches++;
  });
}

function proxied<T extends object>(
  target: T,
  oncall: (name: string, args: readonly unknown[]) => void,
  replaced: Readonly<Record<string, unknown>> = {},
): T {
  return new Proxy(target, {
    get(object, name) {
      if (typeof name === "string" && Object.hasOwn(replaced, name)) return replaced[name];
      const value: unknown = Reflect.get(object, name, object);
      if (typeof value !== "function") return value;
      return (...args: unknown[]) => {
        oncall(String(name), args);
        return Reflect.apply(value, object, args);
      };
    },
  });
}
