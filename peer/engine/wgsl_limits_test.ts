// What a stage's plan says of an adapter that cannot bind one of its tensors: which, how large, the limit and what helps. And
// that logits are bound whatever the batch is. Plans only, no device.
import assert from "node:assert/strict";
import { DEFAULT_LIMITS } from "../gpu/arena.ts";
import { wholeModel } from "../model/layout.ts";
import { HEAD_TILE, headTile } from "../model/stage_tensors.ts";
import { ShoalError } from "../wire/errors.ts";
import type { ModelSpec } from "../wire/run.ts";
import type { StageBuild } from "./engine.ts";
import { forwardName, planStage } from "./wgsl_plan.ts";

const spec: ModelSpec = {
  ...{ vocab_size: 5000, block_size: 64, n_layer: 1, n_head: 4, n_kv_head: 2, n_embd: 64, n_inner: 192 },
  ...{ tie_word_embeddings: false, rope_theta: 10_000, norm_eps: 1e-5 },
};

function build(changes: Partial<ModelSpec> = {}, batchSize = 8): StageBuild {
  const changed = { ...spec, ...changes };
  const codecs = { codecForward: "raw32", codecBackward: "raw32" } as const;
  return { spec: changed, stage: wholeModel(changed), batchSize, slots: 1, ...codecs };
}

/** What is said of a stage where a binding has so many bytes; null if it can be planned. */
function refusal(of: StageBuild, bindingBytesMax: number): string | null {
  try {
    planStage(of, { software: true, limits: { bindingBytesMax, bufferBytesMax: 4 * bindingBytesMax } });
    return null;
  } catch (error) {
    assert.ok(error instanceof ShoalError && error.code === "out-of-memory", String(error));
    return error.message;
  }
}

/** The largest tensor: logits [512, 2048]. */
const LOGITS = 512 * 2048 * 4;

Deno.test("limits: a batch that is too large for a binding is refused with the size that fits", () => {
  assert.equal(refusal(build(), LOGITS), null);
  assert.equal(
    refusal(build(), LOGITS / 2),
    'the activation tensor "logits" needs 4194304 bytes in one piece, the adapter binds 2097152; ' +
      "take a batch_size of 4 at most, and as many more gradient_accumulation_steps",
  );
  assert.equal(refusal(build({}, 4), LOGITS / 2), null, "the remedy helps");
});

Deno.test("limits: a sequence that is too long alone, and a matrix, say what else helps", () => {
  const long = build({ vocab_size: 83, block_size: 4096 }, 1);
  assert.match(
    refusal(long, 1 << 22) ?? "",
    /^the activation tensor "gate up 0" needs 6291456 bytes .* binds 4194304; make block_size or/,
  );
  const wide = build({ n_inner: 4096, n_layer: 2, block_size: 4 }, 1);
  assert.equal(
    refusal(wide, 1 << 20),
    "the matrix of model.layers.0.mlp.gate_proj.weight to model.layers.0.mlp.up_proj.weight needs 2097152 bytes in one " +
      "piece, the adapter binds 1048576; let peers compute whose adapter binds more, as graphics processors do, or make " +
      "n_embd or n_inner smaller",
  );
  assert.equal(refusal(wide, 1 << 21), null, "a vocabulary's matrix is cut instead");
});

Deno.test("limits: logits stay within what every adapter binds, in tiles that cover the vocabulary", () => {
  assert.equal(headTile({ R: 16_384 }), HEAD_TILE);
  for (const [batchSize, width] of [[257, 2_036 - 2_036 % 64], [2_048, 256], [65_536, 64]] as const) {
    const R = batchSize * spec.block_size;
    assert.equal(headTile({ R }), width, `${R} rows`);
    if (batchSize > 2_048) continue;
    const { plan } = planStage(build({}, batchSize), { software: true });
    const logits = plan.tensors.find(({ name }) => name === "logits")!;
    assert.ok(logits.bytes <= DEFAULT_LIMITS.bindingBytesMax, `${logits.bytes} bytes`);
    const tiles = plan.operations.get(forwardName(0))!.dispatches
      .filter(({ tensors }) => tensors.out === "logits").map(({ params }) => params.N!);
    assert.equal(tiles.reduce((sum, N) => sum + N, 0), spec.vocab_size);
    assert.ok(Math.max(...tiles) * R * 4 <= logits.bytes);
  }
});
