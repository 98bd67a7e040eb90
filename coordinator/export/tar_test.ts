// The archive is what tar itself unpacks, and as long as it was said to be.
import assert from "node:assert/strict";
import { bytesOf, inTempFolder } from "../../test/support/export_support.ts";
import { textFile, totalBytes } from "./pieces.ts";
import { tarPieces } from "./tar.ts";

Deno.test("tar: the system's tar unpacks every file as it was", () =>
  inTempFolder(async (folder) => {
    const texts = {
      "README.md": "read me",
      "onnx/model.onnx": "x".repeat(1000),
      "empty.json": "",
      "block": "b".repeat(512),
    };
    const files = Object.entries(texts).map(([name, text]) => textFile(name, text));
    const pieces = tarPieces("a-model", files);
    const archive = await bytesOf(pieces);
    assert.equal(archive.length, totalBytes(pieces));
    assert.equal(archive.length % 512, 0);
    await Deno.writeFile(`${folder}/out.tar`, archive);
    const { success, stderr } = await new Deno.Command("tar", { args: ["-xf", "out.tar"], cwd: folder })
      .output();
    assert.ok(success, new TextDecoder().decode(stderr));
    assert.equal(new TextDecoder().decode(stderr), "");
    for (const [name, text] of Object.entries(texts)) {
      assert.equal(await Deno.readTextFile(`${folder}/a-model/${name}`), text);
    }
  }));
