// What the model card says is what the run's own records say, up to the checkpoint and not beyond; the rest is left out.
import assert from "node:assert/strict";
import { paramCount } from "../../peer/model/layout.ts";
import { inTempFolder, writeTiny } from "../../test/support/export_support.ts";
import { factsOf, type ModelFacts, withMetrics } from "./facts.ts";
import { describeModel, modelCard } from "./model_card.ts";
import { openCheckpoint } from "./source.ts";

async function facts(overrides: Parameters<typeof writeTiny>[1] = {}, license: string | null = null) {
  return await inTempFolder(async (folder) => {
    using source = await openCheckpoint(await writeTiny(folder, overrides));
    assert.equal(factsOf(source.manifest, license).params, paramCount(source.spec));
    return factsOf(source.manifest, license);
  });
}

Deno.test("facts: steps become tokens, and a data set's folder stays private", async () => {
  const known = await facts({ step: 7, batch_size: 3, gradient_accumulation_steps: 2, block_size: 8 });
  assert.equal(known.tokens, 7 * 3 * 2 * 8);
  assert.deepEqual([known.dataset, known.license, known.valLoss], ["moby-dick", "public domain", 2.25]);
  assert.deepEqual([known.trainLoss, known.peers], [null, null]);
  const own = await facts({ dataset: "/home/somebody/texts/letters.txt" });
  assert.deepEqual([own.dataset, own.license], ["letters.txt", null]);
  assert.equal((await facts({ dataset: "C:\\texts\\letters.txt" }, "CC-BY-4.0")).license, "CC-BY-4.0");
});

const METRICS = [
  { event: "peer", id: "a", what: "joined" },
  { event: "peer", id: "b", what: "joined" },
  { event: "step", step: 5, "train/loss": 5, peers: 2 },
  "not JSON at all",
  "17",
  { event: "peer", id: "c", what: "joined" },
  { event: "step", step: 6, "train/loss": 4, peers: 3 },
  { event: "step", step: 7, "train/loss": 3.5, peers: 3 },
  { event: "rollback", step: 6, steps_redone: 1 },
  { event: "step", step: 7, "train/loss": 3.25, peers: 1 },
  { event: "peer", id: "late", what: "joined" },
  { event: "step", step: 8, "train/loss": 1, peers: 9 },
];

async function withLines(lines: readonly unknown[]): Promise<ModelFacts> {
  const plain = await facts();
  return await inTempFolder(async (folder) => {
    const text = lines.map((line) => (typeof line === "string" ? line : JSON.stringify(line)) + "\n").join(
      "",
    );
    await Deno.writeTextFile(`${folder}/metrics.jsonl`, text);
    return await withMetrics(plain, folder);
  });
}

Deno.test("facts: loss and peers are the run's up to the checkpoint, of a step done twice the second", async () => {
  const { trainLoss, peers } = await withLines(METRICS);
  assert.equal(trainLoss, 3.25);
  assert.deepEqual(peers, { joined: 3, most: 3 });
});

Deno.test("facts: without metrics less is said", async () => {
  const { trainLoss, peers } = await withLines([]);
  assert.deepEqual([trainLoss, peers], [null, null]);
  const plain = await facts();
  assert.deepEqual(await inTempFolder((folder) => withMetrics(plain, folder)), plain);
});

Deno.test("model card: says data, steps, tokens, loss, peers and licence, and how to load the folder", async () => {
  const known = await withLines(METRICS);
  const card = modelCard("Moby", known, "hf");
  assert.match(
    card,
    /^---\nlibrary_name: transformers\npipeline_tag: text-generation\nlicense: other\n(?:.*\n)+?---\n\n# Moby\n/,
  );
  for (
    const row of [
      ...["| Data | moby-dick |", "| Licence of the data | public domain |", "| Steps | 7 |"],
      ...[
        `| Tokens seen | ${known.tokens} (repeats counted) |`,
        "| Validation loss | 2.2500 nats per character |",
      ],
      ...["| Training loss of the last step | 3.2500 nats per character |", "| Context | 8 tokens |"],
      "| Peers | 3 took part, at most 3 at once |",
    ]
  ) assert.ok(card.includes(`\n${row}\n`), row);
  assert.ok(card.includes(describeModel(known)));
  assert.match(card, /AutoModelForCausalLM\.from_pretrained/);
  assert.match(
    modelCard("Moby", known, "onnx"),
    /library_name: transformers\.js\n[^]*pipeline\("text-generation"/,
  );
});

Deno.test("model card: what is not known is not said, and names cannot break the page", async () => {
  const card = modelCard("A\n# <b>name</b> | `x`", await facts({ dataset: "a|b.txt" }), "hf");
  assert.match(card, /\nlicense: unknown\n/);
  assert.match(card, /\| Licence of the data \| unknown; ask/);
  assert.ok(!/Peers|Training loss/.test(card));
  assert.ok(card.includes("# A \\# \\<b\\>name\\</b\\> \\| \\`x\\`\n"));
  assert.ok(card.includes("| Data | a\\|b.txt |"));
  assert.match(modelCard("x", await facts({}, "CC-BY-4.0"), "hf"), /\nlicense: cc-by-4\.0\n/);
});
