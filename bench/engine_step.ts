// Measures whole training steps of one model on several sides, which take turns so that a machine that gets slower or
// faster treats all alike. It knows no engine and no tfjs, and a side that fails is a line of the table, not the end.
import { paramCount } from "../peer/model/layout.ts";
import { messageOf } from "../peer/wire/errors.ts";
import { countCommands } from "./commands.ts";
import { benchBatch, type BenchModel } from "./engine_models.ts";
import type { Parts, Peak, StepSide } from "./engine_sides.ts";
import { sum } from "./support.ts";

/** A side that has used this much time does no further rounds: a step of tfjs can take most of a minute. */
const SIDE_MS_MAX = 60_000;

export interface SideOpener {
  name: string;
  open(): Promise<StepSide>;
}

export interface SideResult {
  side: string;
  /** One per round; the first step, which compiles, is no round. */
  ms: number[];
  /** One per step, all steps. */
  losses: number[];
  /** Milliseconds by part of the step, one value per round. */
  parts: Record<string, number[]>;
  peak: Peak | null;
  /** In one step; null where they cannot be counted. */
  dispatches: number | null;
  submits: number | null;
  /** Why the side has no (more) figures. */
  failure: string | null;
}

export interface StepResult {
  model: string;
  note: string;
  layers: number;
  parameters: number;
  /** Tokens in a step. */
  rows: number;
  sides: SideResult[];
}

interface Running {
  side: StepSide;
  result: SideResult;
}

/** From here on the sides go one after the other: all at once would not fit a small machine's memory. */
const ALTERNATING_PARAMETERS_MAX = 20_000_000;

/** One step that compiles, then `rounds` steps, of which slow sides do fewer; the first of them is counted too. */
export async function measureSteps(
  model: BenchModel,
  openers: readonly SideOpener[],
  { rounds, note }: { rounds: number; note: (text: string) => void },
): Promise<StepResult> {
  const { name, spec, batchSize } = model;
  const parameters = paramCount(spec);
  const alternate = parameters <= ALTERNATING_PARAMETERS_MAX;
  const groups = alternate ? [openers] : openers.map((opener) => [opener]);
  const sides: SideResult[] = [];
  for (const group of groups) sides.push(...await measureGroup(model, group, { rounds, note }));
  const remarks = [
    ...(model.note === "" ? [] : [model.note]),
    ...(alternate ? [] : ["sides one after the other"]),
  ];
  return {
    ...{ model: name, note: remarks.join("; "), layers: spec.n_layer, parameters },
    ...{ rows: batchSize * spec.block_size, sides },
  };
}

async function measureGroup(
  model: BenchModel,
  openers: readonly SideOpener[],
  { rounds, note }: { rounds: number; note: (text: string) => void },
): Promise<SideResult[]> {
  const sides = openers.map(({ name }) => emptyResult(name));
  const running: Running[] = [];
  for (const [i, opener] of openers.entries()) {
    note(`${model.name}: ${opener.name} starts`);
    const result = sides[i]!;
    const side = await attempt(result, () => opener.open());
    if (side === undefined) continue;
    running.push({ side, result });
    await attempt(result, async () => {
      result.losses.push((await side.step(benchBatch(model, 0))).loss);
    });
  }
  for (let round = 0; round < rounds; round++) {
    note(`${model.name}: round ${round + 1} of ${rounds}`);
    for (const { side, result } of running) {
      if (result.failure !== null || sum(result.ms) > SIDE_MS_MAX) continue;
      await attempt(result, () => timedStep(model, { side, result }));
    }
  }
  for (const { side } of running) side.destroy();
  return sides;
}

function emptyResult(side: string): SideResult {
  const counted = { peak: null, dispatches: null, submits: null, failure: null };
  return { side, ms: [], losses: [], parts: {}, ...counted };
}

async function attempt<T>(result: SideResult, work: () => Promise<T>): Promise<T | undefined> {
  try {
    return await work();
  } catch (error) {
    result.failure = messageOf(error);
    return undefined;
  }
}

/** Counting costs a few microseconds a command, so it may be timed. */
async function timedStep(model: BenchModel, { side, result }: Running): Promise<void> {
  const batch = benchBatch(model, result.losses.length);
  const first = result.peak === null;
  using counter = first ? countCommands() : null;
  const start = performance.now();
  const { loss, parts, peak } = first ? await side.measuredStep(batch) : await side.step(batch);
  result.ms.push(performance.now() - start);
  result.losses.push(loss);
  addParts(result.parts, parts);
  if (peak === undefined) return;
  result.peak = peak;
  result.dispatches = counter?.counts?.dispatches ?? null;
  result.submits = counter?.counts?.submits ?? null;
}

function addParts(samples: Record<string, number[]>, parts: Parts): void {
  for (const [name, ms] of Object.entries(parts)) (samples[name] ??= []).push(ms);
}

/** Ten losses of a side against the same ten steps in double precision. */
export interface LossCheck {
  side: string;
  steps: number;
  losses: number[];
  /** Largest difference of a step's loss, nats; NaN after a failure. */
  difference: number;
  failure: string | null;
}

/** Nats. Rounding of f32 against f64 makes up to 2e-6; a decay left out, the smallest mistake that was tried, 3e-4. */
export const LOSS_TOLERANCE = 1e-4;
const CHECK_STEPS = 10;

/** The first opener is what the others are compared with. */
export async function checkLosses(model: BenchModel, openers: readonly SideOpener[]): Promise<LossCheck[]> {
  const checks: LossCheck[] = [];
  let expected: number[] | undefined;
  for (const { name, open } of openers) {
    const result = emptyResult(name);
    const losses = await attempt(result, () => lossesOf(model, open));
    expected ??= losses ?? [];
    const differences = (losses ?? [NaN]).map((loss, i) => Math.abs(loss - expected![i]!));
    checks.push({
      ...{ side: name, steps: CHECK_STEPS, losses: losses ?? [], failure: result.failure },
      difference: Math.max(...differences),
    });
  }
  return checks;
}

async function lossesOf(model: BenchModel, open: () => Promise<StepSide>): Promise<number[]> {
  const side = await open();
  try {
    const losses: number[] = [];
    for (let step = 0; step < CHECK_STEPS; step++) {
      losses.push((await side.step(benchBatch(model, step))).loss);
    }
    return losses;
  } finally {
    side.destroy();
  }
}

/** Checks that failed, or that are further off than LOSS_TOLERANCE. */
export function badChecks(checks: readonly LossCheck[]): LossCheck[] {
  return checks.filter(({ difference, failure }) => failure !== null || !(difference <= LOSS_TOLERANCE));
}
