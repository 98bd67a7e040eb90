// The learning rate of every step as a table made once: linear warm-up, cosine decay, floor (nanoGPT's rule).
// Not the pipeline schedule (peer/schedule/). All holders must read the same bits, so no Math.cos: engines differ in
// its last bit, while + - * / of doubles are exact by IEEE.
import type { RunConfig } from "../wire/run.ts";

/** Terms of the cosine's Taylor series; at pi/2 the next one is below 1e-17. */
const COSINE_TERMS = 12;

/** cos(pi·x) for 0 <= x <= 1, to about 1e-16, with + - * / only. */
export function cosinePi(x: number): number {
  if (x > 0.5) return -cosinePi(1 - x);
  const angle = Math.PI * x;
  let term = 1;
  let sum = 1;
  for (let n = 1; n <= COSINE_TERMS; n++) {
    term = -term * angle * angle / ((2 * n - 1) * (2 * n));
    sum += term;
  }
  return sum;
}

/** lr[t] for t = 0..max_iters-1. */
export function learningRates(config: RunConfig): Float64Array {
  return Float64Array.from({ length: config.max_iters }, (_, step) => learningRate(config, step));
}

/** lr[step] alone, for whoever needs one and not the table. */
export function learningRate(config: RunConfig, step: number): number {
  const { learning_rate, min_lr, warmup_iters, lr_decay_iters } = config;
  if (step < warmup_iters) return learning_rate * (step + 1) / (warmup_iters + 1);
  if (step >= lr_decay_iters) return min_lr;
  const ratio = (step - warmup_iters) / (lr_decay_iters - warmup_iters);
  return min_lr + 0.5 * (1 + cosinePi(ratio)) * (learning_rate - min_lr);
}
