// What peers and coordinator say to each other about a text that the stages of a live run write together: parts of the control
// messages. The grammar is in docs/protocol.md; control.ts encodes and decodes. Rows between stages travel as frames of kind text.
import * as v from "valibot";
import { count, small, text } from "./values.ts";

/** The stage's weights are copied: rows may come. */
export const WriteOpen = v.object({ type: v.literal("write-open"), edition: count, stage: small });
/** This peer writes nothing (any more) in this edition. */
export const WriteFailed = v.object({
  type: v.literal("write-failed"),
  edition: count,
  stage: small,
  reason: text,
});
/** The last stage has taken in the rows before `position`; `token` was drawn after them, if one was wanted. */
export const Wrote = v.object({
  type: v.literal("wrote"),
  edition: count,
  text: count,
  position: count,
  token: v.optional(count),
});

/**
 * open: copy this stage's weights as they are after `step` committed steps; rows come from that peer (null: tokens from the
 * coordinator) and go to the other (null: the token that is drawn goes to the coordinator). text: to the last stage, how tokens
 * of a text are drawn, `drawn` of them before this edition. rows: to the first stage, tokens from `position` of the window on; with `draw` the
 * last stage draws a token after the last of them. drop: forget this text. close: forget the copy.
 */
export type WriteOrder =
  | {
    order: "open";
    edition: number;
    step: number;
    stage: number;
    firstLayer: number;
    endLayer: number;
    from: string | null;
    to: string | null;
  }
  | {
    order: "text";
    edition: number;
    text: number;
    slot: number;
    seed: number;
    drawn: number;
    temperature: number;
    topK: number;
    topP: number;
  }
  | {
    order: "rows";
    edition: number;
    text: number;
    slot: number;
    position: number;
    tokens: number[];
    draw: boolean;
  }
  | { order: "drop"; edition: number; text: number }
  | { order: "close"; edition: number };

/**
 * Texts that share one copy of the weights: while one waits for its next token, others keep the other stages busy. Each has one of
 * so many slots; rows at position 0 of another text take its slot over, so nobody waits until everybody has heard of an end.
 */
export const TEXTS_PER_EDITION = 4;
