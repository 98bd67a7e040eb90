// Opens the GPU device in a Deno process, where Dawn (npm package webgpu) stands beside the built-in provider.
// Never import this from code that a browser bundle reaches: it loads a native addon.
import { ShoalError } from "../wire/errors.ts";
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

/**
 * openDevice for Deno. By default the built-in provider, and Dawn only where the built-in one has no adapter: Dawn's
 * readback is quicker (under 1 ms against 11 ms), but in Deno its polling leaves so much behind for the garbage collector
 * that the process stands still for about a second every twenty operations, and trains several times more slowly.
 */
export async function openDenoDevice(options: Omit<OpenDeviceOptions, "dawn"> = {}): Promise<GpuDevice> {
  if (options.provider !== undefined) return await openDevice({ ...options, dawn: loadDawn });
  try {
    return await openDevice({ ...options, provider: "builtin" });
  } catch (error) {
    if (!(error instanceof ShoalError) || error.code !== "no-adapter") throw error;
    return await openDevice({ ...options, provider: "dawn", dawn: loadDawn });
  }
}
