// What the coordinator knows of the texts that the stages of its run write together. Data alone: texts.ts decides.
import type { ErrorCode } from "../../peer/wire/errors.ts";
import type { TextWindow, WindowPiece } from "../../peer/model/text_window.ts";

/** A text that somebody wants. */
export interface TextWish {
  /** At least one token of the model's vocabulary. */
  prompt: number[];
  /** Tokens to write. */
  count: number;
  temperature: number;
  topK: number;
  topP: number;
  seed: number;
}

/** What is told of a text to whoever asked for it; the last is end or failed. */
export type TextTold =
  /** Peers have copied their weights as they were after `step` steps; said again when it had to begin anew. */
  | { what: "begun"; step: number; restarts: number }
  | { what: "token"; token: number }
  | { what: "end" }
  | { what: "failed"; code: ErrorCode; reason: string };

export interface Text {
  id: number;
  /** In the edition, below TEXTS_PER_EDITION; no other text that is written has it. */
  slot: number;
  wish: TextWish;
  written: number[];
  /** As the stages have read it in this edition, and the pieces that they are still to get. */
  window: TextWindow;
  pieces: WindowPiece[];
  /** Pieces that the last stage has not told of yet. */
  underWay: number;
  /** How often it had to begin anew. */
  restarts: number;
  /** When it was asked for, and when the peers last came on with it, ms. */
  at: number;
  movedAt: number;
}

/** A stage of an edition, and who writes with it. */
export interface Seat {
  stage: number;
  peer: string;
  firstLayer: number;
  endLayer: number;
  open: boolean;
}

/** One copy of all stages' weights. */
export interface Edition {
  id: number;
  step: number;
  /** In pipeline order. */
  seats: Seat[];
  at: number;
}

export interface Texts {
  /** Number of the next edition. */
  nextId: number;
  edition: Edition | null;
  /** In the edition, and before it. */
  writing: Text[];
  waiting: Text[];
  /** Editions in a row that ended without a token, why the newest did, and when the next may begin. */
  failures: number;
  problem: string;
  againAt: number;
  /** Since the coordinator started. */
  tokensTotal: number;
  restartsTotal: number;
  /** Who failed a stage last, by "stage/peer", and when: others come first for a while. */
  avoided: Record<string, number>;
}

export function noTexts(): Texts {
  return {
    ...{ nextId: 0, edition: null, writing: [], waiting: [] },
    ...{ failures: 0, problem: "", againAt: 0, avoided: {}, tokensTotal: 0, restartsTotal: 0 },
  };
}
