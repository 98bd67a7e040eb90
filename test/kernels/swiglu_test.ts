// The SwiGLU kernels against the double-precision reference, and the gradient against differences of the forward.
import assert from "node:assert/strict";
import type { KernelSpec } from "../../peer/gpu/kernel.ts";
import {
  swigluBackwardSpec,
  swigluBackwardVec4Spec,
  swigluForwardSpec,
  swigluForwardVec4Spec,
  swigluKernels,
} from "../../peer/gpu/kernels/swiglu.ts";
import { swigluBackward, swigluForward } from "../../shaders/reference/swiglu.ts";
import { checkDirections, weighted } from "./difference.ts";
import { onAdapter, relL2, runKernel, runTwice, testDevice, testValues } from "./support.ts";

const gpu = await testDevice();
/** [R, I]: ones, primes, around the four columns of an invocation, and one larger. */
const shapes = [[1, 1], [1, 4], [3, 5], [7, 3], [11, 13], [5, 64], [130, 96]];
/** One exp and one division (3 and 2.5 units in the last place are allowed), a few products. */
const TOLERANCE = 1e-6;

function tensors(R: number, I: number) {
  const gate_up = testValues(R * 2 * I, 1).map((value) => value * 4);
  return { gate_up, dout: testValues(R * I, 2) };
}

async function forward(gate_up: Float32Array, R: number, I: number, spec = swigluKernels(I).forward) {
  const run = { params: { R, I }, inputs: { gate_up }, outputs: { out: R * I } };
  return (await runTwice(gpu, spec, run)).out!;
}

/** The gradient in gate_up's place, and the activation in its gradient's. */
async function backward(
  gate_up: Float32Array,
  dact: Float32Array,
  { R, I, spec = swigluKernels(I).backward }: { R: number; I: number; spec?: KernelSpec },
) {
  const inputs = { gate_up, act: dact };
  const outputs = { gate_up: gate_up.length, act: dact.length };
  const result = await runTwice(gpu, spec, { params: { R, I }, inputs, outputs });
  return { grad: result.gate_up!, act: result.act! };
}

/** The kernels that a width allows. */
function kernelsOf(I: number) {
  const any = { forward: swigluForwardSpec, backward: swigluBackwardSpec };
  const vec4 = { forward: swigluForwardVec4Spec, backward: swigluBackwardVec4Spec };
  return I % 4 === 0 ? [any, vec4] : [any];
}

Deno.test(onAdapter(gpu, "swiglu_forward and swiglu_backward equal the reference"), async () => {
  for (const [R = 0, I = 0] of shapes) {
    const { gate_up, dout } = tensors(R, I);
    const wide = Float64Array.from(gate_up);
    const expected = swigluForward(wide, { I });
    for (const kernels of kernelsOf(I)) {
      const out = await forward(gate_up, R, I, kernels.forward);
      const { grad, act } = await backward(gate_up, dout, { R, I, spec: kernels.backward });
      const errors = [
        relL2(out, expected),
        relL2(act, expected),
        relL2(grad, swigluBackward(wide, Float64Array.from(dout), { I })),
      ];
      const what = `${R} x ${I}, ${kernels.backward.name}`;
      assert.ok(Math.max(...errors) <= TOLERANCE, `${what}: relative errors ${errors}`);
    }
  }
});

Deno.test(onAdapter(gpu, "swiglu stays finite for gates far outside the range of exp"), async () => {
  const gate_up = Float32Array.of(1000, -1000, 100, -100, 1, 1, 1, 1);
  const out = await forward(gate_up, 1, 4);
  const { grad } = await backward(gate_up, Float32Array.of(1, 1, 1, 1), { R: 1, I: 4 });
  const small = 1e-30;
  assert.deepEqual([...out].map((value) => Math.abs(value) < small ? 0 : value), [1000, 0, 100, 0]);
  const expected = [1, 0, 1, 0, 1000, 0, 100, 0];
  assert.deepEqual([...grad].map((value) => Math.abs(value) < small ? 0 : value), expected);
});

Deno.test(onAdapter(gpu, "swiglu_backward is the difference of swiglu_forward"), async () => {
  const R = 2, I = 5;
  const { gate_up, dout } = tensors(R, I);
  async function loss(gate_up: Float32Array): Promise<number> {
    const run = { params: { R, I }, inputs: { gate_up }, outputs: { out: R * I } };
    return weighted((await runKernel(gpu, swigluForwardSpec, run)).out!, dout);
  }
  await checkDirections(loss, gate_up, (await backward(gate_up, dout, { R, I })).grad);
});
