// A base on disk and over HTTP: what is written can be read by anybody's safetensors reader, its hash names its content, a file that was
// altered or belongs to another model is refused, and a range is answered byte for byte or not at all.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { join } from "node:path";
import { Hono } from "hono";
import { addBaseRoutes, baseList, originsOf } from "../http/base.ts";
import { readConfig } from "../../peer/model/config.ts";
import { baseSpec, specOf, stageLayout, wholeModel } from "../../peer/model/layout.ts";
import { decodeSafetensors, type Tensor, toF32 } from "../../peer/model/safetensors.ts";
import { type ErrorCode, ShoalError } from "../../peer/wire/errors.ts";
import type { ModelSpec } from "../../peer/wire/run.ts";
import { inTempFolder } from "../../test/support/checkpoint.ts";
import { BASE_NAME, BaseFile, copyBase, readBase, writeBase } from "./base.ts";

const SHAPE = { n_layer: 2, n_head: 2, n_kv_head: 1, n_embd: 8, n_inner: 12, block_size: 4, lora_rank: 2 };
const spec = specOf(readConfig(SHAPE), 5);
const layout = stageLayout(baseSpec(spec), wholeModel(spec));
const params = Float32Array.from({ length: layout.size }, (_, i) => Math.fround(Math.sin(i)));
// Padding is not stored.
const stored = new Float32Array(layout.size);
for (const { offset, size } of layout.tensors) stored.set(params.subarray(offset, offset + size), offset);

function write(folder: string, more: Partial<Parameters<typeof writeBase>[1]> = {}): Promise<string> {
  return writeBase(folder, {
    spec,
    read: ({ offset, size }, into) => {
      into.set(params.subarray(offset, offset + size));
      return Promise.resolve(createHash("sha256").update(new Uint8Array(into.buffer)).digest("hex"));
    },
    ...more,
  });
}

const named = (hash: string): ModelSpec => ({ ...spec, lora: { ...spec.lora!, base: hash } });

async function refuses(work: () => Promise<unknown>, wanted: RegExp, code: ErrorCode = "bad-checkpoint") {
  await assert.rejects(
    work,
    (error) => error instanceof ShoalError && error.code === code && wanted.test(error.message),
    String(wanted),
  );
}

Deno.test("base file: every tensor under its name, and the whole model back", () =>
  inTempFolder(async (folder) => {
    const steps: number[] = [];
    const hash = await write(folder, { onProgress: (done, of) => steps.push(done / of) });
    assert.equal(steps.at(-1), 1);
    const file = decodeSafetensors(await Deno.readFile(join(folder, BASE_NAME)));
    assert.ok(file.ok);
    assert.deepEqual([...file.value.tensors.keys()], layout.tensors.map(({ name }) => name));
    for (const { name, shape, offset, size } of layout.tensors) {
      const tensor: Tensor = file.value.tensors.get(name)!;
      assert.deepEqual(tensor.shape, shape);
      assert.deepEqual(toF32(tensor), params.subarray(offset, offset + size));
    }
    assert.deepEqual(await readBase(folder, named(hash)), stored);
    await Deno.mkdir(join(folder, "other"));
    assert.equal(await write(join(folder, "other")), hash, "the hash is of the content");
    await copyBase(folder, join(folder, "copy"));
    assert.deepEqual(await readBase(join(folder, "copy"), named(hash)), stored);
  }));

Deno.test("base file: missing, altered, cut short, of another model or another base: refused with the remedy", () =>
  inTempFolder(async (folder) => {
    await refuses(() => readBase(folder, spec), /there is no such file; adapters need the base.safetensors/);
    const hash = await write(folder);
    const path = join(folder, BASE_NAME);
    await refuses(() => readBase(folder, named("1".repeat(64))), /the run's adapters belong to 1{64}/);
    const wider = specOf(readConfig({ ...SHAPE, n_inner: 16 }), 5);
    await refuses(() => readBase(folder, wider), /not of this model/);
    const whole = await Deno.readFile(path);
    const altered = whole.slice();
    altered[altered.length - 1]! ^= 1;
    await Deno.writeFile(path, altered);
    await refuses(() => readBase(folder, named(hash)), /differs from its SHA-256/);
    await Deno.writeFile(path, whole.subarray(0, whole.length - 1));
    await refuses(() => readBase(folder, named(hash)), /leaves the/);
    const bomb = new Uint8Array(16);
    new DataView(bomb.buffer).setBigUint64(0, 2n ** 60n, true);
    await Deno.writeFile(path, bomb);
    await refuses(() => readBase(folder, named(hash)), /a header of 1152921504606846976 bytes exceeds/);
  }));

Deno.test("base file: what fails while it is written leaves no file", () =>
  inTempFolder(async (folder) => {
    await refuses(
      () => write(folder, { read: () => Promise.reject(new ShoalError("bad-model", "it ends too early")) }),
      /too early/,
      "bad-model",
    );
    assert.deepEqual([...Deno.readDirSync(folder)], []);
  }));

const place = (name: string) => ({
  file: name.includes("layers.1") ? 1 : 0,
  dtype: "F32" as const,
  begin: 8,
  end: 12,
});

Deno.test("base list: an address is told to peers with the places of the imported files", () =>
  inTempFolder(async (folder) => {
    await write(folder);
    const plain = await BaseFile.open(folder, spec);
    assert.equal(baseList(plain), plain.list);
    assert.throws(() => baseList(plain, "https://models.example/m/"), /was not imported from files/);
    const source = {
      files: ["a.safetensors", "b.safetensors"],
      place: ({ name }: { name: string }) => place(name),
    };
    await write(folder, { source });
    const file = await BaseFile.open(folder, spec);
    const { urls, tensors } = baseList(file, "https://models.example/m").source!;
    assert.deepEqual(urls, [
      "https://models.example/m/a.safetensors",
      "https://models.example/m/b.safetensors",
    ]);
    assert.equal(tensors.length, layout.tensors.length);
    assert.deepEqual([originsOf(plain.list), originsOf(baseList(file, "https://models.example/m"))], [
      [],
      ["https://models.example"],
    ]);
    // Of the bytes that were read: here they are the f32 values themselves.
    assert.deepEqual(tensors.map((it) => it.sha256), file.list.tensors.map((it) => it.sha256));
    assert.throws(
      () => baseList(file, "https://models.example/m/a.safetensors"),
      /names one file, the model has 2/,
    );
    assert.throws(() => baseList(file, "http://models.example/m/"), /--base_url is/);
  }));

Deno.test("base routes: a range byte for byte, and nothing else, for peers alone", () =>
  inTempFolder(async (folder) => {
    await write(folder);
    const file = await BaseFile.open(folder, spec);
    const app = new Hono();
    const pieces = (begin: number, end: number) => file.pieces(begin, end);
    addBaseRoutes(
      app,
      { pieces, list: file.list, trained: false },
      (request) => request.headers.has("x-peer"),
    );
    const ask = (path: string, range?: string) =>
      app.request(path, { headers: { "x-peer": "a", ...(range === undefined ? {} : { range }) } });
    assert.deepEqual(await (await ask("/api/base")).json(), file.list);
    for (const path of ["/api/base", "/api/base/file"]) assert.equal((await app.request(path)).status, 401);
    const whole = await Deno.readFile(join(folder, BASE_NAME));
    const last = whole.length - 1;
    for (const [first, end] of [[0, 7], [100, 100], [9, last]] as const) {
      const answer = await ask("/api/base/file", `bytes=${first}-${end}`);
      assert.equal(answer.status, 206);
      assert.equal(answer.headers.get("content-range"), `bytes ${first}-${end}/${whole.length}`);
      assert.deepEqual(new Uint8Array(await answer.arrayBuffer()), whole.slice(first, end + 1));
    }
    for (
      const wrong of [
        undefined,
        "bytes=5-",
        "bytes=-5",
        `bytes=0-${last + 1}`,
        "bytes=7-6",
        "bytes=0-1,3-4",
        "lines=0-1",
      ]
    ) {
      assert.equal((await ask("/api/base/file", wrong)).status, 416, String(wrong));
    }
  }));
