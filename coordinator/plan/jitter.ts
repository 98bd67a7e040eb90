// Random delays for simulations, from a seed: the same seed gives the same delays. Not a model of any real link.
import type { Jitter } from "./simulate.ts";

/** Spread of the factors: standard deviation of their logarithm. 0 = none. */
export interface JitterSpread {
  /** Of latencies and transfers. */
  link: number;
  compute: number;
}

/** Factors with median 1, drawn in the order in which they are asked for. */
export function lognormalJitter(seed: number, spread: JitterSpread): Jitter {
  const uniform = createUniform(seed);
  return (what) => {
    const sigma = what === "compute" ? spread.compute : spread.link;
    return sigma === 0 ? 1 : Math.exp(sigma * normal(uniform));
  };
}

/** Uniform numbers in (0, 1): a 32-bit Weyl sequence through a mixing function. */
export function createUniform(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x9e3779b9) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 16), 0x85ebca6b);
    mixed = Math.imul(mixed ^ (mixed >>> 13), 0xc2b2ae35);
    return (((mixed ^ (mixed >>> 16)) >>> 0) + 0.5) / 2 ** 32;
  };
}

/** Standard normal by the polar form of Box and Muller, which throws its second number away to keep no state. */
function normal(uniform: () => number): number {
  for (;;) {
    const x = 2 * uniform() - 1;
    const y = 2 * uniform() - 1;
    const square = x * x + y * y;
    if (square > 0 && square < 1) return x * Math.sqrt(-2 * Math.log(square) / square);
  }
}
