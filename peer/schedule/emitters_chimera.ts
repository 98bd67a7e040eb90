// Chimera (Li & Hoefler 2021) and what it does with more micro-batches than stages: direct concatenation, forward
// doubling, backward halving, and more than one pair of pipelines. Computation order only; never sends, never times.
// Each peer of a mirror pair holds the same stages, so every stage has as many holders as there are directions.
import { badSize, bidirectional, checkSize, filled, range, single } from "./emitters.ts";
import { makeOp, type Op, type Schedule, type SingleOp } from "./ir.ts";

/**
 * Chimera with `pairs` pairs of pipelines (default 1), units of P micro-batches concatenated directly. P / pairs even,
 * N a multiple of P. Direction 2i starts at device i * P / pairs and ascends, direction 2i + 1 is its mirror image.
 * Each device holds 2 * pairs stages and the bubble shrinks to P / pairs - 2 slots if F = BW.
 * The slots below never clash: those of equal parity lie in disjoint ranges.
 */
export function chimera(P: number, N: number, options: { pairs?: number } = {}): Schedule {
  const { pairs = 1 } = options;
  checkSize(P, N);
  if (!Number.isInteger(pairs) || pairs < 1 || P % (2 * pairs) !== 0 || N % P !== 0) {
    const rule = pairs === 1 ? "P even" : `P divisible by ${2 * pairs}`;
    throw badSize(`chimera needs ${rule} and N divisible by P, got P=${P}, N=${N}`);
  }
  const placement = range(pairs).flatMap((pair) => mirrorPair(P, pair * P / pairs));
  const perUnit = P / (2 * pairs);
  const ops = range(P).map((device) => {
    const slots: [slot: number, op: SingleOp][] = [];
    placement.forEach((devices, direction) => {
      const stage = devices.indexOf(device);
      for (let m = 0; m < N / placement.length; m++) {
        const start = 2 * P * Math.floor(m / perUnit) + 2 * (m % perUnit);
        const at = { direction, stage, microBatch: m };
        slots.push([start + stage, makeOp("F", at)], [start + 2 * P - 1 - stage, makeOp("BW", at)]);
      }
    });
    return slots.sort((a, b) => a[0] - b[0]).map((entry) => entry[1]);
  });
  const span = P / pairs;
  const peakActivations = range(P).map((p) => {
    const fromEnd = Math.min(p % span, span - 1 - p % span);
    return P - span / 2 + 1 + fromEnd;
  });
  const name = pairs === 1 ? "chimera" : `chimera-${pairs}-pairs`;
  return { ...single(name, P, N), placement, ops, peakActivations };
}

/** Stages on devices upwards from `first`, around the end; and the same seen from the other end. */
function mirrorPair(P: number, first: number): number[][] {
  const up = range(P).map((stage) => (stage + first) % P);
  return [up, up.map((device) => P - 1 - device)];
}

/**
 * Forward doubling: two forwards fill one slot, so that forward and backward slots are equally long if BW = 2F and
 * concatenated units leave no gap: the bubble is 2(P-2)F however large N is. N a multiple of 2P, P even; a device holds
 * up to 2P activations, twice Chimera's.
 */
export function chimeraForwardDoubling(P: number, N: number): Schedule {
  checkSize(P, N);
  if (P % 2 !== 0 || N % (2 * P) !== 0) {
    throw badSize(`forward doubling needs P even and N divisible by 2P, got P=${P}, N=${N}`);
  }
  return { ...doubled(P, N), name: "chimera-doubling" };
}

/**
 * Backward halving: the order of forward doubling over halves of micro-batches, so each of the 2N micro-batches of the
 * result has half the sequences, half the time and half the activations. N a multiple of P, P even; in whole
 * micro-batches a device holds up to P, no more than Chimera.
 */
export function chimeraBackwardHalving(P: number, N: number): Schedule {
  checkSize(P, 2 * N);
  if (P % 2 !== 0 || N % P !== 0) {
    throw badSize(`backward halving needs P even and N divisible by P, got P=${P}, N=${N}`);
  }
  return { ...doubled(P, 2 * N), name: "chimera-halving" };
}

function doubled(P: number, N: number): Schedule {
  const ops = doubledOrder(P, N / 4);
  return { ...single("", P, N), placement: bidirectional(P), ops, peakActivations: filled(P, 2 * P) };
}

/** A pair of forwards, or one backward, that a device may run in the current slot. */
interface Candidate {
  slot: number;
  direction: number;
  stage: number;
  kind: "F" | "BW";
  index: number;
}

/** Which slot each result of one direction was ready in, per stage; the next of each kind is the list's length. */
interface Lane {
  forwards: number[][];
  backwards: number[][];
}

/**
 * Slot after slot, each device runs the ready operation whose slot in an uncongested pipeline is the lowest; a device
 * with nothing ready idles. `pairs` of forwards per direction.
 */
function doubledOrder(P: number, pairs: number): Op[][] {
  const ops: Op[][] = range(P).map(() => []);
  const lane = (): Lane => ({ forwards: range(P).map(() => []), backwards: range(P).map(() => []) });
  const lanes = [lane(), lane()];
  let left = 2 * P * 3 * pairs;
  for (let now = 0; left > 0; now++) {
    const chosen = range(P).map((device) => {
      const ready = lanes.flatMap((_, direction) => {
        const stage = direction === 0 ? device : P - 1 - device;
        return candidates(lanes[direction]!, { P, pairs, direction, stage, now });
      });
      return ready.sort((a, b) => a.slot - b.slot || a.direction - b.direction)[0];
    });
    chosen.forEach((candidate, device) => {
      if (candidate === undefined) return;
      left--;
      run(lanes[candidate.direction]!, candidate, now + 1);
      ops[device]!.push(...opsOf(candidate));
    });
  }
  return ops;
}

function candidates(
  lane: Lane,
  at: { P: number; pairs: number; direction: number; stage: number; now: number },
): Candidate[] {
  const { P, pairs, direction, stage, now } = at;
  const found: Candidate[] = [];
  const unitStart = (pair: number) => 3 * P * Math.floor(pair / (P / 2)) + 3 * (pair % (P / 2));
  const ready = (time: number | undefined) => time !== undefined && time <= now;
  const pair = lane.forwards[stage]!.length;
  if (pair < pairs && (stage === 0 || ready(lane.forwards[stage - 1]![pair]))) {
    found.push({ slot: unitStart(pair) + stage, direction, stage, kind: "F", index: pair });
  }
  const back = lane.backwards[stage]!.length;
  const own = Math.floor(back / 2);
  if (ready(lane.forwards[stage]![own]) && (stage === P - 1 || ready(lane.backwards[stage + 1]![back]))) {
    const slot = unitStart(own) + 2 * P - 1 - stage;
    found.push({ slot, direction, stage, kind: "BW", index: back });
  }
  return found;
}

function run(lane: Lane, candidate: Candidate, end: number): void {
  const results = candidate.kind === "F" ? lane.forwards : lane.backwards;
  results[candidate.stage]!.push(end);
}

function opsOf({ kind, direction, stage, index }: Candidate): Op[] {
  if (kind === "BW") return [makeOp("BW", { direction, stage, microBatch: index })];
  return [0, 1].map((half) => makeOp("F", { direction, stage, microBatch: 2 * index + half }));
}
