// Compiles kernels, each once per device and set of overrides, asynchronously, and turns the compiler's
// messages into coded errors. Pipelines are shared by all programs of a device.
import { ShoalError } from "../wire/errors.ts";
import { STAGE_COMPUTE } from "./constants.ts";
import type { KernelSpec } from "./kernel.ts";
import { shaderLibrary } from "./library.ts";
import { linkShader } from "./link.ts";

export interface Kernel {
  spec: KernelSpec;
  overrides: Readonly<Record<string, number>>;
  pipeline: GPUComputePipeline;
  layout: GPUBindGroupLayout;
}

const compiled = new WeakMap<GPUDevice, Map<string, Promise<Kernel>>>();

/** Whether the device was opened with what the kernel needs. */
export function canRun(device: GPUDevice, { feature }: KernelSpec): boolean {
  return feature === undefined || device.features.has(feature);
}

/** The kernel with `overrides` laid over the spec's defaults. Errors: shader-invalid with the WGSL messages. */
export function compileKernel(
  device: GPUDevice,
  spec: KernelSpec,
  overrides: Readonly<Record<string, number>> = {},
): Promise<Kernel> {
  const constants = { ...spec.overrides, ...overrides };
  const key = `${spec.name} ${JSON.stringify(constants)}`;
  const kernels = compiled.get(device) ?? new Map<string, Promise<Kernel>>();
  compiled.set(device, kernels);
  const kernel = kernels.get(key) ?? compile(device, spec, constants);
  kernels.set(key, kernel);
  return kernel;
}

/** What the browser's WGSL compiler says of a kernel, without building it for the adapter. Errors: shader-invalid. */
export async function checkShader(device: GPUDevice, spec: KernelSpec): Promise<void> {
  await moduleOf(device, spec);
}

async function moduleOf(
  device: GPUDevice,
  spec: KernelSpec,
): Promise<{ module: GPUShaderModule; layout: GPUBindGroupLayout; pipelineLayout: GPUPipelineLayout }> {
  const label = spec.name;
  device.pushErrorScope("validation");
  const module = device.createShaderModule({ label, code: linkShader(spec.wgsl, shaderLibrary) });
  const layout = device.createBindGroupLayout({
    label,
    entries: spec.bindings.map(({ type }, binding) => ({
      binding,
      visibility: STAGE_COMPUTE,
      buffer: { type },
    })),
  });
  const pipelineLayout = device.createPipelineLayout({ label, bindGroupLayouts: [layout] });
  const invalid = device.popErrorScope();
  await refuseErrors(module, spec.name, (await invalid)?.message);
  return { module, layout, pipelineLayout };
}

async function compile(
  device: GPUDevice,
  spec: KernelSpec,
  overrides: Record<string, number>,
): Promise<Kernel> {
  const { module, layout, pipelineLayout } = await moduleOf(device, spec);
  try {
    const pipeline = await device.createComputePipelineAsync({
      label: spec.name,
      layout: pipelineLayout,
      compute: { module, entryPoint: "main", constants: overrides },
    });
    return { spec, overrides, pipeline, layout };
  } catch (cause) {
    throw invalidShader(spec.name, cause instanceof Error ? cause.message : String(cause), cause);
  }
}

async function refuseErrors(module: GPUShaderModule, name: string, scope: string | undefined): Promise<void> {
  const info = await module.getCompilationInfo();
  const errors = info.messages.filter((message) => message.type === "error");
  const lines = errors.map((error) => `${error.lineNum}:${error.linePos} ${error.message}`);
  if (lines.length > 0) throw invalidShader(name, lines.join("; "));
  if (scope !== undefined) throw invalidShader(name, scope);
}

function invalidShader(name: string, reason: string, cause?: unknown): ShoalError {
  const text =
    `the kernel ${name} does not compile on this adapter: ${reason}; please report it with the adapter's name`;
  return new ShoalError("shader-invalid", text, { cause });
}

/** Uniform bytes of one dispatch; the struct's size is rounded up to 16 as WGSL's uniform layout allows. */
export function packParams(
  spec: KernelSpec,
  values: Readonly<Record<string, number>>,
): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(Math.max(16, Math.ceil(spec.params.length / 4) * 16));
  const view = new DataView(bytes.buffer);
  for (const [i, { name, type }] of spec.params.entries()) {
    const value = values[name];
    if (value === undefined) throw new ShoalError("internal", `kernel ${spec.name} lacks parameter ${name}`);
    if (type === "u32") view.setUint32(i * 4, value, true);
    else view.setFloat32(i * 4, value, true);
  }
  return bytes;
}
