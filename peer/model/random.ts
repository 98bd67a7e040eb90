// A seeded stream of 32-bit integers that is the same in every engine: integer operations only.
// Not cryptography and not a clock: equal keys give equal streams, for ever (data order and initial weights depend on it).
import { assert } from "../wire/errors.ts";

/** Draws dropped after seeding, so that near-equal keys give unrelated streams. */
const WARM_UP_DRAWS = 12;

/** Returns the next 32-bit unsigned integer at each call. */
export type RandomStream = () => number;

/** sfc32 (Doty-Humphrey, PractRand; public domain), keyed by up to any number of 32-bit words. */
export function randomStream(key: readonly number[]): RandomStream {
  let [a, b, c] = [0x9e3779b9, 0x243f6a88, 0xb7e15162];
  let counter = 1;
  function next(): number {
    const out = (a + b + counter) | 0;
    counter = (counter + 1) | 0;
    a = b ^ (b >>> 9);
    b = (c + (c << 3)) | 0;
    c = ((c << 21) | (c >>> 11)) + out | 0;
    return out >>> 0;
  }
  for (const word of key) {
    a ^= word;
    for (let i = 0; i < WARM_UP_DRAWS; i++) next();
  }
  return next;
}

/** 32-bit FNV-1a over UTF-16 code units; turns a name into a key word. */
export function nameWord(name: string): number {
  let hash = 0x811c9dc5;
  for (let i = 0; i < name.length; i++) {
    const unit = name.charCodeAt(i);
    hash = Math.imul(hash ^ (unit & 0xff), 0x01000193);
    hash = Math.imul(hash ^ (unit >>> 8), 0x01000193);
  }
  return hash >>> 0;
}

/** Uniform integer in [0, bound) without bias: draws beyond the last whole multiple of `bound` are dropped. */
export function uniformBelow(next: RandomStream, bound: number): number {
  assert(Number.isInteger(bound) && bound >= 1 && bound <= 0x1_0000_0000, `no integers below ${bound}`);
  const end = 0x1_0000_0000 - 0x1_0000_0000 % bound;
  let draw = next();
  while (draw >= end) draw = next();
  return draw % bound;
}

/**
 * Sum of twelve 16-bit uniforms, centred and scaled to variance 1: close to a normal within ±6 and, unlike
 * Box-Muller, free of Math.log and Math.cos, which engines round differently.
 */
export function nearNormal(next: RandomStream): number {
  let sum = 0;
  for (let i = 0; i < 6; i++) {
    const word = next();
    sum += (word >>> 16) + (word & 0xffff);
  }
  return (sum - 12 * 32767.5) / 65536;
}
