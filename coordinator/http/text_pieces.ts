// Tokens as they are written -> text that is certain, up to a stop text or the token that ends a text, and how likely the tokens of that
// text were. Pure; whoever computes the tokens is somebody else. What came out and the stop text together are always what the tokens stand for.
import type { TextTokenizer, TokenStream } from "../store/text_tokenizer.ts";
import { StopFinder } from "./stop_finder.ts";
import type { TextEnd, TextRequest } from "./text_protocol.ts";
import type { Chance, TokenChance } from "./token_chances.ts";

export class TextPieces {
  readonly #tokenizer: TextTokenizer;
  readonly #stream: TokenStream;
  readonly #finder: StopFinder;
  readonly #promptTokens: number;
  readonly #ignoreEos: boolean;
  /** What the text begins with. */
  readonly opening: string;
  /** Where the prompt's further tokens begin, as long as nobody has said how likely they were. */
  #promptOffsets: number[] = [];
  /** Of tokens whose text is not certain yet. */
  #chances: TokenChance[] = [];
  #tokens = 0;
  #over = false;
  #ended = false;
  /** Characters that tokens stand for by now, and those that are certain. */
  #length: number;
  #told: number;

  constructor(
    tokenizer: TextTokenizer,
    tokens: readonly number[],
    { prompt, stop, ignoreEos = false, echo = false, logprobs }: Omit<TextRequest, "count">,
  ) {
    this.#tokenizer = tokenizer;
    this.#stream = tokenizer.stream(tokens);
    this.#finder = new StopFinder(stop);
    this.#promptTokens = tokens.length;
    this.#ignoreEos = ignoreEos;
    this.opening = !echo ? "" : typeof prompt === "string" ? prompt : tokenizer.decode(tokens);
    this.#length = this.#told = lengthOf(this.opening);
    if (echo && logprobs !== undefined) this.#placePrompt(tokens);
  }

  /** Nothing may follow any more. */
  get over(): boolean {
    return this.#over || this.#finder.found;
  }

  /** How likely the next token was: first of the prompt's, where it is part of the text, then of each before it is pushed. */
  note({ token, logprob, likeliest }: Chance): void {
    const named = [...likeliest, ...(likeliest.length === 0 ? [] : [[token, logprob] as const])];
    const top = named.length === 0
      ? null
      : Object.fromEntries(named.map(([it, chance]) => [this.#tokenizer.nameOf(it), chance]));
    const offset = this.#promptOffsets.shift() ?? this.#length;
    this.#chances.push({ token: this.#tokenizer.nameOf(token), offset, logprob, top });
  }

  /** The text that is certain after this token. */
  push(token: number): string {
    this.#tokens++;
    this.#over = !this.#ignoreEos && this.#tokenizer.ends(token);
    if (this.#over) return "";
    const text = this.#stream.push(token);
    this.#length += lengthOf(text);
    return this.#tell(this.#finder.push(text));
  }

  /** What was held back, once nothing more comes. */
  rest(): string {
    this.#ended = true;
    return this.#finder.found ? "" : this.#tell(this.#finder.push(this.#stream.rest()) + this.#finder.rest());
  }

  /** How likely the tokens were whose text has become certain; what a stop text cuts off is never told. */
  chances(): TokenChance[] {
    const all = this.#ended && !this.over;
    const waiting = all ? -1 : this.#chances.findIndex(({ offset }) => offset >= this.#told);
    return this.#chances.splice(0, waiting < 0 ? this.#chances.length : waiting);
  }

  end(): TextEnd {
    const reason = this.over ? "stop" : "length";
    return { reason, promptTokens: this.#promptTokens, tokens: this.#tokens };
  }

  #tell(text: string): string {
    this.#told += lengthOf(text);
    return text;
  }

  #placePrompt(tokens: readonly number[]): void {
    const stream = this.#tokenizer.stream();
    let at = 0;
    for (const token of tokens) {
      this.#promptOffsets.push(Math.min(at, this.#length));
      at += lengthOf(stream.push(token));
    }
    const offset = this.#promptOffsets.shift()!;
    this.#chances.push({ token: this.#tokenizer.nameOf(tokens[0]!), offset, logprob: null, top: null });
  }
}

function lengthOf(text: string): number {
  let length = 0;
  for (const _ of text) length++;
  return length;
}
