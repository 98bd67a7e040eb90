// Which known word was meant by an unknown one, for the command line's refusals. Plain JavaScript without packages, as usage.mjs.
// @ts-check

/**
 * The candidate with the fewest edits to `word` (insert, delete, replace, swap of neighbours), or null if none is
 * close enough to be a slip of the keyboard.
 * @param {string} word
 * @param {readonly string[]} candidates
 * @returns {string | null}
 */
export function nearest(word, candidates) {
  let best = null;
  let bestDistance = Math.max(2, Math.floor(word.length / 3)) + 1;
  for (const candidate of candidates) {
    const distance = editDistance(word.toLowerCase(), candidate.toLowerCase());
    if (distance < bestDistance) [best, bestDistance] = [candidate, distance];
  }
  return best;
}

/**
 * Optimal string alignment distance.
 * @param {string} a
 * @param {string} b
 */
export function editDistance(a, b) {
  let before = /** @type {number[]} */ ([]);
  let previous = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      const same = a[i - 1] === b[j - 1];
      let cost = Math.min(
        (previous[j] ?? 0) + 1,
        (row[j - 1] ?? 0) + 1,
        (previous[j - 1] ?? 0) + (same ? 0 : 1),
      );
      const swapped = i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1];
      if (swapped) cost = Math.min(cost, (before[j - 2] ?? 0) + 1);
      row.push(cost);
    }
    [before, previous] = [previous, row];
  }
  return previous[b.length] ?? 0;
}

/**
 * "unknown flag" and the like, with the nearest known name.
 * @param {string} what
 * @param {string} word
 * @param {readonly string[]} known
 */
export function unknownMessage(what, word, known) {
  const close = nearest(word, known);
  return `unknown ${what} "${word}"${close === null ? "" : ` (did you mean "${close}"?)`}`;
}
