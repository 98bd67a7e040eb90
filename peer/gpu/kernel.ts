// What one compute kernel is, as a value: its WGSL text, its bindings, its parameters and its dispatch size.
// Not a place for GPU objects. The WGSL and this description must agree; test/kernels/spec_test.ts compares them.

/** One buffer at @group(0); its binding index is its position in the list. */
export interface KernelBinding {
  name: string;
  type: "uniform" | "read-only-storage" | "storage";
}

/** One field of the uniform struct; every field is 4 bytes, in the order of the WGSL struct. */
export interface KernelParam {
  name: string;
  type: "u32" | "f32";
}

export interface KernelSpec {
  name: string;
  /** Text of shaders/<name>.wgsl before linking. */
  wgsl: string;
  /** The same kernel for `dtype` f16, where what is kept from F to W is in halves, four in two words. Needs rows of fours. */
  halves?: KernelSpec;
  /** What the device must have been opened with; absent: nothing. */
  feature?: "subgroups";
  /** Position 0 is always the uniform `params`. */
  bindings: readonly KernelBinding[];
  params: readonly KernelParam[];
  /** Defaults of the `override` constants (workgroup and tile sizes). */
  overrides: Readonly<Record<string, number>>;
  workgroups(
    params: Readonly<Record<string, number>>,
    overrides: Readonly<Record<string, number>>,
  ): [number, number, number];
}
