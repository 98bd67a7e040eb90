// The delayed rule of the schedule 2bw (PipeDream-2BW, Narayanan et al. 2021): W(k+1) = AdamW(W(k), g_k(W(k-1))). Not a schedule:
// it says which of the two versions that a state then holds a step computes with, and how a total is applied. What must stay
// true: the delay is one for every step but the first of the rule, whatever the peers, failures and new cuts.
import { assert } from "../wire/errors.ts";
import { applyTotal, type StepOptions } from "./optimizer.ts";
import type { StageState } from "./state.ts";

/**
 * The state as the run's rule wants it, in place. A run that begins with the rule, or takes it up in the middle, has no older
 * weights: its first step computes with the present ones.
 */
export function withDelay(state: StageState, delayed: boolean): StageState {
  if (!delayed) delete state.before;
  else state.before ??= { params: state.params.slice(), exponents: state.exponents.slice() };
  return state;
}

/** Parameters and exponents that a gradient is made with; `step` = committed steps contained in them. */
export type Basis = Pick<StageState, "layout" | "step" | "params" | "exponents">;

/**
 * What the gradient of training step `step` is computed and put on its grid with. With the delay both the state's own step and
 * the one after it can be computed, which is why two steps may be open at once.
 */
export function basisOf(state: StageState, step: number): Basis {
  const { layout, before, params, exponents } = state;
  if (before === undefined) {
    assert(step === state.step, `step ${step} on a state of ${state.step}`);
    return state;
  }
  assert(step === state.step || step === state.step + 1, `step ${step} on a delayed state of ${state.step}`);
  const version = Math.max(0, step - 1);
  return step === state.step
    ? { layout, step: version, ...before }
    : { layout, step: version, params, exponents };
}

/** Applies the total of the state's own step in place: the newest weights move, by a gradient of those before them. */
export function applyDelayed(state: StageState, total: Int32Array, options: StepOptions): number {
  const { before } = state;
  assert(before !== undefined, "a state without older weights");
  const { step: version } = basisOf(state, state.step);
  const newest = state.exponents;
  before.params.set(state.params);
  // The total is on the older exponents' grid, and the next ones follow from them.
  state.exponents = before.exponents;
  before.exponents = newest;
  return applyTotal(state, total, { ...options, version });
}
