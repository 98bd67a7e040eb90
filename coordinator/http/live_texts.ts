// Texts that the peers of a run write: text to tokens and back on this side, tokens by the run's core on the other. It computes no
// token and knows no peer. What must stay true: no more texts at a time than the core takes, and each ends by its text, an error or
// its caller's signal.
import { ShoalError } from "../../peer/wire/errors.ts";
import { TEXTS_MAX } from "../core/texts.ts";
import type { TextTold } from "../core/text_state.ts";
import type { Shell } from "../shell.ts";
import { type TextTokenizer, tokenizerOf } from "../store/text_tokenizer.ts";
import type { TextOrder, TextResult } from "./completions_answer.ts";
import type { LiveWriters } from "./completions.ts";
import { TextPieces } from "./text_pieces.ts";
import { BusyError } from "./text_service.ts";
import { TEXTS_PER_EDITION } from "../../peer/wire/texts.ts";

/** Texts that are let in; what is left of the core's places is for further texts of requests that are in. */
const ADMITTED_MAX = TEXTS_MAX / 2;
/** Cutting a longer prompt into tokens would keep this thread from everything else, and no window holds it. */
const PROMPT_CHARS_MAX = 65_536;
const RETRY_SECONDS = 10;

interface Entry {
  pieces: TextPieces;
  /** Of the weights that wrote it, in order. */
  steps: number[];
  restarts: number;
  onText(text: string): void;
  resolve(result: TextResult): void;
  reject(error: unknown): void;
}

/** The part of the shell that texts need. */
export type TextShell = Pick<Shell, "feed" | "onText"> & {
  readonly core: { readonly state: Pick<Shell["core"]["state"], "view" | "status" | "spec"> };
  readonly options: { readonly corpus: Pick<Shell["options"]["corpus"], "vocab" | "tokenizer"> };
};

export class LiveTexts implements LiveWriters {
  readonly lanes = TEXTS_PER_EDITION;
  readonly #shell: TextShell;
  readonly #entries = new Map<number, Entry>();
  #tokenizer: TextTokenizer | null = null;
  #nextId = 1;
  #closed = false;

  constructor(shell: TextShell) {
    this.#shell = shell;
    shell.onText = (id, told) => this.#hear(id, told);
  }

  ready(): boolean {
    const { view, status } = this.#shell.core.state;
    return view !== null && status !== "finished" && status !== "failed";
  }

  /** @throws {BusyError} if too many wait. @throws {ShoalError} of the prompt, of the run, or of the peers. */
  async write({ request, onText, signal, patient }: TextOrder): Promise<TextResult> {
    if (this.#closed) throw new ShoalError("offline", "the server is being stopped; try another one");
    const most = patient ? TEXTS_MAX : ADMITTED_MAX;
    if (this.#entries.size >= most) throw new BusyError(RETRY_SECONDS, this.#entries.size);
    signal.throwIfAborted();
    const { prompt: given, count, temperature, topK, topP, seed } = request;
    const tokens = this.#tokensOf(given);
    const id = this.#nextId++;
    return await new Promise((resolve, reject) => {
      const pieces = new TextPieces(this.#tokenizerOfRun(), tokens, request);
      this.#entries.set(id, { pieces, steps: [], restarts: 0, onText, resolve, reject });
      signal.addEventListener("abort", () => this.#abandon(id, signal.reason), { once: true });
      const prompt = tokens.slice(-this.#shell.core.state.spec.block_size);
      this.#shell.feed({ type: "text", id, wish: { prompt, count, temperature, topK, topP, seed } });
    });
  }

  /** Texts under way are refused. */
  close(): void {
    this.#closed = true;
    for (const { reject } of this.#entries.values()) {
      reject(new ShoalError("offline", "the server is being stopped"));
    }
    this.#entries.clear();
  }

  #tokenizerOfRun(): TextTokenizer {
    const { vocab, tokenizer = null } = this.#shell.options.corpus;
    return this.#tokenizer ??= tokenizerOf({ vocab }, tokenizer);
  }

  #tokensOf(prompt: string | readonly number[]): readonly number[] {
    if (typeof prompt === "string" && prompt.length > PROMPT_CHARS_MAX) {
      const use = `the peers take ${PROMPT_CHARS_MAX}; send its end`;
      throw new ShoalError("usage", `the prompt has ${prompt.length} characters; ${use}`);
    }
    const tokens = typeof prompt === "string" ? this.#tokenizerOfRun().encodePrompt(prompt) : prompt;
    const { vocab_size: V } = this.#shell.core.state.spec;
    const bad = tokens.find((token) => !(Number.isInteger(token) && token >= 0 && token < V));
    if (bad !== undefined) throw new ShoalError("usage", `token ${bad} is not one of 0 to ${V - 1}`);
    if (tokens.length > 0) return tokens;
    throw new ShoalError("usage", "the prompt is empty; give at least one character to go on from");
  }

  #hear(id: number, told: TextTold): void {
    const entry = this.#entries.get(id);
    if (entry === undefined) return;
    switch (told.what) {
      case "begun":
        // Only now is it sure that there will be a text.
        if (entry.steps.length === 0 && entry.pieces.opening !== "") entry.onText(entry.pieces.opening);
        entry.restarts = told.restarts;
        if (entry.steps.at(-1) !== told.step) entry.steps.push(told.step);
        return;
      case "token":
        return this.#token(id, entry, told.token);
      case "end":
        return this.#finish(id, entry);
      case "failed":
        this.#entries.delete(id);
        return entry.reject(new ShoalError(told.code, told.reason));
    }
  }

  #token(id: number, entry: Entry, token: number): void {
    const text = entry.pieces.push(token);
    if (text !== "") entry.onText(text);
    if (!entry.pieces.over) return;
    this.#shell.feed({ type: "text-cancel", id });
    this.#finish(id, entry);
  }

  #finish(id: number, { pieces, steps, restarts, resolve, onText }: Entry): void {
    this.#entries.delete(id);
    const rest = pieces.rest();
    if (rest !== "") onText(rest);
    resolve({ step: steps.at(-1) ?? 0, end: pieces.end(), live: { steps, restarts } });
  }

  #abandon(id: number, reason: unknown): void {
    const entry = this.#entries.get(id);
    if (entry === undefined) return;
    this.#entries.delete(id);
    this.#shell.feed({ type: "text-cancel", id });
    entry.reject(reason);
  }
}
