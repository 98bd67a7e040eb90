// Exports over HTTP: the same bytes as on disk, with their length, for the organizer alone; refusals come before the first byte,
// and however a download ends, its place is free again.
import assert from "node:assert/strict";
import { Buffer } from "node:buffer";
import { join } from "node:path";
import { adapt, writeAdapted } from "../../test/support/adapted_model.ts";
import { bytesOf, inTempFolder, planOf, writeTiny } from "../../test/support/export_support.ts";
import { trainSmallModel } from "../../test/support/trained_model.ts";
import { ADMIN, assertProblem, openSite, type Site } from "../../test/support/site.ts";
import { openWeights } from "../export/merged.ts";
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

Deno.test("http: a run with adapters gives them by themselves or merged, and says what is missing", async () => {
  await using site = await openSite();
  const { outDir } = site.shell.options;
  const base = await trainSmallModel({ max_iters: 5 });
  const model = adapt(base, { lora_rank: 2, lora_alpha: 2, lora_targets: "q_proj,v_proj" });
  const path = await writeAdapted(outDir, model, 7);
  site.shell.checkpoints.push({ step: 7, bytes: 1, valLoss: null, name: NAME, files: [] });
  const ask = (rest: string) => site.ask(`/api/checkpoints/${NAME}/export/${rest}`, { token: ADMIN });
  for (const format of ["peft", "hf"] as const) {
    const response = await ask(format);
    assert.equal(
      response.headers.get("content-disposition"),
      `attachment; filename="the-run-${NAME}-${format}-f32.tar"`,
    );
    using source = await openWeights(path, format);
    const weights = planOf(source, { format, dtype: "f32" }).files.at(-1)!;
    const archive = Buffer.from(await response.arrayBuffer());
    assert.ok(archive.includes(await bytesOf(weights.pieces)), weights.name);
  }
  const gguf = await ask("gguf-lora?dtype=f16");
  assert.equal(
    gguf.headers.get("content-disposition"),
    `attachment; filename="the-run-${NAME}-lora-f16.gguf"`,
  );
  assert.equal(new TextDecoder().decode(await gguf.arrayBuffer()).slice(0, 4), "GGUF");
  await assertProblem(await ask("peft?dtype=q8_0"), 400, "usage");
  const file = () => site.ask(`/api/checkpoints/${NAME}/base.safetensors`, { token: ADMIN });
  const whole = await file();
  assert.deepEqual(
    new Uint8Array(await whole.arrayBuffer()),
    await Deno.readFile(join(outDir, "base.safetensors")),
  );
  assert.equal((await site.ask(`/api/checkpoints/${NAME}/base.safetensors`)).status, 401);
  await Deno.remove(join(outDir, "base.safetensors"));
  await assertProblem(await file(), 404, "bad-checkpoint");
  await assertProblem(await ask("hf"), 422, "bad-checkpoint");
  const alone = await ask("peft");
  assert.equal(alone.status, 200);
  await alone.body?.cancel();
});

Deno.test("http: what cannot be exported is refused before the first byte", async () => {
  const { site, path, ask } = await openTrained();
  await using _ = site;
  await assertProblem(await ask("pt"), 400, "usage");
  await assertProblem(await ask("onnx?dtype=q8_0"), 400, "usage");
  await assertProblem(await ask("peft"), 400, "usage");
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
