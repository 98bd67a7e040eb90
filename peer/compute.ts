// Opens what a peer computes with, in a tab and in Deno alike: the engine that was asked for, or the quicker of two. Only what
// is chosen is loaded: tfjs and the double-precision engine are pieces of their own. It knows neither runs nor links.
import type { StageBuild, StageEngine } from "./engine/engine.ts";
import { chooseEngine, readVerdict, type Verdict, verdictNote, withoutWebGpu } from "./engine/choose.ts";
import { TunedEngines } from "./engine/tuned.ts";
import { tuningText } from "./engine/tuning_text.ts";
import { createWgslEngine } from "./engine/wgsl.ts";
import type { GpuDevice } from "./gpu/device.ts";
import { measureBlock } from "./measure.ts";
import type { Notes } from "./store/notes.ts";
import { messageOf } from "./wire/errors.ts";
import type { ModelSpec } from "./wire/run.ts";
import type { EngineWish } from "./wire/status.ts";

export interface Compute {
  /** What a person reads: the adapter or the processor, and the engine with the reason for it. */
  adapter: string;
  engine: string;
  /** Settles, with the reason, when the device is gone; absent where there is none to lose. */
  deviceLost?: Promise<string>;
  createEngine(build: StageBuild): Promise<StageEngine>;
  /** Which kernels it has chosen so far by measuring, in words; absent where it chooses none. */
  kernels?(): string;
  destroy(): void;
}

export interface ComputeTools {
  openGpu(): Promise<GpuDevice>;
  /** Where the verdict on an adapter is kept; absent: it is measured every time. */
  notes?: Notes;
}

/** @throws {ShoalError} of the engine that was asked for, if it does not work here; auto always finds one. */
export async function openCompute(wish: EngineWish, tools: ComputeTools): Promise<Compute> {
  switch (wish) {
    case "wgsl":
      return onGpu(await tools.openGpu(), "", tools.notes);
    case "tfjs-wasm":
      return await onWasm("this processor", "");
    case "tfjs-webgpu":
      return await onTfjsWebgpu();
    case "cpu":
      return await onCpu("chosen");
    case "auto":
      return await quickest(tools);
  }
}

async function quickest(tools: ComputeTools): Promise<Compute> {
  let gpu: GpuDevice;
  try {
    gpu = await tools.openGpu();
  } catch (error) {
    return await withoutGpu(withoutWebGpu(error));
  }
  let verdict: Verdict;
  try {
    verdict = await verdictOn(gpu, tools.notes);
  } catch (error) {
    gpu.destroy();
    return await onCpu(`neither WebGPU nor WebAssembly works: ${messageOf(error).slice(0, 200)}`);
  }
  if (verdict.engine === "wgsl") return onGpu(gpu, verdict.why, tools.notes);
  try {
    const compute = await onWasm(`this processor, beside ${gpu.adapterName}`, verdict.why);
    gpu.destroy();
    return compute;
  } catch (error) {
    // A verdict from an earlier visit, and now a file of tfjs cannot be fetched.
    return onGpu(gpu, `WebAssembly fails: ${messageOf(error).slice(0, 200)}`, tools.notes);
  }
}

/** WebAssembly where there is no WebGPU; the double-precision engine where there is not even that. */
async function withoutGpu(why: string): Promise<Compute> {
  try {
    return await onWasm("this processor", why);
  } catch (error) {
    return await onCpu(`${why}; ${messageOf(error).slice(0, 200)}`);
  }
}

function onGpu(gpu: GpuDevice, why: string, notes?: Notes): Compute {
  const tuned = new TunedEngines(gpu, { notes: notes ?? null });
  return {
    ...{ adapter: gpu.adapterName, engine: withReason(`wgsl (${gpu.provider})`, why), deviceLost: gpu.lost },
    createEngine: (build) => tuned.createEngine(build),
    kernels: () => tuningText(tuned.result()),
    destroy: () => gpu.destroy(),
  };
}

async function onWasm(adapter: string, why: string): Promise<Compute> {
  const { createTfjsEngine } = await import("./engine/tfjs.ts");
  const { wasmBackend } = await import("./engine/tfjs_backend.ts");
  // Started here, so that a failure shows before the peer has promised anything.
  await wasmBackend();
  return {
    ...{ adapter, engine: withReason("tfjs-wasm", why), destroy: () => {} },
    createEngine: (build) => createTfjsEngine(build, { backend: "wasm" }),
  };
}

async function onTfjsWebgpu(): Promise<Compute> {
  const { createTfjsEngine } = await import("./engine/tfjs.ts");
  const { webgpuBackend } = await import("./engine/tfjs_backend.ts");
  const { adapter, lost } = await webgpuBackend();
  return {
    ...{ adapter, engine: "tfjs-webgpu", deviceLost: lost, destroy: () => {} },
    createEngine: (build) => createTfjsEngine(build, { backend: "webgpu" }),
  };
}

async function onCpu(why: string): Promise<Compute> {
  const { createCpuEngine } = await import("./engine/cpu.ts");
  return {
    ...{ adapter: `CPU (${why})`, engine: "cpu", destroy: () => {} },
    createEngine: (build) => Promise.resolve(createCpuEngine(build)),
  };
}

function withReason(engine: string, why: string): string {
  return why === "" ? engine : `${engine}: ${why}`;
}

/** Changes with what was measured or how, so that an old verdict is not believed. */
const VERDICT_VERSION = 2;
/** Verdicts of this thread, by adapter; a second join does not measure again. */
const known = new Map<string, Promise<Verdict>>();

/** The verdict on an adapter: remembered, kept, or measured. */
export function verdictOn(gpu: GpuDevice, notes?: Notes): Promise<Verdict> {
  const name = `engine ${VERDICT_VERSION} ${gpu.provider} ${gpu.adapterName}`;
  const found = known.get(name) ?? keptVerdict(name, gpu, notes);
  known.set(name, found);
  found.catch(() => known.delete(name));
  return found;
}

async function keptVerdict(name: string, gpu: GpuDevice, notes?: Notes): Promise<Verdict> {
  const kept = readVerdict(await notes?.get(name) ?? null, Date.now());
  if (kept !== null) return kept;
  const verdict = await measureBoth(gpu);
  await notes?.set(name, verdictNote(verdict, Date.now()));
  return verdict;
}

/** A block of 0.3 GFLOP takes a software adapter some 0.1 s; one of 10 GFLOP shows what a graphics processor can do. */
const PROBES = {
  software: { block_size: 64, n_embd: 128, n_inner: 344, n_head: 4 },
  hardware: { block_size: 128, n_embd: 512, n_inner: 1376, n_head: 8 },
};
/** What a newcomer waits for kernels to compile on a software adapter, once it is known what WebAssembly can do. */
const WGSL_PROBE_MS = 3_000;
const PROBE_CONFIG = { batch_size: 4, codec_forward: "i8b64", codec_backward: "i8b64", seed: 1 } as const;

function measureBoth(gpu: GpuDevice): Promise<Verdict> {
  const { software } = gpu;
  const shape = PROBES[software ? "software" : "hardware"];
  const spec: ModelSpec = {
    ...{ vocab_size: 2, n_layer: 1, n_kv_head: shape.n_head, ...shape },
    ...{ tie_word_embeddings: false, rope_theta: 10_000, norm_eps: 1e-5 },
  };
  const blockMs = async (createEngine: Parameters<typeof measureBlock>[0]) =>
    (await measureBlock(createEngine, PROBE_CONFIG, spec)).blockMs;
  return chooseEngine({
    software,
    wgsl: () => blockMs((build) => createWgslEngine(gpu, build)),
    tfjs: async () => {
      const { createTfjsEngine } = await import("./engine/tfjs.ts");
      return await blockMs((build) => createTfjsEngine(build, { backend: "wasm" }));
    },
    late: (answered) => pause(WGSL_PROBE_MS, answered),
  });
}

/** Ends early with the signal. */
function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });
}
