// A checkpoint read tensor by tensor is the one that was written, and damage of any kind is refused before a weight is used.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { join } from "node:path";
import { stageLayout, wholeModel } from "../../peer/model/layout.ts";
import { decodeSafetensors, encodeSafetensors, type TensorMap } from "../../peer/model/safetensors.ts";
import { ShoalError } from "../../peer/wire/errors.ts";
import { inTempFolder, writeTiny } from "../../test/support/export_support.ts";
import { readCheckpoint, stageStateOf } from "../store/checkpoints.ts";
import { openCheckpoint } from "./source.ts";

const FIRST = "model-00001-of-00002.safetensors", SECOND = "model-00002-of-00002.safetensors";
const NORM = "model.norm.weight";

Deno.test("source: each tensor is the checkpoint's, in whatever cut its files are, several asked for at once", () =>
  inTempFolder(async (folder) => {
    for (const tied of [false, true]) {
      const path = await writeTiny(`${folder}/${tied}`, { tie_word_embeddings: tied });
      const checkpoint = await readCheckpoint(path);
      const { spec } = checkpoint.manifest;
      const { params } = stageStateOf(checkpoint, wholeModel(spec));
      using source = await openCheckpoint(path);
      assert.deepEqual(source.spec, spec);
      const { tensors } = stageLayout(spec, wholeModel(spec));
      const read = await Promise.all(tensors.map(({ name }) => source.read(name)));
      tensors.forEach(({ name, offset, size }, i) => {
        assert.deepEqual(read[i], params.slice(offset, offset + size), name);
      });
    }
  }));

Deno.test("source: a checkpoint that is removed meanwhile is read to its end", () =>
  inTempFolder(async (folder) => {
    const path = await writeTiny(folder);
    using source = await openCheckpoint(path);
    await Deno.remove(path, { recursive: true });
    assert.equal((await source.read(NORM)).length, source.spec.n_embd);
  }));

/** Changes one safetensors file and the manifest with it, as somebody would who knows the format. */
async function forge(path: string, file: string, change: (map: TensorMap) => void): Promise<void> {
  const decoded = decodeSafetensors(await Deno.readFile(join(path, file)));
  assert.ok(decoded.ok);
  change(decoded.value);
  await replace(path, file, encodeSafetensors(decoded.value));
}

async function replace(path: string, file: string, bytes: Uint8Array): Promise<void> {
  await Deno.writeFile(join(path, file), bytes);
  const name = join(path, "manifest.json");
  const manifest = JSON.parse(await Deno.readTextFile(name));
  const entry = manifest.files.find((it: { name: string }) => it.name === file);
  entry.bytes = bytes.length;
  entry.sha256 = createHash("sha256").update(bytes).digest("hex");
  await Deno.writeTextFile(name, JSON.stringify(manifest));
}

type Damage = (path: string) => Promise<void>;

const DAMAGES: Record<string, Damage> = {
  "manifest.json is missing": (path) => Deno.remove(join(path, "manifest.json")),
  "manifest.json is not JSON": (path) => Deno.truncate(join(path, "manifest.json"), 50),
  [`${SECOND} is missing`]: (path) => Deno.remove(join(path, SECOND)),
  [`${SECOND} has 100 bytes instead of \\d+`]: (path) => Deno.truncate(join(path, SECOND), 100),
  [`${FIRST} differs from its SHA-256`]: async (path) => {
    const bytes = await Deno.readFile(join(path, FIRST));
    bytes[bytes.length - 1]! ^= 1;
    await Deno.writeFile(join(path, FIRST), bytes);
  },
  [`${FIRST}: a file of 3 bytes has no safetensors header`]: (path) =>
    replace(path, FIRST, Uint8Array.of(1, 2, 3)),
  [`${FIRST}: a header of \\d+ bytes exceeds`]: (path) => replace(path, FIRST, new Uint8Array(64).fill(255)),
  [`${FIRST}: the header is not a JSON object`]: (path) =>
    replace(path, FIRST, Uint8Array.of(2, 0, 0, 0, 0, 0, 0, 0, 91, 93)),
  [`tensor ${NORM} is missing`]: (path) => forge(path, SECOND, ({ tensors }) => tensors.delete(NORM)),
  [`tensor ${NORM} is F32 \\[2,6\\], expected F32 \\[12\\]`]: (path) =>
    forge(path, SECOND, ({ tensors }) => tensors.get(NORM)!.shape = [2, 6]),
  [`tensor ${NORM} occurs 2 times`]: async (path) => {
    const second = decodeSafetensors(await Deno.readFile(join(path, SECOND)));
    assert.ok(second.ok);
    await forge(path, FIRST, ({ tensors }) => tensors.set(NORM, second.value.tensors.get(NORM)!));
  },
  [`${SECOND} is of step 8, the manifest of 7`]: (path) =>
    forge(path, SECOND, (map) => map.metadata.step = "8"),
  [`${SECOND}: state format version 9 is not 1`]: (path) =>
    forge(path, SECOND, (map) => map.metadata.format_version = "9"),
};

for (const [message, damage] of Object.entries(DAMAGES)) {
  Deno.test(`source: refused: ${message}`, () =>
    inTempFolder(async (folder) => {
      const path = await writeTiny(folder);
      await damage(path);
      await assert.rejects(
        openCheckpoint(path),
        (error) =>
          error instanceof ShoalError && error.code === "bad-checkpoint" &&
          new RegExp(message).test(error.message),
      );
    }));
}

Deno.test("source: two copies of a tied embedding must agree", () =>
  inTempFolder(async (folder) => {
    const path = await writeTiny(folder, { tie_word_embeddings: true });
    await forge(path, SECOND, ({ tensors }) => {
      const { bytes } = tensors.get("model.embed_tokens.weight")!;
      bytes[bytes.length - 1]! ^= 1;
    });
    await assert.rejects(openCheckpoint(path), /the two copies of tensor model.embed_tokens.weight differ/);
  }));

Deno.test("source: a weight that is not finite is refused by name", () =>
  inTempFolder(async (folder) => {
    const path = await writeTiny(folder);
    await forge(path, SECOND, ({ tensors }) => {
      const { bytes } = tensors.get(NORM)!;
      new DataView(bytes.buffer, bytes.byteOffset).setFloat32(4, NaN, true);
    });
    using source = await openCheckpoint(path);
    await assert.rejects(source.read(NORM), {
      code: "bad-checkpoint",
      message: /tensor model.norm.weight contains NaN/,
    });
    // The one after it can still be read.
    assert.equal((await source.read("lm_head.weight")).length, source.spec.vocab_size * source.spec.n_embd);
  }));
