// Tokens as they are written -> text that is certain, up to a stop text or the token that ends a text. Pure; whoever computes the
// tokens is somebody else. What came out and the stop text together are always what the tokens stand for.
import type { TextTokenizer, TokenStream } from "../store/text_tokenizer.ts";
import { StopFinder } from "./stop_finder.ts";
import type { TextEnd } from "./text_protocol.ts";

export class TextPieces {
  readonly #tokenizer: TextTokenizer;
  readonly #stream: TokenStream;
  readonly #finder: StopFinder;
  readonly #promptTokens: number;
  #tokens = 0;
  #over = false;

  constructor(tokenizer: TextTokenizer, prompt: readonly number[], stop: readonly string[]) {
    this.#tokenizer = tokenizer;
    this.#stream = tokenizer.stream(prompt);
    this.#finder = new StopFinder(stop);
    this.#promptTokens = prompt.length;
  }

  /** Nothing may follow any more. */
  get over(): boolean {
    return this.#over || this.#finder.found;
  }

  /** The text that is certain after this token. */
  push(token: number): string {
    this.#tokens++;
    this.#over = this.#tokenizer.ends(token);
    return this.#over ? "" : this.#finder.push(this.#stream.push(token));
  }

  /** What was held back, once nothing more comes. */
  rest(): string {
    return this.#finder.found ? "" : this.#finder.push(this.#stream.rest()) + this.#finder.rest();
  }

  end(): TextEnd {
    const reason = this.over ? "stop" : "length";
    return { reason, promptTokens: this.#promptTokens, tokens: this.#tokens };
  }
}
