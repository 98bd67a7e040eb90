// The mirrored placement: groups s and P-1-s hold the stages s and P-1-s together, and half of the micro-batches goes down the line of
// groups while the other half goes up (as in Chimera and DualPipe), in the dynamic order. Pure; it knows no memory and no links.
// What must stay true: each micro-batch has one place in each stage, and every member as many in one of its stages as in the other.
import { dealOut } from "./planner_shares.ts";

export type Group = readonly number[];

/** Forwards on top of those that cover a stage's round trip, by which its share of a peer's slots is reckoned. */
const SLOTS_BESIDE = 3;

/** The members of each stage: those of both groups, in one and the same array for both of their stages. */
export function mirrored(groups: readonly Group[]): Group[] {
  const order = new Array<Group>(groups.length);
  groups.forEach((group, s) => {
    const other = groups.length - 1 - s;
    if (s <= other) order[s] = order[other] = s === other ? group : [...group, ...groups[other]!];
  });
  return order;
}

/**
 * Slots of each stage if a peer has `slots` for each of its two on average: the longer the way to the end and back, the more.
 * `passes`: that way of each stage, in paces.
 */
export function slopedSlots(passes: readonly number[], slots: number): number[] {
  return passes.map((own, s) => {
    const other = passes[passes.length - 1 - s]!;
    const share = (own + SLOTS_BESIDE) / (own + other + 2 * SLOTS_BESIDE);
    return Math.max(1, Math.round(2 * slots * share));
  });
}

/**
 * Even micro-batches to a stage's own group and odd ones to the mirrored one, so that each goes through the groups in one direction;
 * where their shares are not equal, some of the rest as well, spread over the step. `isOwn`: by the member's place in the stage.
 */
export function dealtBothWays(
  seconds: readonly number[],
  counts: readonly number[],
  { N, isOwn }: { N: number; isOwn: (member: number) => boolean },
): number[][] {
  const members = [...seconds.keys()];
  if (members.every(isOwn)) return dealOut(seconds, counts, N);
  const share = counts.reduce((sum, count, i) => sum + (isOwn(i) ? count : 0), 0);
  const all = Array.from({ length: N }, (_, m) => m);
  const [even, odd] = [all.filter(isEven), all.filter((m) => !isEven(m))];
  const taken = new Set(
    share <= even.length ? spread(even, share) : [...even, ...spread(odd, share - even.length)],
  );
  const lists = [all.filter((m) => taken.has(m)), all.filter((m) => !taken.has(m))] as const;
  const shares = seconds.map((): number[] => []);
  for (const [side, list] of lists.entries()) {
    const of = members.filter((i) => isOwn(i) === (side === 0));
    const dealt = dealOut(of.map((i) => seconds[i]!), of.map((i) => counts[i]!), list.length);
    of.forEach((member, at) => shares[member] = dealt[at]!.map((m) => list[m]!));
  }
  return shares;
}

/** Whether a member with these micro-batches stands in a stage's own group: its even ones are the most. */
export function goesDown(microBatches: readonly number[]): boolean {
  return 2 * microBatches.filter(isEven).length > microBatches.length;
}

function isEven(m: number): boolean {
  return m % 2 === 0;
}

/** So many of a list, at even distances. */
function spread(list: readonly number[], count: number): number[] {
  return Array.from({ length: count }, (_, i) => list[Math.floor(i * list.length / count)]!);
}

/** Whether a member of a mirrored stage, by its place there, is of the group that had the stage alone. */
export function ownMembers(lone: readonly Group[], stage: number): (member: number) => boolean {
  const other = lone.length - 1 - stage;
  const size = lone[stage]!.length;
  const first = stage <= other ? 0 : lone[other]!.length;
  return (member) => member >= first && member < first + size;
}
