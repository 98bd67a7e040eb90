// Checkpoints are complete or absent: written whole, verified when read, and safe against damage and full disks.
import assert from "node:assert/strict";
import { join } from "node:path";
import { DEFAULT_CONFIG, readConfig } from "../../peer/model/config.ts";
import { specOf, splitLayers, stageLayout, wholeModel } from "../../peer/model/layout.ts";
import { encodeState, initialState } from "../../peer/model/state_file.ts";
import { type ErrorCode, ShoalError } from "../../peer/wire/errors.ts";
import {
  type CheckpointContent,
  checkpointsDir,
  newestCheckpoint,
  readCheckpoint,
  stageFileName,
  stageStateOf,
  weightsOf,
  writeCheckpoint,
} from "./checkpoints.ts";

const VOCAB = [..."abcdefg"];
const CONFIG = readConfig({ n_embd: 8, n_inner: 12, n_layer: 3 });
const SPEC = specOf(CONFIG, VOCAB.length);
const STAGES = splitLayers(SPEC, [1, 1]);

function stateOf(stage: typeof STAGES[number], step: number) {
  return { ...initialState(SPEC, stage, step), step };
}

function contentOf(step: number): CheckpointContent {
  return {
    step,
    files: STAGES.map((stage) => ({
      name: stageFileName(stage.index, STAGES.length),
      bytes: encodeState(stateOf(stage, step)),
    })),
    manifest: {
      ...{ config: CONFIG, spec: SPEC, vocab: VOCAB, stages: STAGES },
      ...{ valLoss: 2.5, dataCursor: step, seed: CONFIG.seed },
    },
  };
}

async function inRun(body: (runDir: string) => Promise<void>): Promise<void> {
  const runDir = await Deno.makeTempDir({ prefix: "shoal-checkpoints-" });
  try {
    await body(runDir);
  } finally {
    await Deno.remove(runDir, { recursive: true });
  }
}

function hasCode(code: ErrorCode, pattern: RegExp = /./): (error: unknown) => boolean {
  return (error) => error instanceof ShoalError && error.code === code && pattern.test(error.message);
}

function namesIn(runDir: string): string[] {
  return [...Deno.readDirSync(checkpointsDir(runDir))].map(({ name }) => name).sort();
}

Deno.test("checkpoints: what was written is read, in any cut", () =>
  inRun(async (runDir) => {
    const path = await writeCheckpoint(runDir, contentOf(40));
    assert.equal(await newestCheckpoint(runDir), path);
    const checkpoint = await readCheckpoint(path);
    const { manifest } = contentOf(40);
    const { files, ...rest } = checkpoint.manifest;
    assert.deepEqual(rest, { ...manifest, format: 1, step: 40 });
    assert.deepEqual(files.map(({ name }) => name), [
      "model-00001-of-00002.safetensors",
      "model-00002-of-00002.safetensors",
      "config.json",
      "model.safetensors.index.json",
    ]);
    for (const stage of [...STAGES, wholeModel(SPEC), ...splitLayers(SPEC, [1, 1, 1])]) {
      assert.deepEqual(stageStateOf(checkpoint, stage), stateOf(stage, 40));
    }
    assert.ok(weightsOf(checkpoint).length > 0);
  }));

Deno.test("checkpoints: the shard index leads to every weight", () =>
  inRun(async (runDir) => {
    const path = await writeCheckpoint(runDir, contentOf(1));
    const index = JSON.parse(await Deno.readTextFile(join(path, "model.safetensors.index.json")));
    assert.equal(index.weight_map["model.embed_tokens.weight"], "model-00001-of-00002.safetensors");
    assert.equal(index.weight_map["lm_head.weight"], "model-00002-of-00002.safetensors");
    assert.equal(Object.keys(index.weight_map).length, stageLayout(SPEC, wholeModel(SPEC)).tensors.length);
    const llama = JSON.parse(await Deno.readTextFile(join(path, "config.json")));
    assert.deepEqual(llama.architectures, ["LlamaForCausalLM"]);
  }));

Deno.test("checkpoints: the last ones are kept, and the same step may be written again", () =>
  inRun(async (runDir) => {
    assert.equal(await newestCheckpoint(runDir), null);
    for (const step of [100, 20, 300, 300]) await writeCheckpoint(runDir, contentOf(step), { keep: 2 });
    assert.deepEqual(namesIn(runDir), ["step-000000100", "step-000000300"]);
    await writeCheckpoint(runDir, contentOf(40), { keep: 2 });
    assert.deepEqual(namesIn(runDir), ["step-000000040", "step-000000300"]);
  }));

const DAMAGES: Record<string, (path: string) => void> = {
  "model-00001-of-00002.safetensors differs from its SHA-256": (path) =>
    flipLastByte(join(path, stageFileName(0, 2))),
  "has \\d+ bytes instead of \\d+": (path) => Deno.truncateSync(join(path, stageFileName(1, 2)), 100),
  "at most \\d+ expected": (path) => appendByte(join(path, stageFileName(1, 2))),
  "model-00002-of-00002.safetensors is missing": (path) => Deno.removeSync(join(path, stageFileName(1, 2))),
  "manifest.json is missing": (path) => Deno.removeSync(join(path, "manifest.json")),
  "manifest.json is not JSON": (path) => Deno.truncateSync(join(path, "manifest.json"), 50),
};

function flipLastByte(file: string): void {
  const bytes = Deno.readFileSync(file);
  bytes[bytes.length - 1]! ^= 1;
  Deno.writeFileSync(file, bytes);
}

function appendByte(file: string): void {
  Deno.writeFileSync(file, Uint8Array.of(0), { append: true });
}

Deno.test("checkpoints: damage is refused and the one before is the newest", () =>
  inRun(async (runDir) => {
    const good = await writeCheckpoint(runDir, contentOf(1));
    for (const [reason, damage] of Object.entries(DAMAGES)) {
      const path = await writeCheckpoint(runDir, contentOf(2));
      damage(path);
      await assert.rejects(readCheckpoint(path), hasCode("bad-checkpoint", new RegExp(reason)));
      assert.equal(await newestCheckpoint(runDir), good);
    }
    flipLastByte(join(good, stageFileName(0, 2)));
    await assert.rejects(newestCheckpoint(runDir), hasCode("bad-checkpoint"));
  }));

Deno.test("checkpoints: a manifest that contradicts itself is refused", () =>
  inRun(async (runDir) => {
    const path = await writeCheckpoint(runDir, contentOf(1));
    const file = join(path, "manifest.json");
    const original = JSON.parse(await Deno.readTextFile(file));
    const cases: [Record<string, unknown>, RegExp][] = [
      [{ format: 2 }, /format/],
      [{ step: -1 }, /step/],
      [{ extra: 1 }, /extra/],
      [{ vocab: VOCAB.slice(1) }, /spec.vocab_size is 7, config and vocab say 6/],
      [{ vocab: ["a", "a"] }, /occurs twice/],
      [{ config: { ...CONFIG, n_layers: 3 } }, /unknown key "n_layers"/],
      [{ config: { ...DEFAULT_CONFIG } }, /spec.n_layer is 3/],
      [{ seed: 1 }, /seed 1 is not the configuration's/],
      [{ stages: STAGES.slice(1) }, /stages do not cover/],
      [{ stages: [] }, /stages do not cover/],
      [{ files: [{ ...original.files[0], name: "../secret" }] }, /not a plain file name/],
      [{ files: [original.files[0], original.files[0]] }, /files repeat a name/],
    ];
    for (const [change, reason] of cases) {
      await Deno.writeTextFile(file, JSON.stringify({ ...original, ...change }));
      await assert.rejects(readCheckpoint(path), hasCode("bad-checkpoint", reason));
    }
    await Deno.writeTextFile(
      file,
      JSON.stringify({ ...original, step: 2, files: original.files.slice(0, 1) }),
    );
    const partial = await readCheckpoint(path);
    assert.throws(() => stageStateOf(partial, STAGES[0]!), hasCode("bad-checkpoint", /files are of step 1/));
    assert.throws(() => stageStateOf(partial, STAGES[1]!), hasCode("bad-checkpoint", /is missing/));
    assert.throws(() => weightsOf(partial), hasCode("bad-checkpoint", /is missing/));
  }));

Deno.test("checkpoints: content that could not be read back is refused before anything is written", () =>
  inRun(async (runDir) => {
    const content = contentOf(1);
    const [first, second] = content.files as [typeof content.files[number], typeof content.files[number]];
    for (
      const files of [
        [first],
        [first, { ...second, bytes: second.bytes.slice(1) }],
        [{ ...first, name: "a/b.safetensors" }, second],
        [first, second, { name: "manifest.json", bytes: new Uint8Array(1) }],
      ]
    ) {
      await assert.rejects(writeCheckpoint(runDir, { ...content, files }), hasCode("bad-checkpoint"));
    }
    const manifest = { ...content.manifest, seed: 3 };
    await assert.rejects(
      writeCheckpoint(runDir, { ...content, manifest }),
      hasCode("bad-checkpoint", /seed/),
    );
    assert.equal(await newestCheckpoint(runDir), null);
  }));

Deno.test("checkpoints: on a full disk the previous one stays, at whichever file it happens", () =>
  inRun(async (runDir) => {
    const good = await writeCheckpoint(runDir, contentOf(1));
    const before = await readCheckpoint(good);
    for (let full = 0; full < 5; full++) {
      let written = 0;
      const writeFile = async (path: string, bytes: Uint8Array) => {
        if (written++ < full) await Deno.writeFile(path, bytes);
        else {
          await Deno.writeFile(path, bytes.subarray(0, 10));
          // A device that is always full gives the system's own error.
          await Deno.writeFile("/dev/full", bytes);
        }
      };
      for (const step of [1, 2]) {
        written = 0;
        await assert.rejects(
          writeCheckpoint(runDir, contentOf(step), { writeFile }),
          hasCode("storage-full", /free space/),
        );
        assert.deepEqual(namesIn(runDir), ["step-000000001"]);
        assert.deepEqual(await readCheckpoint(good), before);
      }
    }
    assert.equal(await newestCheckpoint(runDir), good);
    await writeCheckpoint(runDir, contentOf(2));
  }));

Deno.test("checkpoints: leftovers of a crash do no harm", () =>
  inRun(async (runDir) => {
    const good = await writeCheckpoint(runDir, contentOf(1));
    const leftover = join(checkpointsDir(runDir), ".writing-step-000000002");
    await Deno.mkdir(leftover);
    await Deno.writeTextFile(join(leftover, "manifest.json"), "{");
    assert.equal(await newestCheckpoint(runDir), good);
    await writeCheckpoint(runDir, contentOf(2));
    // A crash between the two renames that replace a checkpoint leaves the old one under its other name.
    const [newest, aside] = ["step-000000002", ".old-step-000000002"].map((name) =>
      join(checkpointsDir(runDir), name)
    );
    await Deno.rename(newest!, aside!);
    assert.equal(await newestCheckpoint(runDir), aside);
    assert.deepEqual(await writeCheckpoint(runDir, contentOf(2)), newest);
    assert.deepEqual(namesIn(runDir), ["step-000000001", "step-000000002"]);
  }));
