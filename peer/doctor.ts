// `shoal doctor`: measures what this computer can do for a run and prints one line per finding.
// It changes nothing, joins nothing and reaches no other machine; doctor_findings.ts says what a measurement means.
import { statfs } from "node:fs/promises";
import {
  type Finding,
  findingText,
  judgeChromium,
  judgeDeno,
  judgeDisk,
  judgeEngine,
  judgeNode,
  judgePages,
  judgeProviders,
  judgeTuning,
  judgeVulkan,
  judgeWebRtc,
  type ProviderFacts,
} from "./doctor_findings.ts";
import { openCompute } from "./compute.ts";
import { TunedEngines } from "./engine/tuned.ts";
import { type GpuDevice, readbackMs } from "./gpu/device.ts";
import type { TuneResult } from "./gpu/tune.ts";
import { loadDawn, openDenoDevice } from "./gpu/provider_deno.ts";
import { SimplePeerLink } from "./net/simple_peer.ts";
import { denoStack, nativeLinksClosed } from "./net/wrtc_deno.ts";
import { wholeModel } from "./model/layout.ts";
import { messageOf } from "./wire/errors.ts";
import type { ModelSpec } from "./wire/run.ts";

/** Two peers of one process connect in 0.2 s; beyond this something blocks them. */
const CONNECT_TIMEOUT_MS = 5000;
/** Where Linux keeps the list of Vulkan drivers. */
const ICD_FOLDERS = ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d"];

export interface DoctorOptions {
  /** One JSON object per finding on stdout. */
  json: boolean;
}

/** Resolves to the exit code: 1 if something has to be fixed. */
export async function runDoctor({ json }: DoctorOptions): Promise<number> {
  let failed = false;
  for await (const finding of examine()) {
    failed ||= finding.status === "fix";
    console.log(json ? JSON.stringify(finding) : findingText(finding));
  }
  return failed ? 1 : 0;
}

/** Every finding, as soon as it is known. */
export async function* examine(): AsyncGenerator<Finding> {
  yield judgeNode(Deno.env.get("SHOAL_NODE_VERSION"));
  yield judgeDeno(Deno.version.deno);
  yield judgeVulkan({
    os: Deno.build.os,
    icdFiles: await findIcdFiles(),
    backend: Deno.env.get("DENO_WEBGPU_BACKEND"),
  });
  const builtin = await tryProvider("builtin");
  // As in openDenoDevice: the second provider is loaded only where the first finds no adapter, or a graphics card.
  const enough = builtin.adapter !== null && builtin.adapter.software;
  yield* judgeProviders(enough ? [builtin] : [builtin, await tryProvider("dawn")]);
  yield judgeEngine(await tryEngine());
  yield* judgeTuning(await tryTuning());
  const webRtc = await tryWebRtc();
  await nativeLinksClosed();
  yield judgeWebRtc(webRtc);
  yield judgeChromium(await chromiumVersion(Deno.env.get("CHROMIUM_PATH")));
  yield judgeDisk(await freeBytes(Deno.cwd()));
  yield judgePages(await isFile(new URL("../web/dist/index.html", import.meta.url)));
}

async function findIcdFiles(): Promise<string[]> {
  const named = Deno.env.get("VK_DRIVER_FILES") ?? Deno.env.get("VK_ICD_FILENAMES");
  if (named !== undefined) return named.split(":");
  const files: string[] = [];
  for (const folder of ICD_FOLDERS) {
    try {
      for await (const entry of Deno.readDir(folder)) {
        if (entry.name.endsWith(".json")) files.push(`${folder}/${entry.name}`);
      }
    } catch (error) {
      if (!(error instanceof Deno.errors.NotFound)) throw error;
    }
  }
  return files;
}

async function tryProvider(provider: "builtin" | "dawn"): Promise<ProviderFacts> {
  try {
    const gpu = await openDenoDevice({ provider });
    try {
      const ms = await readbackMs(gpu.device);
      const limits = describeLimits(gpu.device.limits, await featuresOf(provider));
      return {
        provider,
        adapter: { name: gpu.adapterName, software: gpu.software, readbackMs: ms, limits },
        reason: "",
      };
    } finally {
      gpu.destroy();
    }
  } catch (error) {
    return { provider, adapter: null, reason: messageOf(error) };
  }
}

/** What `shoal peer` would choose here. */
async function tryEngine(): Promise<{ engine: string; adapter: string }> {
  const { engine, adapter, destroy } = await openCompute("auto", { openGpu: () => openDenoDevice() });
  destroy();
  return { engine, adapter };
}

/** Nobody waits to join: enough for every kernel, also on an adapter that compiles slowly. */
const TUNING_MS = 20_000;
/** A block of a small model, in whose products every layout occurs. */
const TUNED_SPEC: ModelSpec = {
  ...{ vocab_size: 256, block_size: 128, n_layer: 1, n_head: 4, n_kv_head: 4, n_embd: 256, n_inner: 704 },
  ...{ tie_word_embeddings: false, rope_theta: 10_000, norm_eps: 1e-5 },
};

/** Which kernels for matrix products suit the adapter; null where there is none, which was said before. */
async function tryTuning(): Promise<TuneResult | null> {
  let gpu: GpuDevice;
  try {
    gpu = await openDenoDevice();
  } catch {
    return null;
  }
  const build = { spec: TUNED_SPEC, stage: wholeModel(TUNED_SPEC), batchSize: 4, slots: 1 };
  try {
    return await new TunedEngines(gpu, { budgetMs: TUNING_MS }).tune({
      ...build,
      codecForward: "raw32",
      codecBackward: "raw32",
    });
  } finally {
    gpu.destroy();
  }
}

/** What the adapter offers; the device has only what was asked for. */
async function featuresOf(provider: "builtin" | "dawn"): Promise<string[]> {
  const gpu = provider === "dawn" ? await loadDawn() : navigator.gpu;
  const adapter = await gpu?.requestAdapter();
  return [...adapter?.features ?? []].sort();
}

/** Information for a bug report; whether a model fits is the coordinator's question. */
function describeLimits(limits: GPUSupportedLimits, features: readonly string[]): string {
  const mebibytes = (bytes: number) => `${Math.floor(bytes / 2 ** 20)} MiB`;
  return [
    `buffer ${mebibytes(limits.maxBufferSize)}`,
    `storage binding ${mebibytes(limits.maxStorageBufferBindingSize)}`,
    `${limits.maxStorageBuffersPerShaderStage} storage buffers`,
    `${limits.maxComputeInvocationsPerWorkgroup} invocations`,
    `shader-f16 ${features.includes("shader-f16") ? "yes" : "no"}`,
    `subgroups ${features.includes("subgroups") ? "yes" : "no"}`,
    `timestamp-query ${features.includes("timestamp-query") ? "yes" : "no"}`,
  ].join(", ");
}

/** Connects two links of this process, as two peers on one network would. */
function tryWebRtc(): Promise<{ connected: true } | { connected: false; reason: string }> {
  return new Promise((resolve) => {
    const common = { iceServers: [], stack: denoStack, connectTimeoutMs: CONNECT_TIMEOUT_MS };
    const first = new SimplePeerLink({
      ...{ ...common, remote: "second", initiator: true },
      onsignal: (data) => second.signal(data),
    });
    const second = new SimplePeerLink({
      ...{ ...common, remote: "first", initiator: false },
      onsignal: (data) => first.signal(data),
    });
    function settle(outcome: { connected: true } | { connected: false; reason: string }): void {
      first.onstate = second.onstate = null;
      first.close("examined");
      second.close("examined");
      resolve(outcome);
    }
    function changed(): void {
      if (first.state === "open" && second.state === "open") settle({ connected: true });
    }
    first.onstate = second.onstate = (state, reason) => {
      if (state === "closed") settle({ connected: false, reason });
      else changed();
    };
  });
}

async function chromiumVersion(path: string | undefined): Promise<string | null> {
  if (path === undefined) return null;
  try {
    const { success, stdout } = await new Deno.Command(path, { args: ["--version"], stderr: "null" })
      .output();
    return success ? new TextDecoder().decode(stdout).trim() : null;
  } catch {
    return null;
  }
}

async function freeBytes(path: string): Promise<number | null> {
  try {
    const { bavail, bsize } = await statfs(path);
    return bavail * bsize;
  } catch {
    return null;
  }
}

async function isFile(url: URL): Promise<boolean> {
  try {
    return (await Deno.stat(url)).isFile;
  } catch {
    return false;
  }
}
