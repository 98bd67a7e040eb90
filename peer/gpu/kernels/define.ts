// Shorthand for writing KernelSpec values: bindings, parameters and dispatch sizes of kernels that run one
// invocation per item. Not a builder of shaders: the WGSL stands in its own file.
import type { KernelBinding, KernelParam } from "../kernel.ts";
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

/** Workgroups for `items` invocations of a kernel that finds its item with linearIndex. */
export function cover(
  items: number,
  overrides: Readonly<Record<string, number>>,
): [number, number, number] {
  return spreadWorkgroups(Math.ceil(items / (overrides.workgroupSize ?? 1)));
}
