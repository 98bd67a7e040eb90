// Peers that are alike in everything stand in a plan in the order in which they were named: whichever of them the search came
// upon first, people find the first tab in the first stage, and the same swarm is always laid out alike. Pure; costs nothing,
// since only peers change places that nothing tells apart.
import type { CostModel, GroupStage } from "./planner_model.ts";

/** For each peer, by index, the one that stands in its place. */
export function inOrderOfNaming(model: CostModel, stages: readonly GroupStage[]): number[] {
  const order = Array.from({ length: model.peers }, (_, peer) => peer);
  for (const alike of classesOf(model)) {
    if (alike.length < 2) continue;
    const named = new Set(alike);
    const placed = [...new Set(placesOf(stages).filter((peer) => named.has(peer)))];
    const rest = alike.filter((peer) => !placed.includes(peer));
    [...placed, ...rest].forEach((peer, i) => order[peer] = alike[i]!);
  }
  return order;
}

/** The first of each stage, then the second of each, and so on. */
function placesOf(stages: readonly GroupStage[]): number[] {
  const deepest = Math.max(0, ...stages.map(({ peers }) => peers.length));
  const rows = Array.from({ length: deepest }, (_, row) => stages.map(({ peers }) => peers[row]));
  return rows.flat().filter((peer) => peer !== undefined);
}

/** Members ascending. */
function classesOf(model: CostModel): number[][] {
  const classes: number[][] = [];
  for (let peer = 0; peer < model.peers; peer++) {
    const own = classes.find(([first]) => isLike(model, first!, peer));
    if (own === undefined) classes.push([peer]);
    else own.push(peer);
  }
  return classes;
}

function isLike(model: CostModel, a: number, b: number): boolean {
  const [one, other] = [model.request.peers[a]!, model.request.peers[b]!];
  if (one.memoryBytes !== other.memoryBytes || one.hidden !== other.hidden) return false;
  const [x, y] = [model.engines[a]!, model.engines[b]!];
  const same = x.engine === y.engine && x.forward === y.forward && x.backward === y.backward &&
    x.weightGrad === y.weightGrad && x.overhead === y.overhead && x.coding === y.coding;
  return same && model.sameLinks(a, b);
}
