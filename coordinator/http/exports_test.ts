// Exports over HTTP: the same bytes as on disk, with their length, for the organizer alone; refusals come before the first byte,
// and however a download ends, its place is free again.
import assert from "node:assert/strict";
import { join } from "node:path";
import { bytesOf, inTempFolder, planOf, writeTiny } from "../../test/support/export_support.ts";
import { ADMIN, assertProblem, openSite, type Site } from "../../test/support/site.ts";
import { openCheckpoint } from "../export/source.ts";

const NAME = "step-000000007";

/** A run that has written one checkpoint. */
async function openTrained(): Promise<{ site: Site; path: string; ask: Ask }> {
  const site = await openSite();
  const path = await writeTiny(site.shell.options.outDir);
  site.shell.checkpoints.push({ step: 7, bytes: 1, valLoss: 2.25, name: NAME, files: [] });
  const ask = (rest: string, init: RequestInit = {}) =>
    site.ask(`/api/checkpoints/${NAME}/export/${rest}`, { token: ADMIN, ...init });
  return { site, path, ask };
}

type Ask = (rest: string, init?: RequestInit) => Promise<Response>;

Deno.test("http: a GGUF file comes as it is, under a name that says what it is", async () => {
  const { site, path, ask } = await openTrained();
  await using _ = site;
  const response = await ask("gguf?dtype=f16");
  assert.equal(response.status, 200);
  assert.equal(
    response.headers.get("content-disposition"),
    `attachment; filename="the-run-${NAME}-f16.gguf"`,
  );
  const bytes = new Uint8Array(await response.arrayBuffer());
  assert.equal(response.headers.get("content-length"), String(bytes.length));
  using source = await openCheckpoint(path);
  const plan = planOf(source, { format: "gguf", dtype: "f16", name: "the run" });
  assert.deepEqual(bytes, await bytesOf(plan.files[0]!.pieces));
});

Deno.test("http: folders come as a tar with a folder of their own", async () => {
  const { site, ask } = await openTrained();
  await using _ = site;
  for (const [format, weights] of [["hf", "model.safetensors"], ["onnx", "onnx/model.onnx"]] as const) {
    const response = await ask(format);
    assert.match(
      response.headers.get("content-disposition")!,
      new RegExp(`"the-run-${NAME}-${format}-f32\\.tar"`),
    );
    const archive = new Uint8Array(await response.arrayBuffer());
    assert.equal(response.headers.get("content-length"), String(archive.length));
    await inTempFolder(async (folder) => {
      await Deno.writeFile(join(folder, "out.tar"), archive);
      const { success } = await new Deno.Command("tar", { args: ["-xf", "out.tar"], cwd: folder }).output();
      assert.ok(success);
      const inside = join(folder, `the-run-${NAME}-${format}-f32`);
      assert.ok((await Deno.stat(join(inside, weights))).size > 1000);
      assert.match(await Deno.readTextFile(join(inside, "README.md")), /\n# the run\n/);
    });
  }
});

Deno.test("http: what cannot be exported is refused before the first byte", async () => {
  const { site, path, ask } = await openTrained();
  await using _ = site;
  await assertProblem(await ask("pt"), 400, "usage");
  await assertProblem(await ask("onnx?dtype=q8_0"), 400, "usage");
  for (const other of ["step-000000008", "..%2f..", "recovery"]) {
    const response = await site.ask(`/api/checkpoints/${other}/export/gguf`, { token: ADMIN });
    await assertProblem(response, 404, "bad-checkpoint");
  }
  await Deno.truncate(join(path, "model-00001-of-00002.safetensors"), 100);
  await assertProblem(await ask("gguf"), 422, "bad-checkpoint");
  await assertProblem(await ask("hf"), 422, "bad-checkpoint");
});

Deno.test("http: two exports at a time; a place is free again when one is read, cancelled or only asked about", async () => {
  const { site, path, ask } = await openTrained();
  await using _ = site;
  const [first, second] = [await ask("gguf"), await ask("gguf")];
  await assertProblem(await ask("gguf"), 429, "usage");
  await first.body!.cancel();
  const third = await ask("gguf");
  assert.equal(third.status, 200);
  await assertProblem(await ask("gguf"), 429, "usage");
  // What is under way keeps its files, even if the run removes the checkpoint.
  await Deno.remove(path, { recursive: true });
  const [a, b] = await Promise.all([second, third].map((it) => it.arrayBuffer()));
  assert.deepEqual(a, b);
  await writeTiny(site.shell.options.outDir);
  for (let i = 0; i < 3; i++) {
    const head = await ask("gguf", { method: "HEAD" });
    assert.deepEqual([head.status, head.headers.get("content-length")], [200, String(a!.byteLength)]);
  }
  for (let i = 0; i < 3; i++) await assertProblem(await ask("gguf?dtype=f64"), 400, "usage");
  assert.deepEqual(await (await ask("gguf")).arrayBuffer(), a);
});
