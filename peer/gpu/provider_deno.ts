// Opens the GPU device in a Deno process, where Dawn (npm package webgpu) stands beside the built-in provider.
// Never import this from code that a browser bundle reaches: it loads a native addon.
import { type GpuDevice, openDevice, type OpenDeviceOptions } from "./device.ts";

/** Dawn frees its instance, and aborts the process, once its GPU object is collected: so one is kept for good. */
let dawn: Promise<GPU | null> | undefined;

/** Dawn's entry point, or null where the addon does not load (unknown platform, missing library). */
export function loadDawn(): Promise<GPU | null> {
  dawn ??= createDawn();
  return dawn;
}

async function createDawn(): Promise<GPU | null> {
  try {
    const { create } = await import("webgpu");
    return create([]);
  } catch {
    return null;
  }
}

/** openDevice with Dawn as second provider. Needs --allow-ffi, --allow-read and --allow-env for Dawn. */
export function openDenoDevice(options: Omit<OpenDeviceOptions, "dawn"> = {}): Promise<GpuDevice> {
  return openDevice({ ...options, dawn: loadDawn });
}
