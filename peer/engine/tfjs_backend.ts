// Loads tfjs' backends. Nothing else imports tfjs' backends, and this module is imported only when a tfjs engine was
// chosen, so that a page's first load does not carry them. Binaries come from our own origin or from node_modules.
import * as tf from "@tensorflow/tfjs-core";
import type { BackendWasm } from "@tensorflow/tfjs-backend-wasm";
import type { WebGPUBackend } from "@tensorflow/tfjs-backend-webgpu";
import { messageOf, ShoalError } from "../wire/errors.ts";

export type TfjsBackendName = "wasm" | "webgpu";

/** In a bundle these lines make the builder emit the binaries beside it. */
const SIMD = new URL(
  "../../node_modules/@tensorflow/tfjs-backend-wasm/dist/tfjs-backend-wasm-simd.wasm",
  import.meta.url,
).href;
const PLAIN = new URL(
  "../../node_modules/@tensorflow/tfjs-backend-wasm/dist/tfjs-backend-wasm.wasm",
  import.meta.url,
).href;
const BINARIES = {
  "tfjs-backend-wasm-simd.wasm": SIMD,
  "tfjs-backend-wasm.wasm": PLAIN,
  // Never loaded, since threads are off, but tfjs wants an address for each.
  "tfjs-backend-wasm-threaded-simd.wasm": SIMD,
};

let wasm: Promise<BackendWasm> | undefined;
let webgpu: Promise<{ adapter: string; lost: Promise<string> }> | undefined;

/** The one WASM backend of this thread. @throws {ShoalError} missing-tool if it does not start. */
export function wasmBackend(): Promise<BackendWasm> {
  wasm ??= openWasm();
  return wasm;
}

async function openWasm(): Promise<BackendWasm> {
  const { setWasmPaths } = await import("@tensorflow/tfjs-backend-wasm");
  // Threads would need a page in isolation, and a third binary.
  tf.env().set("WASM_HAS_MULTITHREAD_SUPPORT", false);
  // Outside a browser tfjs finds the files beside its own code.
  if (!import.meta.url.startsWith("file:")) setWasmPaths(BINARIES);
  await activate("wasm");
  return tf.backend() as BackendWasm;
}

/** Opens tfjs' own WebGPU device, which stays. @throws {ShoalError} no-adapter if there is none. */
export function webgpuBackend(): Promise<{ adapter: string; lost: Promise<string> }> {
  webgpu ??= openWebgpu();
  return webgpu;
}

async function openWebgpu(): Promise<{ adapter: string; lost: Promise<string> }> {
  const found = await globalThis.navigator?.gpu?.requestAdapter();
  if (!found) throw new ShoalError("no-adapter", "no WebGPU adapter for tfjs; use --engine=tfjs-wasm");
  await import("@tensorflow/tfjs-backend-webgpu");
  await activate("webgpu");
  const { vendor, architecture, description } = found.info;
  const adapter = description || [vendor, architecture].filter(Boolean).join(" ") || "an unnamed adapter";
  const { device } = tf.backend() as WebGPUBackend;
  return { adapter, lost: device.lost.then((info) => info.message || info.reason) };
}

async function activate(name: TfjsBackendName): Promise<void> {
  try {
    if (!await tf.setBackend(name)) throw new Error("it does not start");
    await tf.ready();
  } catch (error) {
    const text = `tfjs' ${name} backend: ${messageOf(error)}; use another --engine`;
    throw new ShoalError(name === "wasm" ? "missing-tool" : "no-adapter", text, { cause: error });
  }
}
