// What the coordinator's thread and the worker that writes text say to each other. Data alone: no behaviour.
// The worker computes one text at a time; the service (text_service.ts) sends it the next one when the last has ended.
import type { ErrorCode } from "../../peer/wire/errors.ts";
import type { TokenChance } from "./token_chances.ts";

export interface TextRequest {
  /** Text, or tokens of the model's vocabulary. */
  prompt: string | readonly number[];
  /** Most tokens to write. */
  count: number;
  temperature: number;
  topK: number;
  topP: number;
  seed: number;
  /** Writing ends before the first of these; it is not part of the text. */
  stop: readonly string[];
  /** The token that ends a text does not end it: it stands for no text, and writing goes on. */
  ignoreEos?: boolean;
  /** How likely each token was is told, and the so many likeliest in its place. */
  logprobs?: number;
  /** The text begins with the prompt, and with `logprobs` how likely its tokens were. */
  echo?: boolean;
}

export interface TextEnd {
  /** stop: one of the stop texts came, or the token that ends a text; length: count tokens are written. */
  reason: "stop" | "length";
  promptTokens: number;
  /** Tokens that were computed, those of the stop text included. */
  tokens: number;
}

export type ToWriter =
  /** path: folder of the checkpoint to write with; it is loaded if it is another than the last one. */
  | { type: "write"; id: number; path: string; request: TextRequest }
  | { type: "cancel"; id: number };

export type FromWriter =
  | { type: "text"; id: number; text: string; chances?: TokenChance[] }
  /** The last word on a text; step is the checkpoint's. */
  | { type: "end"; id: number; step: number; end: TextEnd }
  | { type: "failed"; id: number; code: ErrorCode; message: string };
