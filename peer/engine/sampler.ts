// Writes text with a whole model on the CPU, one token at a time, keeping keys and values of the window so far.
// Not the training path: it is single precision, takes one sequence, and is one stage that has everything (sampler_stage.ts).
// Equal (parameters, prompt, options) give equal tokens.
import { wholeModel } from "../model/layout.ts";
import { randomStream } from "../model/random.ts";
import { readAnew, readOn, type TextWindow, windowOf, type WindowPiece } from "../model/text_window.ts";
import { assert, ShoalError } from "../wire/errors.ts";
import type { ModelSpec } from "../wire/run.ts";
import { checkDrawOptions, type DrawOptions, drawToken } from "./sampler_draw.ts";
import { atOnce, type StageCache, StageSampler } from "./sampler_stage.ts";

export interface SampleOptions extends DrawOptions {
  /** Tokens to write. */
  count: number;
  seed: number;
  /** Told of each token that is written, before it is, with the logits [V] that it was drawn from; they may be overwritten after. */
  watch?: (token: number, logits: Float32Array) => void;
  /** `watch` is told of the prompt's tokens, too, but the first, in order; of those that the window holds. */
  watchPrompt?: boolean;
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

/** @param params Flat parameters of the whole model as a single stage (layout of `wholeModel(spec)`); not copied. */
export function createSampler(spec: ModelSpec, params: Float32Array): Sampler {
  return new CpuSampler(spec, params);
}

class CpuSampler implements Sampler {
  readonly #spec: ModelSpec;
  readonly #stage: StageSampler;
  readonly #cache: StageCache;
  /** Tokens whose keys and values the cache holds. */
  readonly #window: TextWindow = [];
  /** Number of the text that the cache belongs to. */
  #text = 0;

  constructor(spec: ModelSpec, params: Float32Array) {
    this.#spec = spec;
    this.#stage = new StageSampler(spec, wholeModel(spec), params);
    this.#cache = this.#stage.open();
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
    const before = windowOf(prompt, this.#spec.block_size), { watch } = options;
    if (options.watchPrompt === true && watch !== undefined) this.#watchPrompt([...before, last], watch);
    else this.#read(readAnew(this.#window, before));
    let token = last;
    for (let written = 0; written < options.count; written++) {
      const logits = this.#append(token);
      token = drawToken(logits, options, next);
      watch?.(token, logits);
      yield token;
      assert(text === this.#text, "another text was begun with this sampler");
    }
  }

  /** Reads all but the last, one by one. */
  #watchPrompt(tokens: readonly number[], watch: NonNullable<SampleOptions["watch"]>): void {
    readAnew(this.#window, []);
    for (let i = 0; i + 1 < tokens.length; i++) watch(tokens[i + 1]!, this.#append(tokens[i]!));
  }

  logits(tokens: readonly number[]): Float32Array {
    const { block_size: T } = this.#spec;
    if (tokens.length > T) {
      throw new ShoalError("usage", `${tokens.length} tokens do not fit a window of ${T}`);
    }
    this.#checkTokens(tokens);
    this.#text++;
    readAnew(this.#window, []);
    const out = new Float32Array(tokens.length * this.#spec.vocab_size);
    tokens.forEach((token, i) => out.set(this.#append(token), i * this.#spec.vocab_size));
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

  /** Reads one more token; returns the logits after it, [V]. */
  #append(token: number): Float32Array {
    const rows = this.#read(readOn(this.#window, token, this.#spec.block_size));
    return atOnce(this.#stage.logits(rows.subarray(-this.#spec.n_embd)));
  }

  /** The outputs of the last block for the last piece. */
  #read(pieces: readonly WindowPiece[]): Float32Array {
    let rows: Float32Array = new Float32Array(0);
    for (const { tokens, position } of pieces) {
      rows = atOnce(this.#stage.read(this.#cache, tokens, position));
    }
    return rows;
  }
}
