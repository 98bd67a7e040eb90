// Hashes of a file's pages: those of its bytes, kept beside it, and never taken for those of other bytes.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { join } from "node:path";
import { type HashedFile, hashPages } from "./token_store.ts";

const PAGE = 512;

async function inFolder(test: (path: string, kept: string) => Promise<void>): Promise<void> {
  const folder = await Deno.makeTempDir({ prefix: "shoal-pages-" }), path = join(folder, "tokens.bin");
  try {
    await test(path, `${path}.pages-${PAGE}`);
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
}

function textOf(seed: number, size = 3 * PAGE + 100): Uint8Array {
  return Uint8Array.from({ length: size }, (_, i) => (i * seed) & 0xff);
}

function expected(bytes: Uint8Array): HashedFile {
  const sha256 = (part: Uint8Array) => createHash("sha256").update(part).digest();
  const count = Math.ceil(bytes.length / PAGE);
  const parts = Array.from({ length: count }, (_, i) => sha256(bytes.subarray(i * PAGE, (i + 1) * PAGE)));
  const digests = new Uint8Array(Buffer.concat(parts));
  const pages = { bytes: PAGE, digests, hash: sha256(digests).toString("hex") };
  return { bytes: bytes.length, hash: sha256(bytes).toString("hex"), pages };
}

Deno.test("token store: the hashes of pages are those of the bytes, the first time and when they are read again", () =>
  inFolder(async (path, kept) => {
    const text = textOf(7);
    await Deno.writeFile(path, text);
    assert.deepEqual(await hashPages(path, PAGE), expected(text));
    const before = await Deno.readFile(kept);
    assert.deepEqual(await hashPages(path, PAGE), expected(text));
    assert.deepEqual(await Deno.readFile(kept), before);
    // Were they computed again, nothing would be wrong with them.
    const forged = before.slice();
    forged[40]! ^= 1;
    forged.set(createHash("sha256").update(expected(text).hash).update(forged.subarray(32)).digest());
    await Deno.writeFile(kept, forged);
    assert.deepEqual((await hashPages(path, PAGE)).pages.digests, forged.slice(32), "they were not read");
  }));

Deno.test("token store: kept hashes that are damaged or of other bytes are made anew", () =>
  inFolder(async (path, kept) => {
    await Deno.writeFile(path, textOf(7));
    await hashPages(path, PAGE);
    await Deno.writeFile(path, textOf(11));
    assert.deepEqual(await hashPages(path, PAGE), expected(textOf(11)));
    for (
      const spoil of [
        (bytes: Uint8Array) => void (bytes[0]! ^= 1),
        (bytes: Uint8Array) => void (bytes[50]! ^= 1),
      ]
    ) {
      const bytes = await Deno.readFile(kept);
      spoil(bytes);
      await Deno.writeFile(kept, bytes);
      assert.deepEqual(await hashPages(path, PAGE), expected(textOf(11)));
    }
    await Deno.truncate(kept, 40);
    assert.deepEqual(await hashPages(path, PAGE), expected(textOf(11)));
    const names = [...Deno.readDirSync(join(path, ".."))].map(({ name }) => name).sort();
    assert.deepEqual(names, ["tokens.bin", `tokens.bin.pages-${PAGE}`], "something was left behind");
  }));
