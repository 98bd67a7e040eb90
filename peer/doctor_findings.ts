// What a measured fact about this computer means for lending it: ok, note or fix, with the remedy. Pure; doctor.ts
// measures and prints. A "fix" is only what keeps a peer or a page from working; slowness is a "note".
import { tuningText } from "./engine/tuning_text.ts";
import type { TuneResult } from "./gpu/tune.ts";

export type FindingStatus = "ok" | "note" | "fix";

export interface Finding {
  status: FindingStatus;
  name: string;
  /** What was found, one sentence. */
  text: string;
  /** What to do; absent for "ok". */
  remedy?: string;
}

/** Oldest versions that the code was written for. */
const NODE_MAJOR_MIN = 20;
const DENO_MIN = [2, 9] as const;
/** Checkpoints of the demo take a few MB, of a large model gigabytes. */
const DISK_BYTES_MIN = 1 << 30;
export function judgeNode(version: string | undefined): Finding {
  const name = "node";
  if (version === undefined) {
    return { status: "note", name, text: "not started through shoal.mjs", remedy: "run npx shoal doctor" };
  }
  const old = Number(version.split(".")[0]) < NODE_MAJOR_MIN;
  if (!old) return { status: "ok", name, text: version };
  return { status: "fix", name, text: version, remedy: `install Node ${NODE_MAJOR_MIN} or newer` };
}

export function judgeDeno(version: string): Finding {
  const [major = 0, minor = 0] = version.split(".").map(Number);
  const old = major < DENO_MIN[0] || (major === DENO_MIN[0] && minor < DENO_MIN[1]);
  if (!old) return { status: "ok", name: "deno", text: version };
  return { status: "fix", name: "deno", text: version, remedy: "run npm ci; it brings the right Deno" };
}

/** Only Linux needs a driver from a package; Deno then also needs to be told not to fall back to GL. */
export function judgeVulkan(
  facts: { os: string; icdFiles: readonly string[]; backend: string | undefined },
): Finding {
  const name = "vulkan";
  if (facts.os !== "linux") return { status: "ok", name, text: `not needed on ${facts.os}` };
  if (facts.icdFiles.length === 0) {
    return {
      status: "note",
      name,
      text: "no Vulkan driver is installed, so the processor computes instead",
      remedy: "install your GPU's own driver, or mesa-vulkan-drivers",
    };
  }
  if (facts.backend !== "vulkan") {
    return {
      status: "fix",
      name,
      text: `DENO_WEBGPU_BACKEND is ${facts.backend ?? "not set"}: WebGPU may silently fall back to slow GL`,
      remedy: "set DENO_WEBGPU_BACKEND=vulkan (shoal.mjs does)",
    };
  }
  return { status: "ok", name, text: `${facts.icdFiles.length} drivers installed` };
}

export interface ProviderFacts {
  provider: "builtin" | "dawn";
  /** null if it has no adapter. */
  adapter: { name: string; software: boolean; readbackMs: number; limits: string } | null;
  reason: string;
}

export function judgeProviders(providers: readonly ProviderFacts[]): Finding[] {
  const usable = providers.flatMap(({ adapter, provider }) =>
    adapter === null ? [] : [{ ...adapter, provider }]
  );
  const lines = providers.map((facts) => judgeProvider(facts, usable.length > 0));
  const best = usable.toSorted((a, b) => a.readbackMs - b.readbackMs)[0];
  if (best === undefined) return lines;
  lines.push({ status: "ok", name: "limits", text: best.limits });
  const text = `${best.name} through ${best.provider}`;
  if (!best.software) return [...lines, { status: "ok", name: "adapter", text }];
  const remedy = "a software adapter works, slowly; a GPU driver would be faster";
  return [...lines, { status: "note", name: "adapter", text, remedy }];
}

function judgeProvider({ provider, adapter, reason }: ProviderFacts, anyUsable: boolean): Finding {
  const name = `webgpu ${provider}`;
  if (adapter !== null) {
    const text = `${adapter.name}, readback ${adapter.readbackMs.toFixed(2)} ms`;
    return { status: "ok", name, text };
  }
  if (anyUsable) {
    return { status: "note", name, text: reason, remedy: "not needed: the other provider works" };
  }
  return { status: "note", name, text: reason, remedy: "install a graphics driver that offers Vulkan" };
}

/** What a peer would compute with, with the reason that compute.ts gives. */
export function judgeEngine({ engine, adapter }: { engine: string; adapter: string }): Finding {
  const found = { name: "engine", text: `${engine}; on ${adapter}` };
  if (engine.startsWith("wgsl")) return { status: "ok", ...found };
  return { status: "note", ...found, remedy: "a graphics processor with its driver would be faster" };
}

/** The quickest kernel for matrix products of each layout, and those that an adapter computes wrongly. */
export function judgeTuning(result: TuneResult | null): Finding[] {
  if (result === null) return [];
  const name = "kernels";
  const winners = tuningText(result) || "none was measured in time";
  const text = `${winners} (${Math.round(result.spentMs)} ms of measuring)`;
  if (result.excluded.length === 0) return [{ status: "ok", name, text }];
  const wrong = result.excluded.map(({ kernel, reason }) => `${kernel}: ${reason}`).join("; ");
  const remedy = "nothing to do: those kernels are left out; please report them with the adapter's name";
  return [{ status: "note", name, text: `${text}; ${wrong}`, remedy }];
}

export function judgeWebRtc(outcome: { connected: true } | { connected: false; reason: string }): Finding {
  const name = "webrtc";
  if (outcome.connected) {
    return { status: "ok", name, text: "two peers connected over this machine's network" };
  }
  const remedy = "allow UDP between local programs; without it, links go through the coordinator's relay";
  return { status: "note", name, text: outcome.reason, remedy };
}

/** Only the demo's tabs and the browser tests need it. */
export function judgeChromium(version: string | null): Finding {
  const name = "chromium";
  if (version !== null) return { status: "ok", name, text: version };
  const remedy = "install Chromium or set CHROMIUM_PATH, or run the demo with --tabs=0";
  return { status: "note", name, text: "not found", remedy };
}

export function judgeDisk(freeBytes: number | null): Finding {
  const name = "disk";
  if (freeBytes === null) {
    return { status: "note", name, text: "free space is unknown", remedy: "nothing to do" };
  }
  const text = `${(freeBytes / 2 ** 30).toFixed(1)} GiB free`;
  if (freeBytes >= DISK_BYTES_MIN) return { status: "ok", name, text };
  return { status: "note", name, text, remedy: "free some space, or choose another --out_dir" };
}

/** Only a coordinator serves pages. */
export function judgePages(built: boolean): Finding {
  if (built) return { status: "ok", name: "pages", text: "built" };
  return {
    status: "note",
    name: "pages",
    text: "not built yet",
    remedy: "shoal demo and coordinator build them",
  };
}

/** Fixed-width text, one finding a line, the remedy behind an arrow. */
export function findingText({ status, name, text, remedy }: Finding): string {
  return `${status.padEnd(4)}  ${name.padEnd(14)}  ${text}${remedy === undefined ? "" : ` -> ${remedy}`}`;
}
