// Tensors in halves for the kernel tests: packed and read by integer arithmetic, and the kernels' forms in halves. What must stay
// true: a reference is given the very halves that the kernel reads, so that only the kernel's own rounding is measured.
import assert from "node:assert/strict";
import { fromHalf, toHalf } from "../../peer/codec/f16.ts";
import type { KernelSpec } from "../../peer/gpu/kernel.ts";
import { relL2, words } from "./support.ts";

/** Rounding to a half is off by 2^-11 of a value at most, half of it on average; a little is left for f32. */
export const HALF_TOLERANCE = 5e-4;

/** Two values in a word, the first one low; the bits of a kernel's output and input. */
export function packed(values: ArrayLike<number>): Uint32Array {
  return Uint32Array.from(
    { length: values.length / 2 },
    (_, i) => (toHalf(values[2 * i]!) | (toHalf(values[2 * i + 1]!) << 16)) >>> 0,
  );
}

/** Of an output that was read as f32. */
export function unpacked(bits: Float32Array): Float32Array {
  return Float32Array.from(
    { length: bits.length * 2 },
    (_, i) => fromHalf((words(bits)[i >> 1]! >>> (16 * (i & 1))) & 0xffff),
  );
}

/** The nearest halves. */
export function rounded(values: ArrayLike<number>): Float32Array {
  return Float32Array.from(values, (value) => fromHalf(toHalf(value)));
}

export function halvesOf(spec: KernelSpec): KernelSpec {
  assert.ok(spec.halves, `${spec.name} has no form in halves`);
  return spec.halves;
}

export function close(
  actual: ArrayLike<number>,
  expected: ArrayLike<number>,
  { what, tolerance = HALF_TOLERANCE }: { what: string; tolerance?: number },
): void {
  const error = relL2(actual, expected);
  assert.ok(error <= tolerance, `${what}: relative error ${error}, at most ${tolerance}`);
}
