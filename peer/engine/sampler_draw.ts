// Which token comes next, out of one row of logits: temperature, top-k, top-p, and one draw of a seeded stream.
// Not the model (sampler.ts). One draw is taken per token whatever the options, so a seed stays comparable between them.
import type { RandomStream } from "../model/random.ts";
import { ShoalError } from "../wire/errors.ts";

export interface DrawOptions {
  /** Divides the logits; 0 always takes the likeliest token. */
  temperature: number;
  /** Only the k likeliest tokens may be drawn; 0 allows all. */
  topK: number;
  /**
   * Only the likeliest tokens that together have this probability may be drawn (nucleus sampling, Holtzman et al. 2020), at
   * least one; counted after temperature and topK. Default 1: all.
   */
  topP?: number;
}

/** @throws {ShoalError} usage with the option, its value and what fits. */
export function checkDrawOptions({ temperature, topK, topP = 1 }: DrawOptions): void {
  const wrong = !(temperature >= 0 && temperature < Infinity)
    ? `temperature ${temperature}; use a number of at least 0`
    : !(Number.isInteger(topK) && topK >= 0)
    ? `topK ${topK}; use a whole number, 0 for no limit`
    : !(topP > 0 && topP <= 1)
    ? `topP ${topP}; use a number above 0 and up to 1`
    : null;
  if (wrong !== null) throw new ShoalError("usage", `cannot sample with ${wrong}`);
}

/**
 * Draws from softmax(logits / temperature) over the tokens that topK and topP leave, the likeliest first; ties go to the
 * lower token.
 */
export function drawToken(logits: Float32Array, options: DrawOptions, next: RandomStream): number {
  const uniform = next() / 2 ** 32;
  const { temperature, topK, topP = 1 } = options;
  const best = likeliest(logits);
  if (temperature === 0) return best;
  const order = new Likeliest(logits);
  const weightOf = (token: number) => Math.exp((logits[token]! - logits[best]!) / temperature);
  const limited = topK > 0 && topK < logits.length;
  const tokens = limited ? order.take(topK) : [];
  let sum = 0;
  if (limited) { for (const token of tokens) sum += weightOf(token); }
  else for (let token = 0; token < logits.length; token++) sum += weightOf(token);
  // Diverged parameters make every weight NaN.
  if (!(sum > 0)) return best;
  return walk({ sum, uniform, topP, weightOf, nth: (n) => limited ? tokens[n] : order.next() }) ?? best;
}

interface Walk {
  /** Weight of all tokens that may be drawn before topP. */
  sum: number;
  uniform: number;
  topP: number;
  weightOf(token: number): number;
  /** The tokens from the likeliest on; undefined after the last. */
  nth(n: number): number | undefined;
}

/** Goes down the order until the drawn share is used up; with topP the nucleus is counted first. */
function walk({ sum, uniform, topP, weightOf, nth }: Walk): number | null {
  const seen: number[] = [], weights: number[] = [];
  let mass = 0;
  const wanted = topP < 1 ? topP * sum : uniform * sum;
  for (let n = 0;; n++) {
    const token = nth(n);
    if (token === undefined) break;
    const weight = weightOf(token);
    seen.push(token);
    weights.push(weight);
    mass += weight;
    // Rounding may leave a crumb after the last weight; then the last token seen is the one.
    if (topP < 1 ? mass >= wanted : mass > wanted) break;
  }
  if (topP === 1) return seen.at(-1) ?? null;
  let left = uniform * mass;
  const drawn = weights.findIndex((weight) => (left -= weight) < 0);
  return seen[drawn] ?? seen.at(-1) ?? null;
}

function likeliest(logits: Float32Array): number {
  let best = 0;
  for (let token = 1; token < logits.length; token++) if (logits[token]! > logits[best]!) best = token;
  return best;
}

/** Tokens from the likeliest on, as a binary heap: a vocabulary of 50,000 is not sorted for the ten that are looked at. */
class Likeliest {
  readonly #logits: Float32Array;
  readonly #heap: Uint32Array;
  #size: number;

  constructor(logits: Float32Array) {
    this.#logits = logits;
    this.#size = logits.length;
    this.#heap = Uint32Array.from(logits.keys());
    for (let at = (this.#size >> 1) - 1; at >= 0; at--) this.#sink(at);
  }

  next(): number | undefined {
    if (this.#size === 0) return undefined;
    const top = this.#heap[0]!;
    this.#heap[0] = this.#heap[--this.#size]!;
    this.#sink(0);
    return top;
  }

  take(count: number): number[] {
    return Array.from({ length: Math.min(count, this.#size) }, () => this.next()!);
  }

  #sink(from: number): void {
    let at = from;
    while (true) {
      const left = 2 * at + 1, right = left + 1;
      let top = at;
      if (left < this.#size && this.#before(left, top)) top = left;
      if (right < this.#size && this.#before(right, top)) top = right;
      if (top === at) return;
      [this.#heap[at], this.#heap[top]] = [this.#heap[top]!, this.#heap[at]!];
      at = top;
    }
  }

  #before(i: number, j: number): boolean {
    const a = this.#heap[i]!, b = this.#heap[j]!;
    const difference = this.#logits[a]! - this.#logits[b]!;
    return difference > 0 || (difference === 0 && a < b);
  }
}
