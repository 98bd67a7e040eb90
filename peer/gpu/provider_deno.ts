// Opens the GPU device in a Deno process, where Dawn (npm package webgpu) stands beside the built-in provider.
// Never import this from code that a browser bundle reaches: it loads a native addon.
import { ShoalError } from "../wire/errors.ts";
import { type GpuDevice, openDevice, type OpenDeviceOptions, quicker } from "./device.ts";

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
 * openDevice for Deno. On a graphics card the provider with the quicker readback is taken (Dawn: under 1 ms, built in: 11 ms of
 * each operation). Where the adapter is this computer's processor the built-in one is: Dawn waits in a busy loop, which takes
 * the time away from what it waits for (measured: four to five times slower, although it is asked late, see patience.ts).
 */
export async function openDenoDevice(options: Omit<OpenDeviceOptions, "dawn"> = {}): Promise<GpuDevice> {
  const { provider, ...rest } = options;
  if (provider !== undefined) return await openDevice({ ...options, dawn: loadDawn });
  try {
    return await preferred(
      await openDevice({ ...rest, provider: "builtin" }),
      () => openDevice({ ...rest, provider: "dawn", dawn: loadDawn }),
    );
  } catch (error) {
    if (!(error instanceof ShoalError) || error.code !== "no-adapter") throw error;
    return await openDevice({ ...rest, provider: "dawn", dawn: loadDawn });
  }
}

/** The built-in device, or on hardware the quicker of it and `other`, which may fail to open; the one not taken is destroyed. */
export async function preferred(builtin: GpuDevice, openOther: () => Promise<GpuDevice>): Promise<GpuDevice> {
  if (builtin.software) return builtin;
  const other = await openOther().catch(() => null);
  return other === null ? builtin : await quicker([builtin, other]);
}
