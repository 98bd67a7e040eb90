// Writes text with a whole model on the CPU, one token at a time, keeping keys and values of the window so far.
// Not the training path: it is single precision, takes one sequence, and knows no stages, codecs or tokenizers.
// Equal (parameters, prompt, options) give equal tokens.
import { rotaryTable } from "../../shaders/reference/rotary.ts";
import { viewParams } from "../../shaders/reference/stage.ts";
import type { StageParams } from "../../shaders/reference/stage.ts";
import type { BlockParams } from "../../shaders/reference/block.ts";
import { headDim, stageLayout, wholeModel } from "../model/layout.ts";
import { randomStream } from "../model/random.ts";
import type { RandomStream } from "../model/random.ts";
import { assert, ShoalError } from "../wire/errors.ts";
import type { ModelSpec } from "../wire/run.ts";

export interface SampleOptions {
  /** Tokens to write. */
  count: number;
  /** Divides the logits; 0 always takes the likeliest token. */
  temperature: number;
  /** Only the k likeliest tokens may be drawn; 0 allows all. */
  topK: number;
  seed: number;
}

export interface Sampler {
  /**
   * The tokens that follow `prompt`, without the prompt. A prompt longer than block_size is cut at the front. When the
   * window is full, its newer half is read again at positions 0.. and writing goes on, so the model always sees between
   * block_size / 2 and block_size tokens at one extra pass per half window.
   * @throws {ShoalError} usage for an empty prompt, a token outside the vocabulary, or an option out of range.
   */
  generate(prompt: readonly number[], options: SampleOptions): number[];
  /** Logits [n, V] after each of n <= block_size tokens. */
  logits(tokens: readonly number[]): Float32Array;
}

/** @param params Flat parameters of the whole model as a single stage (layout of `wholeModel(spec)`); not copied. */
export function createSampler(spec: ModelSpec, params: Float32Array): Sampler {
  return new CpuSampler(spec, params);
}

/** Rotated keys, and values, of the window: each [T, Hk D]. */
interface Cache {
  keys: Float32Array;
  values: Float32Array;
}

class CpuSampler implements Sampler {
  readonly #spec: ModelSpec;
  readonly #params: StageParams<Float32Array>;
  readonly #caches: Cache[];
  readonly #table: { cos: Float64Array; sin: Float64Array };
  readonly #scores: Float64Array;
  /** Tokens whose keys and values the caches hold, oldest first. */
  #window: number[] = [];

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
    checkOptions(options);
    const last = prompt.at(-1);
    if (last === undefined) throw new ShoalError("usage", "the prompt has 0 tokens; give at least one");
    this.#checkTokens(prompt);
    const next = randomStream([options.seed]);
    this.#restart(prompt.slice(-this.#spec.block_size, -1));
    const written: number[] = [];
    let token = last;
    while (written.length < options.count) {
      token = drawToken(this.#head(this.#append(token)), options, next);
      written.push(token);
    }
    return written;
  }

  logits(tokens: readonly number[]): Float32Array {
    const { vocab_size: V, block_size: T } = this.#spec;
    if (tokens.length > T) {
      throw new ShoalError("usage", `${tokens.length} tokens do not fit a window of ${T}`);
    }
    this.#checkTokens(tokens);
    this.#restart([]);
    const out = new Float32Array(tokens.length * V);
    tokens.forEach((token, i) => out.set(this.#head(this.#append(token)), i * V));
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
    for (const token of tokens) this.#append(token);
  }

  /** Reads one more token; returns the output of the last block, [C]. */
  #append(token: number): Float32Array {
    const T = this.#spec.block_size, C = this.#spec.n_embd;
    // The half is less than T, so the inner appends never come here again.
    if (this.#window.length === T) this.#restart(this.#window.slice(T - Math.floor(T / 2)));
    const position = this.#window.length;
    this.#window.push(token);
    assert(this.#params.embedding, "the whole model has an embedding");
    const x = this.#params.embedding.slice(token * C, (token + 1) * C);
    this.#params.blocks.forEach((block, i) => this.#block(block, x, { cache: this.#caches[i]!, position }));
    return x;
  }

  /** One block on one row; adds both residual branches to x in place. */
  #block(p: BlockParams<Float32Array>, x: Float32Array, at: { cache: Cache; position: number }): void {
    const { n_inner: I, norm_eps } = this.#spec;
    const qkv = matvec(p.qkv, normalise(x, p.attentionNorm, norm_eps));
    this.#rotate(qkv, at.position);
    addTo(x, matvec(p.project, this.#attend(qkv, at)));
    const gateUp = matvec(p.gateUp, normalise(x, p.mlpNorm, norm_eps));
    const act = new Float32Array(I);
    for (let i = 0; i < I; i++) act[i] = gateUp[i]! / (1 + Math.exp(-gateUp[i]!)) * gateUp[I + i]!;
    addTo(x, matvec(p.down, act));
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

  /** Stores the row's keys and values, then attends over all cached rows; returns [H D]. */
  #attend(qkv: Float32Array, { cache, position }: { cache: Cache; position: number }): Float32Array {
    const { n_head: H, n_kv_head: Hk } = this.#spec, D = headDim(this.#spec), width = Hk * D;
    cache.keys.set(qkv.subarray(H * D, H * D + width), position * width);
    cache.values.set(qkv.subarray(H * D + width), position * width);
    const out = new Float32Array(H * D);
    for (let h = 0; h < H; h++) {
      const head = { first: Math.floor(h * Hk / H) * D, width, rows: position + 1 };
      const query = qkv.subarray(h * D, (h + 1) * D);
      attendHead(query, cache, { ...head, scores: this.#scores, out: out.subarray(h * D, (h + 1) * D) });
    }
    return out;
  }

  /** Final norm and head: [C] to [V]. */
  #head(x: Float32Array): Float32Array {
    assert(this.#params.norm && this.#params.head, "the whole model has a norm and a head");
    return matvec(this.#params.head, normalise(x, this.#params.norm, this.#spec.norm_eps));
  }
}

interface HeadPlace {
  /** Of the head's vector in a cached row, and the length of such a row. */
  first: number;
  width: number;
  /** Cached rows so far. */
  rows: number;
  scores: Float64Array;
  /** Result, [D]. */
  out: Float32Array;
}

function attendHead(query: Float32Array, { keys, values }: Cache, place: HeadPlace): void {
  const { first, width, rows, scores, out } = place;
  const D = query.length, scale = 1 / Math.sqrt(D);
  let max = -Infinity, sum = 0;
  for (let s = 0; s < rows; s++) {
    let score = 0;
    for (let d = 0; d < D; d++) score += query[d]! * keys[s * width + first + d]!;
    scores[s] = score * scale;
    if (scores[s]! > max) max = scores[s]!;
  }
  for (let s = 0; s < rows; s++) sum += scores[s] = Math.exp(scores[s]! - max);
  for (let d = 0; d < D; d++) {
    let value = 0;
    for (let s = 0; s < rows; s++) value += scores[s]! * values[s * width + first + d]!;
    out[d] = value / sum;
  }
}

/** w x for w [out, in]; sums in double precision, rounded once. */
function matvec(w: Float32Array, x: Float32Array): Float32Array {
  const K = x.length;
  const out = new Float32Array(w.length / K);
  for (let n = 0; n < out.length; n++) {
    let sum = 0;
    for (let k = 0; k < K; k++) sum += w[n * K + k]! * x[k]!;
    out[n] = sum;
  }
  return out;
}

function normalise(x: Float32Array, weight: Float32Array, eps: number): Float32Array {
  let squares = 0;
  for (let c = 0; c < x.length; c++) squares += x[c]! * x[c]!;
  const scale = 1 / Math.sqrt(squares / x.length + eps);
  return x.map((value, c) => value * scale * weight[c]!);
}

function addTo(target: Float32Array, values: Float32Array): void {
  for (let i = 0; i < target.length; i++) target[i]! += values[i]!;
}

function checkOptions({ count, temperature, topK }: SampleOptions): void {
  const wrong = !(Number.isInteger(count) && count >= 0)
    ? `count ${count}; use a whole number of at least 0`
    : !(temperature >= 0 && temperature < Infinity)
    ? `temperature ${temperature}; use a number of at least 0`
    : !(Number.isInteger(topK) && topK >= 0)
    ? `topK ${topK}; use a whole number, 0 for no limit`
    : null;
  if (wrong !== null) throw new ShoalError("usage", `cannot sample with ${wrong}`);
}

/**
 * Draws from softmax(logits / temperature) over the topK likeliest tokens; ties go to the lower token. One draw of the
 * stream per call, so the text for a seed does not depend on topK or temperature more than it must.
 */
function drawToken(logits: Float32Array, { temperature, topK }: SampleOptions, next: RandomStream): number {
  const uniform = next() / 2 ** 32;
  const order = Array.from(logits.keys()).sort((a, b) => logits[b]! - logits[a]! || a - b);
  const likeliest = order[0]!;
  if (temperature === 0) return likeliest;
  const allowed = topK === 0 ? order : order.slice(0, topK);
  const weights = allowed.map((token) => Math.exp((logits[token]! - logits[likeliest]!) / temperature));
  let left = uniform * weights.reduce((sum, weight) => sum + weight, 0);
  const drawn = weights.findIndex((weight) => (left -= weight) < 0);
  // Rounding may leave a crumb after the last weight, and diverged parameters make every weight NaN.
  return drawn < 0 ? likeliest : allowed[drawn]!;
}
