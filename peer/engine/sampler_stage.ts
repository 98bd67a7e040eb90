// One stage of a model that writes text on the CPU: embedding, blocks with their cached keys and values, final norm and head, as
// far as the stage has them. Not the training path, and no text: which tokens at which positions is the caller's business.
// What must stay true: rows that leave a block are f32, so any cut of a model into stages gives the same bits.
import { rotaryTable } from "../../shaders/reference/rotary.ts";
import { viewParams } from "../../shaders/reference/stage.ts";
import type { StageParams } from "../../shaders/reference/stage.ts";
import type { BlockParams } from "../../shaders/reference/block.ts";
import { headDim, isGpt2, stageLayout } from "../model/layout.ts";
import { assert, ShoalError } from "../wire/errors.ts";
import type { ModelSpec, StageSpec } from "../wire/run.ts";
import {
  addInPlace,
  addRowInPlace,
  attendHead,
  type Cache,
  geluInPlace,
  layerNormRows,
  multiplyInPieces,
  normaliseRows,
  swigluRows,
} from "./sampler_math.ts";

/** Keys and values of one text in the blocks of one stage. */
export interface StageCache {
  blocks: Cache[];
  /** Positions that are filled. */
  length: number;
}

/** Work that can be put aside after each piece; what it returns is its result. */
export type Pieces<T> = Generator<void, T, void>;

/** Does all pieces at once. */
export function atOnce<T>(pieces: Pieces<T>): T {
  while (true) {
    const { done, value } = pieces.next();
    if (done) return value;
  }
}

/** Bytes of the keys and values of one text in a stage. */
export function cacheBytes(spec: ModelSpec, stage: StageSpec): number {
  const values = spec.block_size * spec.n_kv_head * headDim(spec) * 2;
  return (stage.endLayer - stage.firstLayer) * values * Float32Array.BYTES_PER_ELEMENT;
}

interface Rows {
  cache: Cache;
  /** Of the first row. */
  position: number;
}

export class StageSampler {
  readonly #spec: ModelSpec;
  readonly #params: StageParams<Float32Array>;
  readonly #table: { cos: Float64Array; sin: Float64Array };
  readonly #scores: Float64Array;

  /** @param params Flat parameters in the layout of the stage; not copied. @throws {ShoalError} bad-state */
  constructor(spec: ModelSpec, stage: StageSpec, params: Float32Array) {
    const wanted = stageLayout(spec, stage).size;
    if (params.length !== wanted) {
      throw new ShoalError(
        "bad-state",
        `${params.length} parameters do not fit a model of ${wanted}; load the state of the same model`,
      );
    }
    this.#spec = spec;
    this.#params = viewParams(spec, stage, params);
    this.#table = rotaryTable({ T: spec.block_size, D: headDim(spec), theta: spec.rope_theta });
    this.#scores = new Float64Array(spec.block_size);
  }

  /** For a text that has read nothing yet. */
  open(): StageCache {
    const size = this.#spec.block_size * this.#spec.n_kv_head * headDim(this.#spec);
    const blocks = this.#params.blocks.map(() => ({
      keys: new Float32Array(size),
      values: new Float32Array(size),
    }));
    return { blocks, length: 0 };
  }

  /**
   * Reads rows from `position` on, for which the window has room: the outputs of the stage's last block, [n, C].
   * @param input Tokens for the first stage, else the outputs of the stage before, [n, C], which are changed.
   */
  *read(cache: StageCache, input: readonly number[] | Float32Array, position: number): Pieces<Float32Array> {
    assert(position === 0 || position === cache.length, `rows at ${position} after ${cache.length}`);
    const x = input instanceof Float32Array ? input : this.#embed(input, position);
    for (const [i, block] of this.#params.blocks.entries()) {
      yield* this.#block(block, x, { cache: cache.blocks[i]!, position });
    }
    cache.length = position + x.length / this.#spec.n_embd;
    return x;
  }

  /** Final norm and head of one row of the last stage: [C] to [V]. */
  *logits(x: Float32Array): Pieces<Float32Array> {
    const { norm: gain, normBias: bias, head } = this.#params, { norm_eps: eps } = this.#spec;
    assert(gain && head, "the last stage has a norm and a head");
    const normed = bias ? layerNormRows(x, { gain, bias }, eps) : normaliseRows(x, gain, eps);
    return yield* multiplyInPieces(head, normed, 1);
  }

  #embed(tokens: readonly number[], position: number): Float32Array {
    const C = this.#spec.n_embd, { embedding, positions } = this.#params;
    assert(embedding, "the first stage has an embedding");
    const x = new Float32Array(tokens.length * C);
    tokens.forEach((token, i) => x.set(embedding.subarray(token * C, (token + 1) * C), i * C));
    if (positions) addInPlace(x, positions.subarray(position * C, position * C + x.length));
    return x;
  }

  /** One block on rows that follow one another; adds both residual branches to x in place. */
  *#block(p: BlockParams<Float32Array>, x: Float32Array, at: Rows): Pieces<void> {
    const { n_inner: I, n_embd: C, norm_eps } = this.#spec, rows = x.length / C;
    if (p.biases) return yield* this.#gpt2Block(p, x, at);
    const qkv = yield* multiplyInPieces(p.qkv, normaliseRows(x, p.attentionNorm, norm_eps), rows);
    addInPlace(x, yield* multiplyInPieces(p.project, yield* this.#attend(qkv, rows, at), rows));
    const gateUp = yield* multiplyInPieces(p.gateUp, normaliseRows(x, p.mlpNorm, norm_eps), rows);
    addInPlace(x, yield* multiplyInPieces(p.down, swigluRows(gateUp, I), rows));
  }

  /** The same of a GPT-2. */
  *#gpt2Block(p: BlockParams<Float32Array>, x: Float32Array, at: Rows): Pieces<void> {
    const { norm_eps: eps } = this.#spec, rows = x.length / this.#spec.n_embd, biases = p.biases!;
    const linear = function* (name: "qkv" | "project" | "gateUp" | "down", input: Float32Array) {
      return addRowInPlace(yield* multiplyInPieces(p[name], input, rows), biases[name]);
    };
    const norm = (name: "attentionNorm" | "mlpNorm") =>
      layerNormRows(x, { gain: p[name], bias: biases[name] }, eps);
    const qkv = yield* linear("qkv", norm("attentionNorm"));
    addInPlace(x, yield* linear("project", yield* this.#attend(qkv, rows, at)));
    addInPlace(x, yield* linear("down", geluInPlace(yield* linear("gateUp", norm("mlpNorm")))));
  }

  /** Rotates the rows' queries and keys if the model does, stores keys and values, and attends row by row; returns [rows, H D]. */
  *#attend(qkv: Float32Array, rows: number, { cache, position }: Rows): Pieces<Float32Array> {
    const { n_head: H } = this.#spec, D = headDim(this.#spec);
    const out = new Float32Array(rows * H * D), length = qkv.length / rows;
    for (let r = 0; r < rows; r++) {
      const row = qkv.subarray(r * length, (r + 1) * length);
      if (!isGpt2(this.#spec)) this.#rotate(row, position + r);
      this.#attendRow(row, cache, { position: position + r, out: out.subarray(r * H * D, (r + 1) * H * D) });
      yield;
    }
    return out;
  }

  #rotate(qkv: Float32Array, position: number): void {
    const { n_head: H, n_kv_head: Hk } = this.#spec, D = headDim(this.#spec), half = D / 2;
    for (let head = 0; head < H + Hk; head++) {
      for (let i = 0; i < half; i++) {
        const c = this.#table.cos[position * half + i]!, s = this.#table.sin[position * half + i]!;
        const at = head * D + i, low = qkv[at]!, high = qkv[at + half]!;
        qkv[at] = low * c - high * s;
        qkv[at + half] = high * c + low * s;
      }
    }
  }

  #attendRow(
    qkv: Float32Array,
    cache: Cache,
    { position, out }: { position: number; out: Float32Array },
  ): void {
    const { n_head: H, n_kv_head: Hk } = this.#spec, D = headDim(this.#spec), width = Hk * D;
    cache.keys.set(qkv.subarray(H * D, H * D + width), position * width);
    cache.values.set(qkv.subarray(H * D + width), position * width);
    for (let h = 0; h < H; h++) {
      const head = { first: Math.floor(h * Hk / H) * D, width, rows: position + 1, scores: this.#scores };
      const query = qkv.subarray(h * D, (h + 1) * D);
      attendHead(query, cache, { ...head, out: out.subarray(h * D, (h + 1) * D) });
    }
  }
}
