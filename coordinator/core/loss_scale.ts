// The loss scale of each stage with `dtype` f16: what it is in a step, and what follows from a step that overflowed. Pure; every
// decision is a function of the state and of what holders logged. What must stay true: a step that is opened again, also by a
// restarted coordinator or after the run went back, has the scales that it had the first time.
import type { View } from "../../peer/wire/run.ts";
import type { RunCoreState } from "./run_state.ts";
import { note, type Turn } from "./turn.ts";

/** Exponent that every stage begins with: gradients of a mean loss are small, and an overflow costs one step. */
export const FIRST_EXPONENT = 12;
/** A gradient that overflows at 2^0 is not made sane by any scale: the step counts then, without the values that were lost. */
const LEAST_EXPONENT = 0;
/** Beyond it a step gains nothing: the least values of an f32 gradient are in a half's range by then. */
const MOST_EXPONENT = 24;
/** Steps without an overflow after which a stage's scale is doubled: too few, and steps are lost to trying. */
const CLEAN_STEPS = 1_000;
/** Changes that a run remembers, for going back. They are rare; without a limit a diverging run would fill its log. */
const CHANGES_KEPT = 64;

/** From `step` committed steps on, for the stages of one cut. Plain data. */
export interface LossScale {
  step: number;
  cut: number;
  /** By stage. */
  exponents: number[];
  /** Steps that were committed when each stage's exponent last changed. */
  since: number[];
}

/** What a step's commit says and makes durable. */
export interface Judgement {
  skip: boolean;
  /** The scales from the next step on, if they change. */
  lossScale?: LossScale;
}

/** The scales at `committed`. Another cut has other stages: all of them begin with the least of what was known to do. */
function scaleNow({ committed, lossScales }: RunCoreState, { cut, stages }: View): LossScale {
  const known = lossScales.findLast(({ step }) => step <= committed);
  if (known?.cut === cut) return known;
  const fill = (value: number) => new Array<number>(stages.length).fill(value);
  const exponent = known === undefined ? FIRST_EXPONENT : Math.min(...known.exponents);
  const since = known === undefined ? committed : Math.max(...known.since);
  return { step: known?.step ?? committed, cut, exponents: fill(exponent), since: fill(since) };
}

/** What a training round is opened with; nothing with `dtype` f32. */
export function lossScaleOf(s: RunCoreState): { lossScale?: number[] } {
  if (s.config.dtype !== "f16" || s.view === null) return {};
  return { lossScale: scaleNow(s, s.view).exponents };
}

/**
 * Judges the open step before it is committed, from what the holders of each stage have logged; tells and counts what it finds. Any
 * holder's word is enough: an overflow is known to all who have the total.
 */
export function judgeOverflow(turn: Turn): Judgement {
  const { s } = turn;
  if (s.config.dtype !== "f16" || s.view === null) return { skip: false };
  const scale = scaleNow(s, s.view);
  const overflowed = s.view.stages.map(({ index }) =>
    Object.values(s.logged[index] ?? {}).some(({ nonFinite = 0 }) => nonFinite > 0)
  );
  for (const [stage, over] of overflowed.entries()) if (over) tell(turn, stage, scale.exponents[stage]!);
  const skip = overflowed.some((over, stage) => over && scale.exponents[stage]! > LEAST_EXPONENT);
  const next = nextScale(scale, overflowed, s.committed + 1);
  if (skip) s.stepsSkipped++;
  const first = s.lossScales.length === 0;
  return {
    skip,
    ...(first || next !== null ? { lossScale: next ?? { ...scale, step: s.committed + 1 } } : {}),
  };
}

function tell(turn: Turn, stage: number, exponent: number): void {
  const what = `a gradient of stage ${stage + 1} overflowed f16 at a loss scale of 2^${exponent}`;
  const follows = exponent > LEAST_EXPONENT
    ? "the step is passed over and the scale halved"
    : "the scale cannot be lower, so what was lost counts as 0";
  note(turn, "warning", `${what} in step ${turn.s.committed}: ${follows}`);
}

/** The scales after a step; null if none changes. */
function nextScale(scale: LossScale, overflowed: readonly boolean[], step: number): LossScale | null {
  const exponents = scale.exponents.map((exponent, stage) => {
    if (overflowed[stage]) return Math.max(LEAST_EXPONENT, exponent - 1);
    const clean = step - scale.since[stage]!;
    return clean >= CLEAN_STEPS ? Math.min(MOST_EXPONENT, exponent + 1) : exponent;
  });
  const changed = exponents.map((exponent, stage) => exponent !== scale.exponents[stage]);
  if (!changed.includes(true)) return null;
  const since = scale.since.map((since, stage) => changed[stage] ? step : since);
  return { step, cut: scale.cut, exponents, since };
}

/** The changes that count after the commit of `step`: those of steps that are done again are forgotten. */
export function withLossScale(
  known: readonly LossScale[],
  { step, lossScale }: { step: number; lossScale?: LossScale },
): LossScale[] {
  const before = known.filter((it) => it.step <= step);
  return [...before, ...(lossScale === undefined ? [] : [lossScale])].slice(-CHANGES_KEPT);
}
