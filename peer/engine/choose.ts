// Which of two engines computes here: our WebGPU kernels, or tfjs on WebAssembly. Decides from measurements that are handed
// in, so it is tested without a device. A graphics processor is taken at its word unless it is slower than a processor would
// be; a software adapter has to win, because it runs on the same processor as its rival.
import { messageOf, ShoalError } from "../wire/errors.ts";

/** Milliseconds of one block's F, B and W; rejects where the engine does not work. */
export interface Probe {
  /** False for a graphics processor. */
  software: boolean;
  wgsl(): Promise<number>;
  tfjs(): Promise<number>;
  /** Settles when whoever joins has waited long enough for WebGPU on a software adapter, or at once when that has answered. */
  late(answered: AbortSignal): Promise<void>;
}

export interface Verdict {
  engine: "wgsl" | "tfjs-wasm";
  /** Half a sentence that a person reads after the engine's name. */
  why: string;
}

/**
 * A block of the probe for graphics processors is 10 GFLOP: one thread of WebAssembly, at the 30 GFLOP/s it reaches, takes as
 * long. Below this tfjs is not even downloaded.
 */
export const GPU_BLOCK_MS_MAX = 300;

/** @throws {ShoalError} the first engine's own error if neither works. */
export async function chooseEngine(probe: Probe): Promise<Verdict> {
  if (!probe.software) {
    const gpu = await attempt(probe.wgsl);
    if (gpu.ms <= GPU_BLOCK_MS_MAX) {
      return { engine: "wgsl", why: `${round(gpu.ms)} ms a block on the graphics processor` };
    }
    return quicker(gpu, await attempt(probe.tfjs), "the graphics processor");
  }
  // The quick one first: where WebGPU then turns out to hang, to compile for long or to fail, the answer is known.
  const tfjs = await attempt(probe.tfjs);
  const answered = new AbortController();
  const measuring = attempt(probe.wgsl).finally(() => answered.abort());
  if (tfjs.error === null) await probe.late(answered.signal);
  if (tfjs.error === null && !answered.signal.aborted) {
    const why = `${
      round(tfjs.ms)
    } ms a block with WebAssembly, WebGPU on a software adapter was not ready in time`;
    return { engine: "tfjs-wasm", why };
  }
  return quicker(await measuring, tfjs, "WebGPU on a software adapter");
}

interface Attempt {
  /** Infinite if it does not work. */
  ms: number;
  error: unknown;
}

async function attempt(measure: () => Promise<number>): Promise<Attempt> {
  try {
    return { ms: await measure(), error: null };
  } catch (error) {
    return { ms: Infinity, error };
  }
}

function quicker(wgsl: Attempt, tfjs: Attempt, gpu: string): Verdict {
  if (wgsl.error !== null && tfjs.error !== null) throw wgsl.error;
  if (wgsl.error !== null) {
    return { engine: "tfjs-wasm", why: `${gpu} fails: ${messageOf(wgsl.error).slice(0, 200)}` };
  }
  if (tfjs.error !== null) {
    return { engine: "wgsl", why: `WebAssembly fails: ${messageOf(tfjs.error).slice(0, 200)}` };
  }
  const [a, b] = [round(wgsl.ms), round(tfjs.ms)];
  return wgsl.ms <= tfjs.ms
    ? { engine: "wgsl", why: `${a} ms a block with ${gpu}, ${b} with WebAssembly` }
    : { engine: "tfjs-wasm", why: `${b} ms a block with WebAssembly, ${a} with ${gpu}` };
}

function round(ms: number): number {
  return Math.round(ms * 10) / 10;
}

/** Long enough that no regular visitor waits twice, short enough that better kernels and drivers get their chance. */
const VERDICT_MS_MAX = 7 * 24 * 3600 * 1000;

/** A verdict of `nowMs` (milliseconds since 1970) as a note. */
export function verdictNote({ engine, why }: Verdict, nowMs: number): string {
  return JSON.stringify({ engine, why, at: nowMs });
}

/** Of a verdict that was kept; null unless it is one, and not too old. */
export function readVerdict(text: string | null, nowMs: number): Verdict | null {
  if (text === null) return null;
  try {
    const { engine, why, at } = JSON.parse(text) as Record<string, unknown>;
    if (typeof at !== "number" || !(Math.abs(nowMs - at) < VERDICT_MS_MAX)) return null;
    const known = engine === "wgsl" || engine === "tfjs-wasm";
    return known && typeof why === "string" && why.length < 500 ? { engine, why } : null;
  } catch {
    return null;
  }
}

/** What a failure to open WebGPU means for a peer that would take any engine. */
export function withoutWebGpu(error: unknown): string {
  const known = error instanceof ShoalError && error.code === "no-adapter";
  return known ? "no WebGPU adapter" : `no WebGPU: ${messageOf(error).slice(0, 200)}`;
}
