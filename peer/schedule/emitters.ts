// Emitters of the fused-backward textbook schedules of one direction: GPipe, 1F1B, interleaved 1F1B, breadth-first.
// They give the computation order per device and the memory it needs; never sends, never times.
import { ShoalError } from "../wire/errors.ts";
import type { Op, Schedule, SingleOp } from "./ir.ts";

/** Micro-batches or devices beyond this are refused: an order is a list of up to P * V * N operations. */
export const SCHEDULE_SIZE_MAX = 65536;

/** GPipe (Huang et al. 2019): all forwards, then all backwards, newest first. */
export function gpipe(P: number, N: number): Schedule {
  checkSize(P, N);
  const ops = perDevice(P, (stage) => [
    ...range(N).map((m) => one("F", stage, m)),
    ...range(N).reverse().map((m) => one("BW", stage, m)),
  ]);
  return { ...single("gpipe", P, N), ops, peakActivations: filled(P, N), backwardOrder: "lifo" };
}

/**
 * 1F1B (PipeDream-flush, DAPPLE). `warmUp(p)` forwards run before the first forward-backward pair; the textbook
 * uses P-1-p, a larger number covers the round trip of slow links. It must not grow with p.
 */
export function oneForwardOneBackward(P: number, N: number, warmUp = (p: number) => P - 1 - p): Schedule {
  checkSize(P, N);
  const warm = (p: number) => Math.min(N, warmUp(p));
  const ops = perDevice(P, (p) => warmedUp(N, warm(p), (kind, m) => one(kind, p, m)));
  const peakActivations = range(P).map((p) => Math.min(N, warm(p) + 1));
  return { ...single("1f1b", P, N), ops, peakActivations };
}

/**
 * PipeDream-2BW (Narayanan et al. 2021): the order of 1F1B over `steps` steps of N micro-batches without a flush, so no
 * bubble after the first fill. Every step computes with weights that are one step old, on every stage alike. N at least
 * the warm-up of stage 0, or a third version of the weights would be needed.
 */
export function pipeDream2bw(
  P: number,
  N: number,
  options: { steps: number; warmUp?: (p: number) => number },
): Schedule {
  const { steps, warmUp = (p: number) => P - 1 - p } = options;
  if (N < warmUp(0)) throw badSize(`2bw needs at least ${warmUp(0)} micro-batches in a step, got N=${N}`);
  const order = oneForwardOneBackward(P, N * steps, warmUp);
  return { ...order, name: "2bw", asynchronous: { perStep: N, delay: 1 } };
}

/** Warm-up of 1F1B that covers `hop` seconds one way when a micro-batch takes `t` seconds per stage. */
export function latencyAwareWarmUp(P: number, t: number, hop: number): (p: number) => number {
  // The small allowance keeps rounding noise from adding a forward.
  return (p) => Math.ceil((P - 1 - p) * (1 + (2 * hop) / t) - 1e-9);
}

/** Interleaved 1F1B (Narayanan et al. 2021): device p holds virtual stages p, P+p, ...; needs N mod P = 0. */
export function interleaved(P: number, N: number, v: number): Schedule {
  checkSize(P, N * v);
  if (N % P !== 0) throw badSize(`interleaved needs N divisible by P, got N=${N}, P=${P}`);
  const forwardChunk = (unit: number) => Math.floor((unit % (P * v)) / P);
  const microBatch = (unit: number) => Math.floor(unit / (P * v)) * P + unit % P;
  const warm = (p: number) => Math.min(N * v, (P - p - 1) * 2 + (v - 1) * P);
  const ops = perDevice(P, (p) =>
    warmedUp(N * v, warm(p), (kind, unit) => {
      const chunk = kind === "F" ? forwardChunk(unit) : v - 1 - forwardChunk(unit);
      return one(kind, chunk * P + p, microBatch(unit));
    }));
  const peakActivations = range(P).map((p) => Math.min(N * v, warm(p) + 1));
  return { ...looped("interleaved", P, N, v), ops, peakActivations };
}

/** Breadth-first (Lamy-Poirier 2023): every micro-batch through a chunk before the next chunk starts. */
export function breadthFirst(P: number, N: number, v: number): Schedule {
  checkSize(P, N * v);
  const ops = perDevice(P, (p) => [
    ...range(v).flatMap((chunk) => range(N).map((m) => one("F", chunk * P + p, m))),
    ...range(v).reverse().flatMap((chunk) => range(N).map((m) => one("BW", chunk * P + p, m))),
  ]);
  return { ...looped("breadth-first", P, N, v), ops, peakActivations: filled(P, N * v) };
}

/** Everything of a one-direction schedule with one stage per device, but its operations. */
export function single(name: string, P: number, N: number): Schedule {
  return {
    name,
    devices: P,
    stages: P,
    microBatches: N,
    placement: [range(P)],
    ops: [],
    peakActivations: [],
    backwardOrder: "fifo",
  };
}

/** Direction 0 places stage s on device s, direction 1 on device P-1-s. */
export function bidirectional(P: number): number[][] {
  return [range(P), range(P).reverse()];
}

export function perDevice(P: number, emit: (p: number) => Op[]): Op[][] {
  return range(P).map((p) => emit(p));
}

/** An operation of a one-direction schedule. */
export function one(kind: SingleOp["kind"], stage: number, microBatch: number): SingleOp {
  return { kind, direction: 0, stage, microBatch };
}

export function range(count: number): number[] {
  return Array.from({ length: count }, (_, i) => i);
}

export function filled(count: number, value: number): number[] {
  return new Array<number>(count).fill(value);
}

/** Throws `bad-config` on sizes that are not whole, not positive or too large to list. */
export function checkSize(P: number, N: number): void {
  if (!Number.isInteger(P) || !Number.isInteger(N) || P < 1 || N < 1 || P * N > SCHEDULE_SIZE_MAX) {
    throw badSize(
      `a schedule needs whole P >= 1 and N >= 1 with at most ${SCHEDULE_SIZE_MAX} units, got P=${P}, N=${N}`,
    );
  }
}

export function badSize(message: string): ShoalError {
  return new ShoalError("bad-config", message);
}

function looped(name: string, P: number, N: number, v: number): Schedule {
  const placement = [range(P * v).map((stage) => stage % P)];
  return { ...single(`${name}-${v}`, P, N), stages: P * v, placement };
}

/** `warm` forwards, then forward-backward pairs, then the backwards that are left. */
function warmedUp(
  units: number,
  warm: number,
  emit: (kind: "F" | "BW", unit: number) => SingleOp,
): SingleOp[] {
  const list = range(warm).map((unit) => emit("F", unit));
  for (let unit = 0; unit < units - warm; unit++) list.push(emit("F", warm + unit), emit("BW", unit));
  for (let unit = units - warm; unit < units; unit++) list.push(emit("BW", unit));
  return list;
}
