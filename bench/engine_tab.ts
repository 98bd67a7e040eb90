// The page of engine.ts: the same sections on the tab's own WebGPU device, with tfjs on both of its backends. It draws
// nothing; what it is doing goes to the console, which the process outside reads.
import "@tensorflow/tfjs-core/dist/register_all_gradients.js";
import { wasmBackend, webgpuBackend } from "../peer/engine/tfjs_backend.ts";
import { openDevice } from "../peer/gpu/device.ts";
import { measurePlace, type Options, type PlaceResult } from "./engine_place.ts";

async function measure(options: Options): Promise<PlaceResult> {
  await wasmBackend();
  await webgpuBackend();
  const gpu = await openDevice({ features: ["timestamp-query"] });
  try {
    const backends = ["tfjs-webgpu", "tfjs-wasm"] as const;
    const note = (text: string) => console.log(text);
    return await measurePlace({ name: "chromium", gpu, backends, note }, options);
  } finally {
    gpu.destroy();
  }
}

const suite = { measure };
export type EngineTab = typeof suite;

(globalThis as unknown as { suite: EngineTab }).suite = suite;
