// Opening a device: a real adapter through the Deno providers, and refusals with a fake one.
import assert from "node:assert/strict";
import { ShoalError } from "../wire/errors.ts";
import { openDevice, readbackMs } from "./device.ts";
import { openDenoDevice } from "./provider_deno.ts";

Deno.test("the Deno provider opens an adapter with a name and its own storage limits", async () => {
  const gpu = await openDenoDevice();
  assert.ok(gpu.adapterName.length > 0);
  assert.ok(gpu.limits.maxStorageBufferBindingSize >= 128 * 2 ** 20);
  assert.ok(gpu.limits.maxStorageBuffersPerShaderStage >= 8);
  assert.ok(await readbackMs(gpu.device) > 0);
  assert.equal(gpu.failure(), undefined);
  gpu.destroy();
  assert.equal(typeof await gpu.lost, "string");
});

Deno.test("no adapter is an error that names the provider and the remedy", async () => {
  const none = { requestAdapter: () => Promise.resolve(null) } as unknown as GPU;
  for (const dawn of [() => Promise.resolve(none), () => Promise.resolve(null)]) {
    await assert.rejects(openDevice({ provider: "dawn", dawn }), (error) => {
      return error instanceof ShoalError && error.code === "no-adapter" &&
        /provider dawn.*driver/.test(error.message);
    });
  }
  await assert.rejects(openDevice({ provider: "dawn" }), /no WebGPU adapter/);
});

Deno.test("a provider that fails is named, and does not hide the other", async () => {
  const dawn = () => Promise.reject(new Error("addon missing"));
  await assert.rejects(openDevice({ provider: "dawn", dawn }), /dawn: addon missing/);
});

Deno.test("an aborted signal stops the opening with its reason", async () => {
  const signal = AbortSignal.abort(new Error("left the page"));
  await assert.rejects(openDevice({ signal }), /left the page/);
});

Deno.test("an unhandled refusal by the device is kept as failure", async () => {
  const gpu = await openDenoDevice();
  const buffer = gpu.device.createBuffer({ size: 16, usage: 0x8 });
  const encoder = gpu.device.createCommandEncoder();
  encoder.copyBufferToBuffer(buffer, 0, buffer, 8, 8);
  gpu.device.queue.submit([encoder.finish()]);
  await readbackMs(gpu.device);
  assert.equal(gpu.failure()?.code, "internal");
  buffer.destroy();
  gpu.destroy();
});
