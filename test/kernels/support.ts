// Runs one kernel once on real buffers for the kernel tests: fresh buffers, outputs full of NaN, all read back.
// Not how a peer runs kernels (that is peer/gpu/program.ts). No adapter means that the tests fail, never skip.
import assert from "node:assert/strict";
import { alignUp, BufferUsage, MAP_READ } from "../../peer/gpu/constants.ts";
import type { GpuDevice } from "../../peer/gpu/device.ts";
import type { KernelSpec } from "../../peer/gpu/kernel.ts";
import { compileKernel, packParams } from "../../peer/gpu/pipeline.ts";
import { openDenoDevice } from "../../peer/gpu/provider_deno.ts";

export type KernelData = Float32Array | Uint32Array | Int32Array;

export interface KernelRun {
  params: Readonly<Record<string, number>>;
  /** By binding name. A binding also named in `outputs` (in-place kernels) starts with this content. */
  inputs: Readonly<Record<string, KernelData>>;
  /** By binding name: length in 4-byte elements. Poisoned with NaN before the run. */
  outputs: Readonly<Record<string, number>>;
  overrides?: Readonly<Record<string, number>>;
}

const usage = BufferUsage.storage | BufferUsage.copySrc | BufferUsage.copyDst;

/**
 * The device of the test file; SHOAL_GPU_PROVIDER=builtin or dawn picks one provider. It lives until the process ends:
 * Dawn destroyed while Deno unloads crashes the process.
 */
export function testDevice(): Promise<GpuDevice> {
  const wanted = Deno.env.get("SHOAL_GPU_PROVIDER");
  return openDenoDevice(wanted === "builtin" || wanted === "dawn" ? { provider: wanted } : {});
}

/** Names a test with the adapter that it ran on. */
export function onAdapter(gpu: GpuDevice, what: string): string {
  return `${what} [${gpu.adapterName}, ${gpu.provider}]`;
}

/** Outputs by binding name, as f32; `words` reinterprets them. Validation errors are thrown. */
export async function runKernel(
  gpu: GpuDevice,
  spec: KernelSpec,
  run: KernelRun,
): Promise<Record<string, Float32Array>> {
  const { device } = gpu;
  const kernel = await compileKernel(device, spec, run.overrides);
  device.pushErrorScope("validation");
  const buffers = spec.bindings.map(({ name }) => bindingBuffer(device, spec, { name, run }));
  const bindGroup = device.createBindGroup({
    label: spec.name,
    layout: kernel.layout,
    entries: buffers.map((buffer, binding) => ({ binding, resource: { buffer } })),
  });
  const encoder = device.createCommandEncoder({ label: spec.name });
  const pass = encoder.beginComputePass({ label: spec.name });
  pass.setPipeline(kernel.pipeline);
  pass.setBindGroup(0, bindGroup);
  pass.dispatchWorkgroups(...spec.workgroups(run.params, kernel.overrides));
  pass.end();
  const staged = Object.keys(run.outputs).map((name) => stage(device, encoder, { name, spec, buffers }));
  device.queue.submit([encoder.finish()]);
  const error = await device.popErrorScope();
  if (error) assert.fail(`${spec.name}: ${error.message}`);
  const result: Record<string, Float32Array> = {};
  for (const { name, staging } of staged) result[name] = await readOut(staging, run.outputs[name]!);
  for (const buffer of buffers) buffer.destroy();
  return result;
}

/** runKernel twice; the bits of all outputs must agree. */
export async function runTwice(
  gpu: GpuDevice,
  spec: KernelSpec,
  run: KernelRun,
): Promise<Record<string, Float32Array>> {
  const first = await runKernel(gpu, spec, run);
  const second = await runKernel(gpu, spec, run);
  for (const [name, values] of Object.entries(first)) {
    assertSameBits(second[name]!, values, `${spec.name}, second run: ${name}`);
  }
  return first;
}

/** Compares bits, so NaN equals itself; names the first difference only (a full diff of arrays takes minutes). */
export function assertSameBits(actual: Float32Array, expected: Float32Array, what: string): void {
  assert.equal(actual.length, expected.length, `${what}: length`);
  const [a, b] = [words(actual), words(expected)];
  const at = a.findIndex((word, i) => word !== b[i]);
  assert.equal(at, -1, `${what}: element ${at} is ${actual[at]}, expected ${expected[at]}`);
}

/** The same bytes as unsigned words. */
export function words(values: Float32Array): Uint32Array {
  return new Uint32Array(values.buffer, values.byteOffset, values.length);
}

function bindingBuffer(
  device: GPUDevice,
  spec: KernelSpec,
  { name, run }: { name: string; run: KernelRun },
): GPUBuffer {
  if (name === spec.bindings[0]!.name) {
    const bytes = packParams(spec, run.params);
    return filledBuffer(device, bytes, { label: name, usage: BufferUsage.uniform | BufferUsage.copyDst });
  }
  const input = run.inputs[name];
  const length = run.outputs[name];
  const data = input ?? (length === undefined ? undefined : new Float32Array(length).fill(NaN));
  if (!data) assert.fail(`${spec.name}: neither input nor output for the binding ${name}`);
  return filledBuffer(device, new Uint8Array(data.buffer, data.byteOffset, data.byteLength), {
    label: name,
    usage,
  });
}

function filledBuffer(
  device: GPUDevice,
  bytes: Uint8Array,
  { label, usage }: { label: string; usage: number },
): GPUBuffer {
  const buffer = device.createBuffer({ label, size: Math.max(16, alignUp(bytes.byteLength, 4)), usage });
  device.queue.writeBuffer(buffer, 0, Uint8Array.from(bytes));
  return buffer;
}

function stage(
  device: GPUDevice,
  encoder: GPUCommandEncoder,
  { name, spec, buffers }: { name: string; spec: KernelSpec; buffers: readonly GPUBuffer[] },
): { name: string; staging: GPUBuffer } {
  const source = buffers[spec.bindings.findIndex((binding) => binding.name === name)];
  if (!source) assert.fail(`${spec.name} has no binding ${name}`);
  const usage = BufferUsage.mapRead | BufferUsage.copyDst;
  const staging = device.createBuffer({ label: `${name} staging`, size: source.size, usage });
  encoder.copyBufferToBuffer(source, 0, staging, 0, source.size);
  return { name, staging };
}

async function readOut(staging: GPUBuffer, length: number): Promise<Float32Array> {
  await staging.mapAsync(MAP_READ);
  const values = new Float32Array(staging.getMappedRange().slice(0)).slice(0, length);
  staging.destroy();
  return values;
}

/** Relative L2 distance of `actual` from `expected`; the absolute distance where `expected` is all zero. */
export function relL2(actual: ArrayLike<number>, expected: ArrayLike<number>): number {
  assert.equal(actual.length, expected.length, "lengths differ");
  let difference = 0;
  let norm = 0;
  for (let i = 0; i < expected.length; i++) {
    difference += (actual[i]! - expected[i]!) ** 2;
    norm += expected[i]! ** 2;
  }
  return Math.sqrt(norm === 0 ? difference : difference / norm);
}

/** `length` values in [-1, 1) from a small integer generator, the same for the same seed on every machine. */
export function testValues(length: number, seed: number): Float32Array {
  let state = (seed * 2_654_435_761 + 1) >>> 0;
  return Float32Array.from({ length }, () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return (state >>> 8) / 2 ** 23 - 1;
  });
}
