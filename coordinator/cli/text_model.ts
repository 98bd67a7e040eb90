// A checkpoint that writes text: tokenizer and sampler together, piece by piece, up to a stop text. For `shoal generate` and
// for the worker behind /v1/completions. It computes where it is called; nothing here waits, listens or prints.
import { createSampler, type Sampler } from "../../peer/engine/sampler.ts";
import type { ModelSpec } from "../../peer/wire/run.ts";
import { ShoalError } from "../../peer/wire/errors.ts";
import { TextPieces } from "../http/text_pieces.ts";
import type { TextEnd, TextRequest } from "../http/text_protocol.ts";
import { type TextTokenizer, tokenizerOf } from "../store/text_tokenizer.ts";
import { readWeights, type Weights } from "../store/weights.ts";

export class TextModel {
  readonly spec: ModelSpec;
  readonly step: number;
  readonly #tokenizer: TextTokenizer;
  readonly #sampler: Sampler;

  constructor({ manifest, spec, params, tokenizer }: Weights) {
    this.spec = spec;
    this.step = manifest.step;
    this.#tokenizer = tokenizerOf(manifest, tokenizer);
    this.#sampler = createSampler(spec, params);
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
    return piecesOf(this.#sampler.write(tokens, options), new TextPieces(this.#tokenizer, tokens, stop));
  }
}

function* piecesOf(
  written: Generator<number, void, void>,
  pieces: TextPieces,
): Generator<string, TextEnd, void> {
  for (const token of written) {
    const piece = pieces.push(token);
    if (pieces.over) {
      yield piece + pieces.rest();
      return pieces.end();
    }
    yield piece;
  }
  yield pieces.rest();
  return pieces.end();
}
