// Opening a device: a real adapter through the Deno providers, and refusals with a fake one.
import assert from "node:assert/strict";
import { ShoalError } from "../wire/errors.ts";
import { openDevice, readbackMs } from "./device.ts";
import { openDenoDevice, preferred } from "./provider_deno.ts";

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

Deno.test("on hardware the quicker of two providers is taken, on a processor the other is not even opened", async () => {
  const gpu = await openDenoDevice({ provider: "builtin" });
  const builtin = { ...gpu, software: true };
  assert.equal(await preferred(builtin, () => assert.fail("it was opened")), builtin);
  const hardware = { ...gpu, software: false };
  assert.equal(await preferred(hardware, () => Promise.reject(new Error("no addon"))), hardware);
  let [first, second] = [0, 0];
  const other = { ...gpu, provider: "dawn" as const, destroy: () => void second++ };
  const slow = { ...hardware, device: lateDevice(gpu.device), destroy: () => void first++ };
  assert.equal(await preferred(slow, () => Promise.resolve(other)), other);
  assert.deepEqual([first, second], [1, 0]);
  gpu.destroy();
});

/** Maps what was read back a tenth of a second later than the device underneath. */
function lateDevice(device: GPUDevice): GPUDevice {
  const late = (buffer: GPUBuffer) => {
    const map = buffer.mapAsync.bind(buffer);
    buffer.mapAsync = async (...args) => {
      await new Promise((resolve) => setTimeout(resolve, 100));
      return await map(...args);
    };
    return buffer;
  };
  return {
    queue: device.queue,
    createBuffer: (descriptor: GPUBufferDescriptor) => late(device.createBuffer(descriptor)),
    createCommandEncoder: () => device.createCommandEncoder(),
  } as unknown as GPUDevice;
}
