// Shorthand for writing KernelSpec values: bindings, parameters and dispatch sizes of kernels that run one
// invocation per item. Not a builder of shaders: the WGSL stands in its own file.
import type { KernelBinding, KernelParam, KernelSpec } from "../kernel.ts";
import { spreadWorkgroups } from "../library.ts";

/** The uniform `params`, then what the kernel reads, then what it writes; indices in this order. */
export function bindings(read: readonly string[], written: readonly string[]): KernelBinding[] {
  return [
    { name: "params", type: "uniform" },
    ...read.map((name): KernelBinding => ({ name, type: "read-only-storage" })),
    ...written.map((name): KernelBinding => ({ name, type: "storage" })),
  ];
}

export function u32Params(...names: string[]): KernelParam[] {
  return names.map((name) => ({ name, type: "u32" }));
}

/** A kernel on tensors that are kept from F to W, which it reads and writes through `wide` and `narrow`; in f32 only. */
export function keptFloats(spec: KernelSpec): KernelSpec {
  return { ...spec, wgsl: `// #import lib/kept_f32.wgsl\n${spec.wgsl}` };
}

/** The same, with its form in halves; `body` is its text for lanes of four, where the spec's own is for single values. */
export function kept(spec: KernelSpec, body = spec.wgsl): KernelSpec {
  const wgsl = `// #import lib/kept_f16.wgsl\n${body}`;
  return { ...keptFloats(spec), halves: { ...spec, name: `${spec.name}_f16`, wgsl } };
}

/** Workgroups for `items` invocations of a kernel that finds its item with linearIndex. */
export function cover(
  items: number,
  overrides: Readonly<Record<string, number>>,
): [number, number, number] {
  return spreadWorkgroups(Math.ceil(items / (overrides.workgroupSize ?? 1)));
}
