// What one direction of a test network's link does to frames. Data only; switch.ts does it.

export interface Rule {
  delayMs: number;
  /** Uniform, on top of the delay; frames may overtake each other. */
  jitterMs: number;
  /** Share of frames lost, 0 to 1; 1 = cut. */
  loss: number;
}

export const RULE_NONE: Readonly<Rule> = { delayMs: 0, jitterMs: 0, loss: 0 };
export const RULE_CUT: Readonly<Rule> = { delayMs: 0, jitterMs: 0, loss: 1 };
