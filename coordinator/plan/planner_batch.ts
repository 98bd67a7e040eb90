// The size of a micro-batch, where the run leaves it to the planner: the sequences of a step are cut into as many micro-batches as
// make a step of these peers shortest. Pure; what a plan of a size is and takes is the caller's to say. What must stay true: a
// step and an evaluation keep exactly their sequences, and the present size is only left for one that is clearly faster, or
// because it does not fit.
import { readConfig } from "../../peer/model/config.ts";
import type { RunConfig } from "../../peer/wire/run.ts";

/** Micro-batches that a step may have: what the configuration allows. */
export const MICRO_BATCHES_MAX = 256;
/** Sequences in a micro-batch: the same. */
export const SEQUENCES_MAX = 1024;
/** Another size must take at most this share of the present one's step: engines are built anew for it, and predictions err. */
export const SIZE_GAIN = 0.95;
/** Sizes that are planned; each is a plan of its own. */
export const SIZES_TRIED_MAX = 6;
/** Sizes nearer to one another than this are not told apart: a step's time is flat around its best size. */
const SIZE_RATIO = Math.SQRT2;

/** What a size comes to. */
export interface SizeJudgement {
  /** Predicted seconds of a step; null if it cannot be had. */
  seconds: number | null;
  /** Why not; a sentence or a part of one. */
  reason: string;
  /** Sequences of a micro-batch that a formula takes to be best with the same peers; null: it does not know. */
  suggestion: number | null;
}

export interface SizeChoice<T> {
  /** The configuration with the chosen size. */
  config: RunConfig;
  judged: T;
  /** Why this size. */
  sentence: string;
}

export interface SizeOptions {
  /** Only if the present size does not fit is another one looked for. */
  stay?: boolean;
  /** Sizes that are planned at most, beside what it takes to find one that fits. Default, and never more than: SIZES_TRIED_MAX. */
  tried?: number;
}

/** The configuration with micro-batches of `size` sequences; a step and an evaluation keep theirs. */
export function withSize(config: RunConfig, size: number): RunConfig {
  const { batch_size, gradient_accumulation_steps, eval_iters } = config;
  return {
    ...config,
    batch_size: size,
    gradient_accumulation_steps: gradient_accumulation_steps * batch_size / size,
    eval_iters: eval_iters * batch_size / size,
  };
}

/**
 * The sizes that a run may have, ascending, the present one among them: those that divide the sequences of a step and those of an
 * evaluation, and with which the configuration is one that a run may begin with.
 */
export function sizesOf(config: RunConfig): number[] {
  const { batch_size, gradient_accumulation_steps, eval_iters } = config;
  const [step, evaluation] = [batch_size * gradient_accumulation_steps, batch_size * eval_iters];
  const most = Math.min(step, evaluation, SEQUENCES_MAX);
  const sizes: number[] = [];
  for (let size = Math.ceil(step / MICRO_BATCHES_MAX); size <= most; size++) {
    if (size === batch_size) sizes.push(size);
    else if (step % size === 0 && evaluation % size === 0 && isValid(withSize(config, size))) {
      sizes.push(size);
    }
  }
  return sizes;
}

function isValid(config: RunConfig): boolean {
  try {
    readConfig({ ...config });
    return true;
  } catch {
    return false;
  }
}

/**
 * The size with which a step is shortest. Tried are the present one, the one nearest to the formula's, and neighbours of the best
 * so far. Null if none of those fits; then the present one's judgement says what is missing.
 */
export function chooseSize<T extends SizeJudgement>(
  config: RunConfig,
  judge: (config: RunConfig) => T,
  { stay = false, tried: most = SIZES_TRIED_MAX }: SizeOptions = {},
): { choice: SizeChoice<T> | null; present: T } {
  const tried = new Map<number, T>();
  const at = (size: number): T => {
    const known = tried.get(size);
    if (known !== undefined) return known;
    const made = judge(withSize(config, size));
    tried.set(size, made);
    return made;
  };
  const { batch_size: now } = config;
  const present = at(now);
  const chosen = (size: number) => ({
    choice: { config: withSize(config, size), judged: at(size), sentence: sentenceOf(config, size, tried) },
    present,
  });
  if (stay && present.seconds !== null) return chosen(now);
  const sizes = sizesOf(config);
  // Whatever fits is a beginning: a smaller size takes less memory.
  const first = present.seconds !== null ? now : firstThatFits(sizes.filter((size) => size < now), at);
  if (first === null) return { choice: null, present };
  if (stay) return chosen(first);
  const best = climb(apart(sizes, first), {
    first,
    at,
    known: () => tried.size < Math.min(most, SIZES_TRIED_MAX),
  });
  const stays = present.seconds !== null && at(best).seconds! > present.seconds * SIZE_GAIN;
  return chosen(stays ? now : best);
}

/** The largest that fits, by halving: what fits a peer, fits it in smaller pieces, too. */
function firstThatFits(sizes: readonly number[], at: (size: number) => SizeJudgement): number | null {
  let [found, low, high] = [-1, 0, sizes.length - 1];
  while (low <= high) {
    const middle = (low + high) >> 1;
    if (at(sizes[middle]!).seconds === null) high = middle - 1;
    else [found, low] = [middle, middle + 1];
  }
  return found < 0 ? null : sizes[found]!;
}

/** `from` and what lies far enough from it and from one another. */
function apart(sizes: readonly number[], from: number): number[] {
  const kept = [from];
  for (const size of sizes.filter((it) => it > from)) {
    if (size >= kept.at(-1)! * SIZE_RATIO) kept.push(size);
  }
  for (const size of sizes.filter((it) => it < from).toReversed()) {
    if (size * SIZE_RATIO <= kept[0]!) kept.unshift(size);
  }
  return kept;
}

/** Looks beside the best until both neighbours are worse, or enough was tried. */
function climb(
  sizes: readonly number[],
  { first, at, known }: { first: number; at: (size: number) => SizeJudgement; known: () => boolean },
): number {
  const seconds = (size: number) => at(size).seconds ?? Infinity;
  const { suggestion } = at(first);
  let best = first;
  const consider = (size: number | undefined) => {
    if (size !== undefined && known() && seconds(size) < seconds(best)) best = size;
  };
  if (suggestion !== null) consider(nearestTo(suggestion, sizes));
  for (let before = -1; before !== best;) {
    before = best;
    const i = sizes.indexOf(best);
    consider(sizes[i - 1]);
    consider(sizes[i + 1]);
  }
  return best;
}

function nearestTo(wanted: number, sizes: readonly number[]): number {
  const distance = (size: number) => Math.abs(Math.log(size / wanted));
  return sizes.reduce((best, size) => distance(size) < distance(best) ? size : best);
}

/** Most of the others that a sentence names. */
const OTHERS_NAMED = 2;

function sentenceOf(config: RunConfig, size: number, tried: ReadonlyMap<number, SizeJudgement>): string {
  const { batch_size: now } = config;
  const { gradient_accumulation_steps: count } = withSize(config, size);
  const { seconds } = tried.get(size)!;
  const said = `${size} ${size === 1 ? "sequence" : "sequences"} per micro-batch, ${count} of them: ${
    inSeconds(seconds!)
  } per step`;
  const others = [...tried].filter(([other, { seconds }]) => other !== size && seconds !== null)
    .toSorted(([a, one], [b, two]) => Number(b === now) - Number(a === now) || one.seconds! - two.seconds!)
    .slice(0, OTHERS_NAMED)
    .map(([other, { seconds }]) => `${namesOf(config, other)} would take ${inSeconds(seconds!)}`);
  const present = tried.get(now)!;
  const missing = present.seconds === null
    ? [`${namesOf(config, now)} cannot be had: ${unstopped(present.reason)}`]
    : [];
  return `${[said, ...missing, ...others].join("; ")}.`;
}

function namesOf(config: RunConfig, size: number): string {
  return `${size} x ${withSize(config, size).gradient_accumulation_steps}`;
}

function inSeconds(seconds: number): string {
  return `${seconds.toPrecision(3)} s`;
}

function unstopped(sentence: string): string {
  return sentence.replace(/\.$/, "");
}
