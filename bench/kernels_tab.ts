// The page of kernels.ts: times the kernels on the tab's own WebGPU device. It draws nothing.
import { openDevice } from "../peer/gpu/device.ts";
import { timeDemo, type Timings } from "./kernels_measure.ts";

async function time(rounds: number): Promise<Timings> {
  const gpu = await openDevice();
  try {
    return await timeDemo(gpu, rounds);
  } finally {
    gpu.destroy();
  }
}

const suite = { time };
export type KernelsTab = typeof suite;

(globalThis as unknown as { suite: KernelsTab }).suite = suite;
