// The two kernels by which bench/engine.ts measures what an adapter can do at most: that they do all the work that they are
// credited with. A ceiling from a kernel that skips some of it would flatter nobody but itself.
import assert from "node:assert/strict";
import { WgslReflect } from "wgsl_reflect/wgsl_reflect.module.js";
import { copySpec, fmaPeakSpec } from "../../bench/engine_ceiling.ts";
import { shaderLibrary } from "../../peer/gpu/library.ts";
import { linkShader } from "../../peer/gpu/link.ts";
import { onAdapter, relL2, runTwice, testDevice, testValues } from "./support.ts";

const gpu = await testDevice();

for (const vectors of [1, 3, 4, 257, 1000]) {
  Deno.test(onAdapter(gpu, `copy of ${vectors} vectors copies every value`), async () => {
    const x = testValues(4 * vectors, vectors);
    const run = { params: { N: vectors }, inputs: { x }, outputs: { out: 4 * vectors } };
    assert.deepEqual((await runTwice(gpu, copySpec, run)).out, x);
  });
}

for (const fused of [0, 1]) {
  Deno.test(onAdapter(gpu, `fma_peak does its steps in eight chains, fused ${fused}`), async () => {
    const [N, steps, a, b] = [67, 9, 0.75, 0.5];
    const run = { params: { N, steps, a, b }, inputs: {}, outputs: { out: 4 * N }, overrides: { fused } };
    const { out } = await runTwice(gpu, fmaPeakSpec, run);
    const expected = Float64Array.from({ length: 4 * N }, (_, i) => {
      let total = 0;
      for (let chain = 0; chain < 8; chain++) {
        let y = Math.floor(i / 4) + chain;
        for (let step = 0; step < steps; step++) y = y * a + b;
        total += y;
      }
      return total;
    });
    // A few roundings of f32 in each of nine steps.
    assert.ok(relL2(out!, expected) < 1e-6);
  });
}

Deno.test("the specs of both agree with their WGSL", () => {
  for (const spec of [copySpec, fmaPeakSpec]) {
    const module = new WgslReflect(linkShader(spec.wgsl, shaderLibrary));
    const members = (module.uniforms[0]?.members ?? []) as { name: string; type: { name: string } }[];
    assert.deepEqual(members.map(({ name, type }) => ({ name, type: type.name })), spec.params);
    const storage = module.storage.map(({ name, access }) => ({
      name,
      type: access === "read_write" ? "storage" : "read-only-storage",
    }));
    assert.deepEqual(storage, spec.bindings.slice(1));
    assert.deepEqual(module.overrides.map(({ name }) => name).sort(), Object.keys(spec.overrides).sort());
  }
});
