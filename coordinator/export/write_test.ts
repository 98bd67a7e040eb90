// An export appears whole or not at all, and takes the place of nothing but an earlier export.
import assert from "node:assert/strict";
import { ShoalError } from "../../peer/wire/errors.ts";
import { inTempFolder } from "../../test/support/export_support.ts";
import type { ExportFile } from "./pieces.ts";
import type { ExportPlan } from "./plan.ts";
import { temporaryPath, writeExport } from "./write.ts";

function planOf(kind: "file" | "folder", files: readonly ExportFile[], bytes = 10): ExportPlan {
  return { format: kind === "file" ? "gguf" : "hf", dtype: "f32", kind, files, bytes };
}

function fileOf(name: string, text: string): ExportFile {
  const late = { bytes: 1, read: () => Promise.resolve(new TextEncoder().encode("!")) };
  return { name, pieces: [new TextEncoder().encode(text), new Uint8Array(0), late] };
}

const FOLDER = planOf("folder", [fileOf("README.md", "read me"), fileOf("onnx/model.onnx", "graph")]);
const FILE = planOf("file", [fileOf("model.gguf", "gguf")]);

function names(folder: string): string[] {
  return [...Deno.readDirSync(folder)].map(({ name }) => name).sort();
}

function refused(code: string, message: RegExp) {
  return (error: unknown) =>
    error instanceof ShoalError && error.code === code && message.test(error.message);
}

Deno.test("write: files and folders are written whole, with their progress", () =>
  inTempFolder(async (folder) => {
    const seen: number[] = [];
    const path = await writeExport(FOLDER, `${folder}/out`, { onProgress: (bytes) => seen.push(bytes) });
    assert.equal(path, `${folder}/out`);
    assert.equal(await Deno.readTextFile(`${path}/README.md`), "read me!");
    assert.equal(await Deno.readTextFile(`${path}/onnx/model.onnx`), "graph!");
    assert.deepEqual(seen, [7, 7, 8, 13, 13, 14]);
    assert.equal(await Deno.readTextFile(await writeExport(FILE, `${folder}/out.gguf`)), "gguf!");
    assert.deepEqual(names(folder), ["out", "out.gguf"]);
  }));

Deno.test("write: nothing is overwritten unasked, and then only an export", () =>
  inTempFolder(async (folder) => {
    await writeExport(FOLDER, `${folder}/out`);
    await writeExport(FILE, `${folder}/out.gguf`);
    for (const [plan, out] of [[FOLDER, "out"], [FILE, "out.gguf"]] as const) {
      await assert.rejects(writeExport(plan, `${folder}/${out}`), refused("usage", /exists; .* --force/));
      await writeExport(plan, `${folder}/${out}`, { force: true });
    }
    const crossed = [[FOLDER, "out.gguf", /is a file and the export a folder/], [
      FILE,
      "out",
      /is a folder and/,
    ]] as const;
    for (const [plan, out, message] of crossed) {
      await assert.rejects(writeExport(plan, `${folder}/${out}`, { force: true }), refused("usage", message));
    }
    await Deno.writeTextFile(`${folder}/out/diary.txt`, "dear diary");
    await assert.rejects(
      writeExport(FOLDER, `${folder}/out`, { force: true }),
      refused("usage", /"diary.txt", which no export wrote/),
    );
    assert.deepEqual(names(`${folder}/out`), ["README.md", "diary.txt", "onnx"]);
    assert.deepEqual(names(folder), ["out", "out.gguf"]);
  }));

Deno.test("write: an earlier export is gone only when the new one is whole", () =>
  inTempFolder(async (folder) => {
    const out = `${folder}/out`;
    await writeExport(FOLDER, out);
    const broken = {
      name: "config.json",
      pieces: [{ bytes: 1, read: () => Promise.reject(new ShoalError("bad-checkpoint", "damaged")) }],
    };
    const plan = planOf("folder", [fileOf("README.md", "new"), broken]);
    await assert.rejects(writeExport(plan, out, { force: true }), refused("bad-checkpoint", /damaged/));
    assert.equal(await Deno.readTextFile(`${out}/README.md`), "read me!");
    await assert.rejects(writeExport(plan, `${folder}/other`), refused("bad-checkpoint", /damaged/));
    assert.deepEqual(names(folder), ["out"]);
    // What an export that was killed has left does not stand in the way.
    await Deno.mkdir(temporaryPath(out));
    await Deno.writeTextFile(`${temporaryPath(out)}/half`, "");
    await writeExport(planOf("folder", [fileOf("README.md", "new")]), out, { force: true });
    assert.deepEqual([names(folder), names(out)], [["out"], ["README.md"]]);
  }));

Deno.test("write: a missing folder and a full disk are said at once", () =>
  inTempFolder(async (folder) => {
    await assert.rejects(
      writeExport(FILE, `${folder}/no/out.gguf`),
      refused("usage", /folder .*\/no does not exist/),
    );
    await assert.rejects(writeExport(FOLDER, `${folder}/no/out`), refused("usage", /does not exist/));
    for (const kind of ["file", "folder"] as const) {
      const vast = planOf(kind, [fileOf("model.safetensors", "x")], 2 ** 60);
      await assert.rejects(
        writeExport(vast, `${folder}/out`),
        refused("storage-full", /needs 1152921504606847000 bytes/),
      );
    }
    const full = {
      bytes: 1,
      read: () => Promise.reject(Object.assign(new Error("os error 28"), { code: "ENOSPC" })),
    };
    await assert.rejects(
      writeExport(planOf("file", [{ name: "a", pieces: [full] }]), `${folder}/out`),
      refused("storage-full", /no space left/),
    );
    assert.deepEqual(names(folder), []);
  }));
