// A device whose compute passes are timed by the GPU itself, for kernels too short for the clock of a process or a page.
// It adds two timestamps to each pass and changes nothing else. One pass at a time: the last one's time is what is kept.
import { BufferUsage, MAP_READ } from "../peer/gpu/constants.ts";
import type { GpuDevice } from "../peer/gpu/device.ts";

const FEATURE = "timestamp-query";
/** GPUBufferUsage.QUERY_RESOLVE. */
const QUERY_RESOLVE = 0x0200;
/** Two timestamps of eight bytes. */
const BYTES = 16;

export interface TimestampDevice extends Disposable {
  gpu: GpuDevice;
  /** Milliseconds of the last pass that has ended. */
  lastPassMs(): Promise<number>;
}

interface Timer {
  querySet: GPUQuerySet;
  resolved: GPUBuffer;
  staging: GPUBuffer;
}

/** Null where the device was opened without timestamps, or its adapter has none. */
export function timestampDevice(gpu: GpuDevice): TimestampDevice | null {
  const { device } = gpu;
  if (!device.features.has(FEATURE)) return null;
  const timer = {
    querySet: device.createQuerySet({ label: "pass times", type: "timestamp", count: 2 }),
    resolved: device.createBuffer({
      label: "pass times",
      size: BYTES,
      usage: QUERY_RESOLVE | BufferUsage.copySrc,
    }),
    staging: device.createBuffer({
      label: "pass times staging",
      size: BYTES,
      usage: BufferUsage.mapRead | BufferUsage.copyDst,
    }),
  };
  const createCommandEncoder = (descriptor?: GPUCommandEncoderDescriptor) =>
    timedEncoder(device.createCommandEncoder(descriptor), timer);
  return {
    gpu: { ...gpu, device: overlaid(device, { createCommandEncoder }) },
    lastPassMs: () => read(timer),
    [Symbol.dispose]: () => {
      for (const made of Object.values(timer)) made.destroy();
    },
  };
}

function timedEncoder(encoder: GPUCommandEncoder, timer: Timer): GPUCommandEncoder {
  const { querySet, resolved, staging } = timer;
  const beginComputePass = (descriptor: GPUComputePassDescriptor = {}) => {
    const timestampWrites = { querySet, beginningOfPassWriteIndex: 0, endOfPassWriteIndex: 1 };
    return encoder.beginComputePass({ ...descriptor, timestampWrites });
  };
  const finish = () => {
    encoder.resolveQuerySet(querySet, 0, 2, resolved, 0);
    encoder.copyBufferToBuffer(resolved, 0, staging, 0, BYTES);
    return encoder.finish();
  };
  return overlaid(encoder, { beginComputePass, finish });
}

async function read({ staging }: Timer): Promise<number> {
  await staging.mapAsync(MAP_READ);
  const [begin, end] = new BigUint64Array(staging.getMappedRange());
  const ms = Number(end! - begin!) / 1e6;
  staging.unmap();
  return ms;
}

/** The object with some of its methods replaced. */
function overlaid<T extends object>(target: T, methods: Readonly<Record<string, unknown>>): T {
  return new Proxy(target, {
    get(object, name) {
      if (typeof name === "string" && Object.hasOwn(methods, name)) return methods[name];
      const value: unknown = Reflect.get(object, name, object);
      return typeof value === "function" ? value.bind(object) : value;
    },
  });
}
