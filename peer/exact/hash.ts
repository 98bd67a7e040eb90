// 128-bit fingerprints of states and totals, by which holders notice that they differ.
// Not cryptography: MurmurHash3 (x86, 128 bits; Appleby, public domain) detects faults, not forgers. It reads 32-bit
// words by value, so the result does not depend on the machine's byte order.
import type { StageState } from "./state.ts";

const C1 = 0x239b961b;
const C2 = 0xab0e9789;
const C3 = 0x38b34ae5;
const C4 = 0xa1e38b93;

/** Four 32-bit lanes plus the number of bytes taken in. */
type Lanes = [h1: number, h2: number, h3: number, h4: number];

function rotl(x: number, bits: number): number {
  return (x << bits) | (x >>> (32 - bits));
}

/** Murmur3's 32-bit finaliser, a bijection that mixes every bit into every other. */
export function mix32(x: number): number {
  let h = x ^ (x >>> 16);
  h = Math.imul(h, 0x85ebca6b);
  h ^= h >>> 13;
  h = Math.imul(h, 0xc2b2ae35);
  return (h ^ (h >>> 16)) >>> 0;
}

/** Takes whole 16-byte blocks in; missing words of the last block count as 0. */
function absorb(lanes: Lanes, words: Uint32Array): void {
  const whole = words.length - words.length % 4;
  absorbBlocks(lanes, words.subarray(0, whole));
  if (whole === words.length) return;
  const last = new Uint32Array(4);
  last.set(words.subarray(whole));
  absorbBlocks(lanes, last);
}

function absorbBlocks(lanes: Lanes, words: Uint32Array): void {
  let [h1, h2, h3, h4] = lanes;
  for (let i = 0; i < words.length; i += 4) {
    h1 ^= Math.imul(rotl(Math.imul(words[i]!, C1), 15), C2);
    h1 = (Math.imul((rotl(h1, 19) + h2) | 0, 5) + 0x561ccd1b) | 0;
    h2 ^= Math.imul(rotl(Math.imul(words[i + 1]!, C2), 16), C3);
    h2 = (Math.imul((rotl(h2, 17) + h3) | 0, 5) + 0x0bcaa747) | 0;
    h3 ^= Math.imul(rotl(Math.imul(words[i + 2]!, C3), 17), C4);
    h3 = (Math.imul((rotl(h3, 15) + h4) | 0, 5) + 0x96cd1c35) | 0;
    h4 ^= Math.imul(rotl(Math.imul(words[i + 3]!, C4), 18), C1);
    h4 = (Math.imul((rotl(h4, 13) + h1) | 0, 5) + 0x32ac3b17) | 0;
  }
  lanes[0] = h1;
  lanes[1] = h2;
  lanes[2] = h3;
  lanes[3] = h4;
}

function cascade(lanes: Lanes): Lanes {
  const h1 = (lanes[0] + lanes[1] + lanes[2] + lanes[3]) | 0;
  return [h1, (lanes[1] + h1) | 0, (lanes[2] + h1) | 0, (lanes[3] + h1) | 0];
}

function finish(lanes: Lanes, byteLength: number): string {
  const sized = lanes.map((h) => h ^ byteLength) as Lanes;
  const mixed = cascade(sized).map((h) => mix32(h) | 0) as Lanes;
  return cascade(mixed).map((h) => (h >>> 0).toString(16).padStart(8, "0")).join("");
}

/** 32 hex digits over the words; for a multiple of four words it is exactly MurmurHash3_x86_128 with seed 0. */
export function hashWords(words: Uint32Array): string {
  return hashSections([words]);
}

function hashSections(sections: readonly Uint32Array[]): string {
  const lanes: Lanes = [0, 0, 0, 0];
  let words = 0;
  for (const section of sections) {
    absorb(lanes, section);
    words += section.length;
  }
  return finish(lanes, words * 4);
}

function wordsOf(array: Float32Array | Int32Array): Uint32Array {
  return new Uint32Array(array.buffer, array.byteOffset, array.length);
}

/** Fingerprint of everything that a holder must agree on: step, sizes, params, m, v, exponents, and older weights if any. */
export function stateHash(state: StageState): string {
  const { step, params, m, v, exponents, before } = state;
  const header = Uint32Array.of(step, params.length, exponents.length, before === undefined ? 0 : 1);
  const older = before === undefined ? [] : [wordsOf(before.params), exponentWords(before.exponents)];
  return hashSections([
    ...[header, wordsOf(params), wordsOf(m), wordsOf(v), exponentWords(exponents)],
    ...older,
  ]);
}

function exponentWords(exponents: Int16Array): Uint32Array {
  return Uint32Array.from(exponents, (exponent) => exponent >>> 0);
}

/** Fingerprint of a step's integer total. */
export function totalHash(total: Int32Array): string {
  return hashSections([Uint32Array.of(total.length, 0, 0, 0), wordsOf(total)]);
}
