// A checkpoint that writes text: tokenizer and sampler together, piece by piece, up to a stop text. For `shoal generate` and
// for the worker behind /v1/completions. It computes where it is called; nothing here waits, listens or prints.
import { createSampler, type Sampler } from "../../peer/engine/sampler.ts";
import type { ModelSpec } from "../../peer/wire/run.ts";
import { ShoalError } from "../../peer/wire/errors.ts";
import type { TextEnd, TextRequest } from "../http/text_protocol.ts";
import { type TextTokenizer, tokenizerOf } from "../store/text_tokenizer.ts";
import { readWeights, type Weights } from "../store/weights.ts";
import { StopFinder } from "./stop_finder.ts";

export class TextModel {
  readonly spec: ModelSpec;
  readonly step: number;
  readonly #tokenizer: TextTokenizer;
  readonly #sampler: Sampler;

  constructor({ manifest, params, tokenizer }: Weights) {
    this.spec = manifest.spec;
    this.step = manifest.step;
    this.#tokenizer = tokenizerOf(manifest, tokenizer);
    this.#sampler = createSampler(manifest.spec, params);
  }

  /** @param path Folder of a checkpoint. @throws {ShoalError} bad-checkpoint */
  static async open(path: string): Promise<TextModel> {
    return new TextModel(await readWeights(path));
  }

  /**
   * Writes a text; yields once per token what is certain by then, which may be nothing. It ends at a stop text, or where the model
   * writes the token that ends a text. A prompt longer than block_size counts
   * with its last block_size tokens. One text at a time.
   * @throws {ShoalError} usage or bad-corpus, at once, for a prompt or an option that does not fit.
   */
  write(request: TextRequest): Generator<string, TextEnd, void> {
    const { prompt, stop, ...options } = request;
    const tokens = typeof prompt === "string" ? this.#tokenizer.encodePrompt(prompt) : prompt;
    if (tokens.length === 0) {
      throw new ShoalError("usage", "the prompt is empty; give at least one character to go on from");
    }
    return this.#pieces(this.#sampler.write(tokens, options), new StopFinder(stop), tokens);
  }

  *#pieces(
    written: Generator<number, void, void>,
    finder: StopFinder,
    prompt: readonly number[],
  ): Generator<string, TextEnd, void> {
    const stream = this.#tokenizer.stream(prompt), promptTokens = prompt.length;
    let tokens = 0, over = false;
    for (const token of written) {
      tokens++;
      over = this.#tokenizer.ends(token);
      if (over) break;
      yield finder.push(stream.push(token));
      if (finder.found) return { reason: "stop", promptTokens, tokens };
    }
    const last = finder.push(stream.rest());
    yield last + finder.rest();
    return { reason: over || finder.found ? "stop" : "length", promptTokens, tokens };
  }
}
