// How likely a model found tokens: of one row of logits, and as OpenAI's completions API tells it (`logprobs`). Pure. Natural logarithms
// of the model's own distribution, before temperature, top-k and top-p.

export interface TokenChance {
  /** The token as text: what it is called where it stands for none. */
  token: string;
  /** Where it begins in the choice's text, in characters (code points). */
  offset: number;
  /** Null: nothing was before it. */
  logprob: number | null;
  /** The likeliest tokens there, and this one. */
  top: Readonly<Record<string, number>> | null;
}

/** Of one place in a text: the token that stands there, and the likeliest ones, by number. */
export interface Chance {
  token: number;
  logprob: number;
  likeliest: (readonly [token: number, logprob: number])[];
}

/** @param logits of one place, [V]; @param count how many of the likeliest */
export function chanceOf(logits: Float32Array, token: number, count: number): Chance {
  let most = -Infinity;
  for (const value of logits) if (value > most) most = value;
  let sum = 0;
  for (const value of logits) sum += Math.exp(value - most);
  const norm = most + Math.log(sum);
  const best: number[] = [];
  // A few of many: each is put in its place, ties to the lower token.
  for (let at = 0; at < logits.length && count > 0; at++) {
    if (best.length === count && !(logits[at]! > logits[best[count - 1]!]!)) continue;
    const place = best.findIndex((it) => logits[at]! > logits[it]!);
    best.splice(place < 0 ? best.length : place, 0, at);
    best.length = Math.min(best.length, count);
  }
  const chance = (it: number) => logits[it]! - norm;
  return { token, logprob: chance(token), likeliest: best.map((it) => [it, chance(it)] as const) };
}

/** `logprobs` of a choice, or of a piece of one. */
export function logprobsOf(chances: readonly TokenChance[]) {
  return {
    tokens: chances.map(({ token }) => token),
    token_logprobs: chances.map(({ logprob }) => logprob),
    top_logprobs: chances.some(({ top }) => top !== null) ? chances.map(({ top }) => top) : null,
    text_offset: chances.map(({ offset }) => offset),
  };
}
