// How far another program's logits are from Shoal's. No assertions here.

/** Log-softmax of one row of logits. */
export function logSoftmax(logits: readonly number[]): number[] {
  const most = Math.max(...logits);
  const sum = logits.reduce((total, logit) => total + Math.exp(logit - most), 0);
  return logits.map((logit) => logit - most - Math.log(sum));
}

/** Largest difference of any two entries; infinite where the shapes differ or an entry is no number. */
export function largestDifference(
  ours: readonly (readonly number[])[],
  theirs: readonly ArrayLike<number>[],
): number {
  if (ours.length !== theirs.length) return Infinity;
  let most = 0;
  ours.forEach((row, i) => {
    const other = theirs[i]!;
    if (row.length !== other.length) most = Infinity;
    row.forEach((value, j) => {
      const difference = Math.abs(value - other[j]!);
      most = Math.max(most, Number.isNaN(difference) ? Infinity : difference);
    });
  });
  return most;
}
