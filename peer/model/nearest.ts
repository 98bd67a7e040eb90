// The known word that a mistyped one most likely means.
// Not a spelling checker. Ties go to the earlier word, so that messages are stable.

/** Longer input is cut before comparing, which bounds the work for hostile input. */
const COMPARED_CHARS = 64;

/** Least Levenshtein distance, ignoring case; `words` must not be empty. */
export function nearest(word: string, words: readonly string[]): string {
  let best = words[0] ?? "";
  let bestDistance = Infinity;
  for (const candidate of words) {
    const distance = editDistance(word.slice(0, COMPARED_CHARS).toLowerCase(), candidate.toLowerCase());
    if (distance < bestDistance) [best, bestDistance] = [candidate, distance];
  }
  return best;
}

/** Levenshtein's distance, one row at a time (Wagner & Fischer 1974). */
export function editDistance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) {
      const replaced = row[j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1);
      next.push(Math.min(replaced, row[j]! + 1, next[j - 1]! + 1));
    }
    row = next;
  }
  return row[b.length]!;
}
