// Writes text with a whole model on the CPU, one token at a time, keeping keys and values of the window so far.
// Not the training path: it is single precision, takes one sequence, and knows no stages, codecs or tokenizers.
// Equal (parameters, prompt, options) give equal tokens.
import { rotaryTable } from "../../shaders/reference/rotary.ts";
import { viewParams } from "../../shaders/reference/stage.ts";
import type { StageParams } from "../../shaders/reference/stage.ts";
import type { BlockParams } from "../../shaders/reference/block.ts";
import { headDim, isGpt2, stageLayout, wholeModel } from "../model/layout.ts";
import { randomStream } from "../model/random.ts";
import { assert, ShoalError } from "../wire/errors.ts";
import type { ModelSpec } from "../wire/run.ts";
import { checkDrawOptions, type DrawOptions, drawToken } from "./sampler_draw.ts";
import {
  addInPlace,
  addRowInPlace,
  attendHead,
  type Cache,
  geluInPlace,
  layerNormRows,
  multiplyRows,
  normaliseRows,
  swigluRows,
} from "./sampler_math.ts";

export interface SampleOptions extends DrawOptions {
  /** Tokens to write. */
  count: number;
  seed: number;
}

export interface Sampler {
  /**
   * The tokens that follow `prompt`, one by one, without the prompt. A prompt longer than block_size is cut at the front. When
   * the window is full, its newer half is read again at positions 0.. and writing goes on, so the model always sees between
   * block_size / 2 and block_size tokens at one extra pass per half window. One text at a time: beginning another ends it.
   * @throws {ShoalError} usage, at once, for an empty prompt, a token outside the vocabulary, or an option out of range.
   */
  write(prompt: readonly number[], options: SampleOptions): Generator<number, void, void>;
  /** All tokens of `write`. */
  generate(prompt: readonly number[], options: SampleOptions): number[];
  /** Logits [n, V] after each of n <= block_size tokens. */
  logits(tokens: readonly number[]): Float32Array;
}

/** Tokens of a prompt that go through a layer together: its weights are then read once for all of them. */
const PROMPT_ROWS = 16;

/** @param params Flat parameters of the whole model as a single stage (layout of `wholeModel(spec)`); not copied. */
export function createSampler(spec: ModelSpec, params: Float32Array): Sampler {
  return new CpuSampler(spec, params);
}

class CpuSampler implements Sampler {
  readonly #spec: ModelSpec;
  readonly #params: StageParams<Float32Array>;
  readonly #caches: Cache[];
  readonly #table: { cos: Float64Array; sin: Float64Array };
  readonly #scores: Float64Array;
  /** Tokens whose keys and values the caches hold, oldest first. */
  #window: number[] = [];
  /** Number of the text that the caches belong to. */
  #text = 0;

  constructor(spec: ModelSpec, params: Float32Array) {
    const wanted = stageLayout(spec, wholeModel(spec)).size, T = spec.block_size, D = headDim(spec);
    if (params.length !== wanted) {
      throw new ShoalError(
        "bad-state",
        `${params.length} parameters do not fit a model of ${wanted}; load the state of the same model`,
      );
    }
    this.#spec = spec;
    this.#params = viewParams(spec, wholeModel(spec), params);
    this.#caches = this.#params.blocks.map(() => ({
      keys: new Float32Array(T * spec.n_kv_head * D),
      values: new Float32Array(T * spec.n_kv_head * D),
    }));
    this.#table = rotaryTable({ T, D, theta: spec.rope_theta });
    this.#scores = new Float64Array(T);
  }

  generate(prompt: readonly number[], options: SampleOptions): number[] {
    return [...this.write(prompt, options)];
  }

  write(prompt: readonly number[], options: SampleOptions): Generator<number, void, void> {
    if (!(Number.isInteger(options.count) && options.count >= 0)) {
      throw new ShoalError(
        "usage",
        `cannot sample with count ${options.count}; use a whole number of at least 0`,
      );
    }
    checkDrawOptions(options);
    const last = prompt.at(-1);
    if (last === undefined) throw new ShoalError("usage", "the prompt has 0 tokens; give at least one");
    this.#checkTokens(prompt);
    return this.#continue(prompt, last, options);
  }

  *#continue(prompt: readonly number[], last: number, options: SampleOptions): Generator<number, void, void> {
    const text = ++this.#text;
    const next = randomStream([options.seed]);
    this.#restart(prompt.slice(-this.#spec.block_size, -1));
    let token = last;
    for (let written = 0; written < options.count; written++) {
      token = drawToken(this.#head(this.#append(token)), options, next);
      yield token;
      assert(text === this.#text, "another text was begun with this sampler");
    }
  }

  logits(tokens: readonly number[]): Float32Array {
    const { block_size: T } = this.#spec;
    if (tokens.length > T) {
      throw new ShoalError("usage", `${tokens.length} tokens do not fit a window of ${T}`);
    }
    this.#checkTokens(tokens);
    this.#text++;
    this.#restart([]);
    const out = new Float32Array(tokens.length * this.#spec.vocab_size);
    tokens.forEach((token, i) => out.set(this.#head(this.#append(token)), i * this.#spec.vocab_size));
    return out;
  }

  #checkTokens(tokens: readonly number[]): void {
    const V = this.#spec.vocab_size;
    const bad = tokens.find((token) => !(Number.isInteger(token) && token >= 0 && token < V));
    if (bad !== undefined) {
      throw new ShoalError(
        "usage",
        `token ${bad} is not one of 0 to ${V - 1}; encode with this model's tokenizer`,
      );
    }
  }

  #restart(tokens: readonly number[]): void {
    this.#window = [];
    for (let at = 0; at < tokens.length; at += PROMPT_ROWS) this.#read(tokens.slice(at, at + PROMPT_ROWS));
  }

  /** Reads one more token; returns the output of the last block, [C]. */
  #append(token: number): Float32Array {
    const T = this.#spec.block_size;
    if (this.#window.length === T) this.#restart(this.#window.slice(T - Math.floor(T / 2)));
    return this.#read([token]);
  }

  /** Reads tokens for which the window has room; returns the outputs of the last block, [n, C]. */
  #read(tokens: readonly number[]): Float32Array {
    const C = this.#spec.n_embd, { embedding, positions } = this.#params;
    assert(embedding, "the whole model has an embedding");
    const position = this.#window.length;
    const x = new Float32Array(tokens.length * C);
    tokens.forEach((token, i) => x.set(embedding.subarray(token * C, (token + 1) * C), i * C));
    if (positions) addInPlace(x, positions.subarray(position * C, position * C + x.length));
    this.#params.blocks.forEach((block, i) => this.#block(block, x, { cache: this.#caches[i]!, position }));
    this.#window.push(...tokens);
    return x;
  }

  /** One block on rows that follow one another; adds both residual branches to x in place. */
  #block(p: BlockParams<Float32Array>, x: Float32Array, at: { cache: Cache; position: number }): void {
    const { n_inner: I, n_embd: C, norm_eps } = this.#spec, rows = x.length / C;
    if (p.biases) return this.#gpt2Block(p, x, at);
    const qkv = multiplyRows(p.qkv, normaliseRows(x, p.attentionNorm, norm_eps), rows);
    addInPlace(x, multiplyRows(p.project, this.#attend(qkv, rows, at), rows));
    const gateUp = multiplyRows(p.gateUp, normaliseRows(x, p.mlpNorm, norm_eps), rows);
    addInPlace(x, multiplyRows(p.down, swigluRows(gateUp, I), rows));
  }

  /** The same of a GPT-2. */
  #gpt2Block(p: BlockParams<Float32Array>, x: Float32Array, at: { cache: Cache; position: number }): void {
    const { norm_eps: eps } = this.#spec, rows = x.length / this.#spec.n_embd, biases = p.biases!;
    const linear = (name: "qkv" | "project" | "gateUp" | "down", input: Float32Array) =>
      addRowInPlace(multiplyRows(p[name], input, rows), biases[name]);
    const norm = (name: "attentionNorm" | "mlpNorm") =>
      layerNormRows(x, { gain: p[name], bias: biases[name] }, eps);
    addInPlace(x, linear("project", this.#attend(linear("qkv", norm("attentionNorm")), rows, at)));
    addInPlace(x, linear("down", geluInPlace(linear("gateUp", norm("mlpNorm")))));
  }

  /** Rotates the rows' queries and keys if the model does, stores keys and values, and attends row by row; returns [rows, H D]. */
  #attend(qkv: Float32Array, rows: number, { cache, position }: { cache: Cache; position: number }) {
    const { n_head: H } = this.#spec, D = headDim(this.#spec);
    const out = new Float32Array(rows * H * D), length = qkv.length / rows;
    for (let r = 0; r < rows; r++) {
      const row = qkv.subarray(r * length, (r + 1) * length);
      if (!isGpt2(this.#spec)) this.#rotate(row, position + r);
      this.#attendRow(row, cache, { position: position + r, out: out.subarray(r * H * D, (r + 1) * H * D) });
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

  /** Final norm and head of one row: [C] to [V]. */
  #head(x: Float32Array): Float32Array {
    const { norm: gain, normBias: bias, head } = this.#params, { norm_eps: eps } = this.#spec;
    assert(gain && head, "the whole model has a norm and a head");
    return multiplyRows(head, bias ? layerNormRows(x, { gain, bias }, eps) : normaliseRows(x, gain, eps), 1);
  }
}
