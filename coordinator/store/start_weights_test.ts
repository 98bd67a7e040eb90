// The weights that a run begins with, out of its first checkpoint: any range is the bytes of the tensors that lie there, whatever files
// they are in; nothing is there for a run that has trained, or whose files have been let go of.
import assert from "node:assert/strict";
import fc from "fast-check";
import { Hono } from "hono";
import { addBaseRoutes, baseList } from "../http/base.ts";
import { stageLayout, wholeModel } from "../../peer/model/layout.ts";
import { checkBase } from "../../peer/model/lora_base.ts";
import { readBaseList } from "../../peer/wire/base.ts";
import { ShoalError } from "../../peer/wire/errors.ts";
import { inTempFolder, writeTiny } from "../../test/support/checkpoint.ts";
import { SOURCE_NAME } from "./base_source.ts";
import { checkpointStates } from "./checkpoint_list.ts";
import { type Checkpoint, readCheckpoint, stageStateOf } from "./checkpoints.ts";
import { StartWeights } from "./start_weights.ts";

const TIED = { tie_word_embeddings: true, n_layer: 3 };

async function opened(folder: string, step = 0) {
  const checkpoint = await readCheckpoint(await writeTiny(folder, { step, config: TIED }));
  const states = checkpointStates(checkpoint);
  return { checkpoint, states, weights: StartWeights.of(checkpoint, states) };
}

function withSource(checkpoint: Checkpoint, text: string): Checkpoint {
  const file = { name: SOURCE_NAME, bytes: new TextEncoder().encode(text) };
  return { ...checkpoint, files: [...checkpoint.files, file] };
}

Deno.test("start weights: a list of the whole model, and any range of its bytes", () =>
  inTempFolder(async (folder) => {
    const { checkpoint, states, weights } = await opened(folder);
    const { spec } = checkpoint.manifest;
    const read = readBaseList(JSON.parse(JSON.stringify(weights!.list)));
    assert.ok(read.ok && checkBase(spec, read.value).ok);
    const { params } = stageStateOf(checkpoint, wholeModel(spec));
    const whole: number[] = [];
    for (const { offset, size } of stageLayout(spec, wholeModel(spec)).tensors) {
      whole.push(...new Uint8Array(params.slice(offset, offset + size).buffer));
    }
    assert.equal(weights!.list.bytes, whole.length);
    const named = weights!.named(states);
    assert.ok(named.every(({ info }) => info.base === weights!.list.hash));
    const at = fc.integer({ min: 0, max: whole.length - 1 });
    fc.assert(
      fc.property(at, at, (a, b) => {
        const [begin, end] = [Math.min(a, b), Math.max(a, b) + 1];
        const pieces = weights!.pieces(
          begin,
          end,
          ({ hash }) => named.find((it) => it.info.hash === hash)!.bytes,
        )!;
        assert.deepEqual(pieces.flatMap((piece) => [...piece]), whole.slice(begin, end));
      }),
      { seed: 5, numRuns: 60 },
    );
  }));

Deno.test("start weights: none for a run that has trained, and none once its files are let go of", () =>
  inTempFolder(async (folder) => {
    assert.equal((await opened(folder, 3)).weights, null);
    const { states, weights } = await opened(folder);
    const app = new Hono();
    let here = true;
    const pieces = (begin: number, end: number) =>
      weights!.pieces(begin, end, (info) => here ? states.find((it) => it.info === info)!.bytes : null);
    addBaseRoutes(app, { pieces, list: weights!.list, trained: true }, () => true);
    const ask = () => app.request("/api/base/file", { headers: { range: "bytes=4-99" } });
    assert.equal((await (await ask()).arrayBuffer()).byteLength, 96);
    here = false;
    assert.equal((await ask()).status, 404);
  }));

Deno.test("start weights: where they were imported from is told with an address, and refused where it is nonsense", () =>
  inTempFolder(async (folder) => {
    const { checkpoint, states } = await opened(folder);
    const { list } = StartWeights.of(checkpoint, states)!;
    assert.throws(
      () => baseList(StartWeights.of(checkpoint, states)!, "https://models.example/m/"),
      /was not imported from files/,
    );
    const [{ name, begin, end, sha256 }] = list.tensors as [typeof list.tensors[number]];
    const source = {
      files: ["a.safetensors"],
      tensors: [{ name, file: 0, dtype: "F32", begin, end, sha256 }],
    };
    const open = (value: unknown) => StartWeights.of(withSource(checkpoint, JSON.stringify(value)), states)!;
    assert.deepEqual(baseList(open(source), "https://models.example/m/").source, {
      urls: ["https://models.example/m/a.safetensors"],
      tensors: source.tensors,
    });
    for (
      const wrong of [
        null,
        { ...source, files: ["../a"] },
        { ...source, files: [] },
        { ...source, tensors: [{ ...source.tensors[0], dtype: "I8" }] },
      ]
    ) {
      assert.throws(
        () => open(wrong),
        (error) =>
          error instanceof ShoalError && error.code === "bad-checkpoint" && /source.json/.test(error.message),
      );
    }
  }));
