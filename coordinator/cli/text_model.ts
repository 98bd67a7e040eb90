// A checkpoint that writes text: tokenizer and sampler together, piece by piece, up to a stop text. For `shoal generate` and
// for the worker behind /v1/completions. It computes where it is called; nothing here waits, listens or prints.
import { createSampler, type Sampler } from "../../peer/engine/sampler.ts";
import type { ModelSpec } from "../../peer/wire/run.ts";
import { ShoalError } from "../../peer/wire/errors.ts";
import { TextPieces } from "../http/text_pieces.ts";
import type { TextEnd, TextRequest } from "../http/text_protocol.ts";
import { chanceOf, type TokenChance } from "../http/token_chances.ts";
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
   * with its last block_size tokens. One text at a time. `onChances` hears, with `logprobs`, of the tokens of what is yielded next.
   * @throws {ShoalError} usage or bad-corpus, at once, for a prompt or an option that does not fit.
   */
  write(
    request: TextRequest,
    onChances: (chances: TokenChance[]) => void = () => {},
  ): Generator<string, TextEnd, void> {
    const { prompt, logprobs, echo = false, count, temperature, topK, topP, seed } = request;
    const tokens = typeof prompt === "string" ? this.#tokenizer.encodePrompt(prompt) : prompt;
    if (tokens.length === 0) {
      throw new ShoalError("usage", "the prompt is empty; give at least one character to go on from");
    }
    const { block_size: T } = this.spec;
    if (echo && logprobs !== undefined && tokens.length > T) {
      const use = `send its last ${T}, or leave out echo or logprobs`;
      throw new ShoalError(
        "usage",
        `the prompt has ${tokens.length} tokens, more than the window holds; ${use}`,
      );
    }
    const pieces = new TextPieces(this.#tokenizer, tokens, request);
    const watch = logprobs === undefined ? {} : {
      watchPrompt: echo,
      watch: (token: number, logits: Float32Array) => pieces.note(chanceOf(logits, token, logprobs)),
    };
    const written = this.#sampler.write(tokens, { count, temperature, topK, topP, seed, ...watch });
    return piecesOf(written, pieces, onChances);
  }
}

function* piecesOf(
  written: Generator<number, void, void>,
  pieces: TextPieces,
  onChances: (chances: TokenChance[]) => void,
): Generator<string, TextEnd, void> {
  if (pieces.opening !== "") yield pieces.opening;
  for (const token of written) {
    const piece = pieces.push(token);
    if (pieces.over) {
      const last = piece + pieces.rest();
      onChances(pieces.chances());
      yield last;
      return pieces.end();
    }
    onChances(pieces.chances());
    yield piece;
  }
  const rest = pieces.rest();
  onChances(pieces.chances());
  yield rest;
  return pieces.end();
}
