// `shoal export` as a process with exactly its own permissions: what it writes, says and returns, and that a mistake leaves nothing.
// What the files are worth is shown in export_gguf_test.ts and coordinator/export/clients_test.ts.
import assert from "node:assert/strict";
import { join } from "node:path";
import { shoal } from "../support/cli_support.ts";
import { adapt, writeAdapted } from "../support/adapted_model.ts";
import { logSoftmax } from "../support/compare_logits.ts";
import { inTempFolder, writeTiny } from "../support/export_support.ts";
import { trainSmallModel } from "../support/trained_model.ts";

interface Ended {
  code: number;
  out: string[];
  err: string;
}

async function exporting(...args: string[]): Promise<Ended> {
  await using cli = shoal("export", args);
  const code = await cli.ended();
  return { code, out: cli.out, err: cli.err.join("\n") };
}

function names(folder: string): string[] {
  return [...Deno.readDirSync(folder)].map(({ name }) => name).sort();
}

Deno.test("cli: export writes a run's newest checkpoint in each format, and prints where", () =>
  inTempFolder(async (folder) => {
    const run = join(folder, "run");
    await writeTiny(run, { step: 7 });
    const newest = await writeTiny(run, { step: 9 });
    await Deno.writeTextFile(
      join(run, "metrics.jsonl"),
      '{"event":"step","step":9,"train/loss":1.5,"peers":2}\n',
    );
    const hf = join(folder, "hf"), gguf = join(folder, "model.gguf"), onnx = join(folder, "onnx");
    const folders = [["hf", hf], ["onnx", onnx]] as const;
    for (const [format, out] of folders) {
      const { code, out: printed, err } = await exporting(
        "--checkpoint",
        run,
        "--format",
        format,
        "--out",
        out,
      );
      assert.deepEqual([code, printed], [0, [out]], err);
      // Not a terminal: no progress, and nothing to note.
      assert.equal(err, "");
    }
    assert.ok(names(hf).includes("model.safetensors"));
    assert.match(
      await Deno.readTextFile(join(hf, "README.md")),
      /\| Training loss of the last step \| 1\.5000 nats/,
    );
    const { code, out, err } = await exporting(
      ...["--checkpoint", newest, "--format=gguf", "--dtype=q8_0", "--out", gguf, "--name=Mine", "--json"],
    );
    assert.equal(code, 0, err);
    assert.match(err, /^note: prompts for llama\.cpp may only use characters of the training text/);
    const { size } = await Deno.stat(gguf);
    assert.deepEqual(out.map((line) => JSON.parse(line)), [{
      ...{ checkpoint: newest, step: 9, format: "gguf", dtype: "q8_0", out: gguf, bytes: size },
      files: [{ name: "model.gguf", bytes: size }],
    }]);
    assert.deepEqual(names(folder), ["hf", "model.gguf", "onnx", "run"]);
  }));

Deno.test("cli: a run with adapters is written, measured and exported with its base, or as adapters alone", () =>
  inTempFolder(async (folder) => {
    const run = join(folder, "run"), vocabulary = { max_iters: 5, tie_word_embeddings: true };
    await Deno.mkdir(run);
    const model = adapt(await trainSmallModel(vocabulary), {
      ...{ lora_rank: 2, lora_alpha: 4, lora_targets: "q_proj,v_proj,down_proj" },
    });
    const checkpoint = await writeAdapted(run, model);
    const ask = async (verb: string, ...args: string[]) => {
      await using cli = shoal(verb, ["--checkpoint", checkpoint, "--json", ...args]);
      assert.equal(await cli.ended(), 0, cli.err.join("\n"));
      return cli.json()[0]!;
    };
    const written = await ask("generate", "--prompt", "Call me", "--count=12", "--temperature=0");
    assert.equal(written.text, model.greedy("Call me", 12));
    const dataset = join(folder, "text.txt"), text = "Call me Ishmael. Some years ago, ";
    await Deno.writeTextFile(dataset, text);
    const measured = await ask("eval", "--engine=cpu", "--split=whole", "--dataset", dataset);
    const tokens = model.base.encode(text), rows = model.logits(tokens.slice(0, -1));
    const nats = rows.reduce((sum, row, i) => sum - logSoftmax(row)[tokens[i + 1]!]!, 0);
    assert.ok(Math.abs(Number(measured.loss) - nats / rows.length) < 1e-4, JSON.stringify(measured));
    const named = ["--format=peft", "--base_model=us/whale", "--out", join(folder, "peft")];
    await ask("export", ...named);
    assert.deepEqual(names(join(folder, "peft")), [
      ...["README.md", "adapter_config.json", "adapter_model.safetensors", "tokenizer.json"],
      "tokenizer_config.json",
    ]);
    const merged = await ask("export", "--format=gguf", "--out", join(folder, "merged.gguf"));
    assert.ok(Number(merged.bytes) > 4 * model.base.state.params.length);
    await Deno.remove(join(run, "base.safetensors"));
    const { code, err } = await exporting("--checkpoint", checkpoint, "--format=hf");
    assert.deepEqual([code, /adapters need the base\.safetensors/.test(err)], [1, true], err);
  }));

Deno.test("cli: export refuses in one sentence, and leaves nothing behind", () =>
  inTempFolder(async (folder) => {
    const run = join(folder, "run"), out = join(folder, "out");
    await writeTiny(run);
    const damaged = await writeTiny(join(folder, "damaged"));
    await Deno.truncate(join(damaged, "model-00002-of-00002.safetensors"), 99);
    await Deno.mkdir(join(folder, "full"));
    await Deno.writeTextFile(join(folder, "full/diary.txt"), "dear diary");
    const mistakes: [number, RegExp, ...string[]][] = [
      [2, /--checkpoint is missing/, "--format=hf"],
      [2, /--format is missing/, "--checkpoint", run],
      [2, /format "pytorch" is not one of hf, gguf, onnx/, "--checkpoint", run, "--format=pytorch"],
      [2, /dtype "q8_0" does not go with hf/, "--checkpoint", run, "--format=hf", "--dtype=q8_0"],
      [2, /did you mean "--dtype"/, "--checkpoint", run, "--format=hf", "--dtipe=f16"],
      [2, /--shard_mb is "0"; use an integer/, "--checkpoint", run, "--format=hf", "--shard_mb=0"],
      [1, /holds no checkpoint/, "--checkpoint", folder, "--format=hf", "--out", out],
      [1, /has 99 bytes instead of/, "--checkpoint", damaged, "--format=gguf", "--out", out],
      [
        2,
        /no\/where does not exist/,
        "--checkpoint",
        run,
        "--format=hf",
        "--out",
        join(folder, "no/where/out"),
      ],
      [2, /exists; choose another --out/, "--checkpoint", run, "--format=hf", "--out", join(folder, "full")],
      [
        2,
        /which no export wrote/,
        "--checkpoint",
        run,
        "--format=hf",
        "--force",
        "--out",
        join(folder, "full"),
      ],
    ];
    for (const [code, says, ...args] of mistakes) {
      const ended = await exporting(...args);
      assert.equal(ended.code, code, `${args.join(" ")}\n${ended.err}`);
      assert.match(ended.err, says);
      assert.ok(!/^\s+at /m.test(ended.err), `${args.join(" ")} showed a stack`);
      assert.deepEqual(ended.out, []);
    }
    assert.deepEqual(names(folder), ["damaged", "full", "run"]);
    assert.deepEqual(names(join(folder, "full")), ["diary.txt"]);
  }));
