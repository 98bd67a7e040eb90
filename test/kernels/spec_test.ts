// Every KernelSpec against its WGSL: bindings, the uniform struct, overrides, entry point; and that it compiles here.
// wgsl_reflect reads the linked text, so a field or binding that only one side knows fails the test.
import assert from "node:assert/strict";
import { WgslReflect } from "wgsl_reflect/wgsl_reflect.module.js";
import { kernelSpecs } from "../../peer/gpu/kernels/index.ts";
import type { KernelSpec } from "../../peer/gpu/kernel.ts";
import { shaderLibrary } from "../../peer/gpu/library.ts";
import { linkShader } from "../../peer/gpu/link.ts";
import { canRun, compileKernel } from "../../peer/gpu/pipeline.ts";
import { onAdapter, testDevice } from "./support.ts";

const gpu = await testDevice();

/** What wgsl_reflect calls a field; its own type is not exported by the module build. */
interface StructMember {
  name: string;
  type: { name: string };
  offset: number;
}

/** What a binding's WGSL address space and access are called in a bind group layout. */
function bindingType(type: string, access: string): string {
  if (type === "uniform") return "uniform";
  return access === "read_write" ? "storage" : "read-only-storage";
}

/** Bindings of group 0 by index, as KernelBinding. */
function declaredBindings(module: WgslReflect): { name: string; type: string }[] {
  const storage = module.storage.map((v) => ({ ...pick(v), type: bindingType("storage", v.access) }));
  const uniforms = module.uniforms.map((v) => ({ ...pick(v), type: "uniform" }));
  const all = [...uniforms, ...storage].sort((a, b) => a.binding - b.binding);
  for (const [i, { group, binding }] of all.entries()) {
    assert.deepEqual({ group, binding }, { group: 0, binding: i });
  }
  return all.map(({ name, type }) => ({ name, type }));
}

function pick({ name, group, binding }: { name: string; group: number; binding: number }) {
  return { name, group, binding };
}

function checkSpec(spec: KernelSpec): void {
  const module = new WgslReflect(linkShader(spec.wgsl, shaderLibrary));
  assert.deepEqual(declaredBindings(module), spec.bindings, `${spec.name}: bindings`);
  assert.equal(spec.bindings[0]?.name, "params");
  const members = (module.uniforms[0]?.members ?? []) as StructMember[];
  const struct = members.map(({ name, type, offset }) => ({ name, type: type.name, offset }));
  const params = spec.params.map(({ name, type }, i) => ({ name, type, offset: i * 4 }));
  assert.deepEqual(struct, params, `${spec.name}: params`);
  const overrides = module.overrides.map(({ name }) => name).sort();
  assert.deepEqual(overrides, Object.keys(spec.overrides).sort(), `${spec.name}: overrides`);
  assert.deepEqual(module.entry.compute.map(({ name }) => name), ["main"], `${spec.name}: entry point`);
}

Deno.test("every spec agrees with its WGSL", () => {
  assert.ok(kernelSpecs.length > 0);
  for (const spec of kernelSpecs) checkSpec(spec);
  const names = new Set(kernelSpecs.map(({ name }) => name));
  assert.equal(names.size, kernelSpecs.length, "kernel names are unique");
});

Deno.test("every kernel file has its spec in the list", async () => {
  const names = new Set(kernelSpecs.map(({ name }) => `${name}.wgsl`));
  for await (const { name, isFile } of Deno.readDir(new URL("../../shaders", import.meta.url))) {
    if (isFile && name.endsWith(".wgsl")) assert.ok(names.has(name), `shaders/${name} is in no spec`);
  }
});

Deno.test("a spec that differs from its WGSL is noticed", () => {
  const [spec] = kernelSpecs;
  const [params, ...rest] = spec!.bindings;
  assert.throws(() => checkSpec({ ...spec!, bindings: [params!, ...rest.slice(1)] }), /bindings/);
  assert.throws(() => checkSpec({ ...spec!, params: [...spec!.params].reverse() }), /params/);
  assert.throws(() => checkSpec({ ...spec!, overrides: {} }), /overrides/);
});

Deno.test(onAdapter(gpu, "every kernel compiles with its default overrides"), async () => {
  for (const spec of kernelSpecs.filter((spec) => canRun(gpu.device, spec))) {
    assert.ok(await compileKernel(gpu.device, spec));
  }
});

Deno.test("a kernel that enables a feature says so, and runs only where the device has it", () => {
  const enabled = ({ wgsl }: KernelSpec) => /^enable (\w+);/m.exec(wgsl)?.[1];
  for (const spec of kernelSpecs) assert.equal(spec.feature, enabled(spec), spec.name);
  const bare = { ...kernelSpecs[0]!, feature: "subgroups" as const };
  assert.ok(!canRun({ features: new Set() } as unknown as GPUDevice, bare));
  assert.ok(canRun({ features: new Set(["subgroups"]) } as unknown as GPUDevice, bare));
});

Deno.test(onAdapter(gpu, "a broken shader is reported as shader-invalid with its line"), async () => {
  const broken: KernelSpec = { ...kernelSpecs[0]!, name: "broken", wgsl: "fn main() {\n  let x = y;\n}\n" };
  await assert.rejects(compileKernel(gpu.device, broken), (error: Error & { code?: string }) => {
    assert.equal(error.code, "shader-invalid");
    assert.match(error.message, /broken.*y/s);
    return true;
  });
});
