// Emitter of ZB-V (Qi et al. 2024): each device holds two half-stages, one on the way down and one on the way back up, so
// that the loss is computed where the data entered. Computation order only; never sends, never times.
import { checkSize, filled, one, perDevice, range, single } from "./emitters.ts";
import type { Schedule, SingleOp } from "./ir.ts";

/**
 * ZB-V: device p holds virtual stages p and 2P-1-p. No bubble if F = B = W, with the activation memory of 1F1B's first
 * device (2P half-stages) on every device, at twice the boundary traffic. Any P and N: fewer than 2P-1 micro-batches
 * run the order of 2P-1 with the missing ones left out.
 */
export function zbV(P: number, N: number): Schedule {
  checkSize(2 * P, Math.max(N, 2 * P - 1));
  const padded = Math.max(N, 2 * P - 1);
  const ops = perDevice(P, (p) => zbVDevice(p, P, padded).filter((op) => op.microBatch < N));
  const placement = [[...range(P), ...range(P).reverse()]];
  const peakActivations = filled(P, Math.min(2 * N, 2 * P));
  return { ...single("zb-v", P, N), stages: 2 * P, placement, ops, peakActivations };
}

/** Down is the first half of the model, up the second; N at least 2P-1. */
function zbVDevice(p: number, P: number, N: number): SingleOp[] {
  const down = new HalfStage(p);
  const up = new HalfStage(2 * P - 1 - p);
  const list: SingleOp[] = [];
  const emit = (count: number, ...ops: (() => SingleOp)[]) => {
    for (let i = 0; i < count; i++) for (const op of ops) list.push(op());
  };
  emit(2 * (P - p) - 1, down.forward);
  emit(p, up.forward, down.forward);
  emit(P - p, up.forward, up.backward, up.weightGrad);
  while (up.forwards < N || down.forwards < N) {
    if (down.forwards < N) list.push(down.forward());
    emit(1, down.backward, down.weightGrad);
    emit(1, up.forward, up.backward, up.weightGrad);
  }
  // The drain: input gradients travel on at once, weight gradients fill what would be the bubble.
  emit(p, down.backward, up.backward);
  emit(P - p, down.backward, down.weightGrad);
  emit(N - up.weightGrads, up.weightGrad);
  emit(N - down.weightGrads, down.weightGrad);
  return list;
}

/** Emits the operations of one virtual stage, each kind in the order of the micro-batches. */
class HalfStage {
  forwards = 0;
  weightGrads = 0;
  readonly #stage: number;
  #backwards = 0;

  constructor(stage: number) {
    this.#stage = stage;
  }

  readonly forward = (): SingleOp => one("F", this.#stage, this.forwards++);
  readonly backward = (): SingleOp => one("B", this.#stage, this.#backwards++);
  readonly weightGrad = (): SingleOp => one("W", this.#stage, this.weightGrads++);
}
