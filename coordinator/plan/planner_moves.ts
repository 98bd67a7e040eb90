// Layouts one step away from another: a layer over a boundary, a peer to another stage, two peers or two groups exchanged, a
// peer let go, two stages joined, one split. The moves that mend most come first. Pure and deterministic; costs nothing out itself.
import type { CostModel, GroupStage } from "./planner_model.ts";
import type { Candidate } from "./planner_search.ts";

/** Peers of other stages and spares that are tried in the slowest stage; swarms of hundreds have many that are alike. */
const NEWCOMERS_MAX = 24;
/** Members of the slowest stage that are tried elsewhere, slowest first. */
const LEAVERS_MAX = 4;

/** Swarms up to this size look at every stage instead of the slowest alone. */
const SMALL_SWARM = 16;

type Stages = readonly GroupStage[];

/** `keepDepth`: the number of stages stays as it is. */
export function* neighbours(
  model: CostModel,
  candidate: Candidate,
  options: { keepDepth?: boolean } = {},
): Generator<Stages> {
  const { stages, cost } = candidate;
  const all = [...stages.keys()];
  const looked = model.peers <= SMALL_SWARM
    ? [cost.slowest, ...all.filter((s) => s !== cost.slowest)]
    : [cost.slowest];
  yield* boundaryMoves(model, stages);
  for (const s of looked) {
    yield* arrivals(model, candidate, s);
    yield* exchanges(model, candidate, s);
  }
  yield* departures(model, stages);
  yield* groupSwaps(model, stages);
  if (options.keepDepth === true) return;
  yield* joins(model, stages);
  for (const s of looked) yield* splits(model, candidate, s);
}

/** A stage becomes two, at every layer: part of it goes to a spare, to one of its members, or to a member of another group. */
function* splits(model: CostModel, candidate: Candidate, s: number): Generator<Stages> {
  const { stages } = candidate;
  const { peers, first, end } = stages[s]!;
  const own = peers.length > 1 ? peers.map((peer): Place => ({ peer, stage: s })) : [];
  const others = newcomers(model, candidate, s).filter(({ stage }) =>
    stage < 0 || stages[stage]!.peers.length > 1
  );
  for (const place of [...others, ...own]) {
    const left = place.stage === s ? peers.filter((peer) => peer !== place.peer) : peers;
    const rest = place.stage === s ? [] : without(model, stages, place);
    for (let cut = first + 1; cut < end; cut++) {
      for (const [a, b] of [[[place.peer], left], [left, [place.peer]]] as const) {
        const [front, back] = [model.stage(a, first, cut), model.stage(b, cut, end)];
        if (front === null || back === null) continue;
        for (const changed of replaced(stages, rest)) {
          yield [...changed.slice(0, s), front, back, ...changed.slice(s + 1)];
        }
      }
    }
  }
}

/** One layer from a stage to its neighbour. */
export function* boundaryMoves(model: CostModel, stages: Stages): Generator<Stages> {
  for (let s = 0; s + 1 < stages.length; s++) {
    const [a, b] = [stages[s]!, stages[s + 1]!];
    for (const cut of [a.end - 1, a.end + 1]) {
      if (cut <= a.first || cut >= b.end) continue;
      yield* replaced(stages, [
        [s, model.stage(a.peers, a.first, cut)],
        [s + 1, model.stage(b.peers, cut, b.end)],
      ]);
    }
  }
}

/** Where a peer is: a stage's index, or -1 for a spare. */
interface Place {
  peer: number;
  stage: number;
}

/** Peers that could help a stage: spares first, then members of the stages with the most to spare. */
function newcomers(model: CostModel, { stages, spares }: Candidate, to: number): Place[] {
  const pace = (s: number) => stages[s]!.options[0]!.pace;
  const others = [...stages.keys()].filter((s) => s !== to).toSorted((a, b) => pace(a) - pace(b));
  const places = spares.map((peer): Place => ({ peer, stage: -1 }));
  const perStage = Math.max(2, Math.ceil(NEWCOMERS_MAX / Math.max(1, others.length)));
  for (const stage of others) {
    const { peers, first, end } = stages[stage]!;
    const bySpeed = peers.toSorted((a, b) =>
      model.seconds(a, first, end, "none") - model.seconds(b, first, end, "none")
    );
    places.push(...bySpeed.slice(0, perStage).map((peer) => ({ peer, stage })));
  }
  return places.slice(0, 2 * NEWCOMERS_MAX);
}

function* arrivals(model: CostModel, candidate: Candidate, to: number): Generator<Stages> {
  const { stages } = candidate;
  for (const { peer, stage } of newcomers(model, candidate, to)) {
    yield* replaced(stages, [
      [to, withPeers(model, stages[to]!, [...stages[to]!.peers, peer])],
      ...without(model, stages, { peer, stage }),
    ]);
  }
}

function without(model: CostModel, stages: Stages, { peer, stage }: Place): [number, GroupStage | null][] {
  if (stage < 0) return [];
  return [[stage, withPeers(model, stages[stage]!, stages[stage]!.peers.filter((other) => other !== peer))]];
}

/** A member of the slowest stage against somebody from elsewhere. */
function* exchanges(model: CostModel, candidate: Candidate, slow: number): Generator<Stages> {
  const { stages } = candidate;
  const { peers, first, end } = stages[slow]!;
  const slowestFirst = peers.toSorted((a, b) =>
    model.seconds(b, first, end, "none") - model.seconds(a, first, end, "none")
  );
  for (const { peer, stage } of newcomers(model, candidate, slow)) {
    for (const leaver of slowestFirst.slice(0, LEAVERS_MAX)) {
      const changed: [number, GroupStage | null][] = [
        [slow, withPeers(model, stages[slow]!, exchanged(peers, leaver, peer))],
      ];
      if (stage >= 0) {
        changed.push([
          stage,
          withPeers(model, stages[stage]!, exchanged(stages[stage]!.peers, peer, leaver)),
        ]);
      }
      yield* replaced(stages, changed);
    }
  }
}

/** A stage without one of its slowest members, which may have a bad link. */
function* departures(model: CostModel, stages: Stages): Generator<Stages> {
  for (const [s, { peers, first, end }] of stages.entries()) {
    if (peers.length === 1) continue;
    const slowestFirst = peers.toSorted((a, b) =>
      model.seconds(b, first, end, "none") - model.seconds(a, first, end, "none")
    );
    for (const peer of slowestFirst.slice(0, LEAVERS_MAX)) {
      yield* replaced(stages, without(model, stages, { peer, stage: s }));
    }
  }
}

/** Two groups change places; each takes the other's layers. */
function* groupSwaps(model: CostModel, stages: Stages): Generator<Stages> {
  for (let s = 0; s < stages.length; s++) {
    for (let t = s + 1; t < stages.length; t++) {
      yield* replaced(stages, [
        [s, withPeers(model, stages[s]!, stages[t]!.peers)],
        [t, withPeers(model, stages[t]!, stages[s]!.peers)],
      ]);
    }
  }
}

/** Two neighbours become one stage: of both groups, or of either alone. */
function* joins(model: CostModel, stages: Stages): Generator<Stages> {
  for (let s = 0; s + 1 < stages.length; s++) {
    const [a, b] = [stages[s]!, stages[s + 1]!];
    for (const peers of [[...a.peers, ...b.peers], a.peers, b.peers]) {
      const joined = model.stage(peers, a.first, b.end);
      if (joined !== null) yield [...stages.slice(0, s), joined, ...stages.slice(s + 2)];
    }
  }
}

function withPeers(model: CostModel, stage: GroupStage, peers: readonly number[]): GroupStage | null {
  return peers.length === 0 ? null : model.stage(peers, stage.first, stage.end);
}

function exchanged(peers: readonly number[], out: number, into: number): number[] {
  return peers.map((peer) => peer === out ? into : peer);
}

/** Nothing if some memory does not allow a change. */
function* replaced(stages: Stages, changes: readonly [number, GroupStage | null][]): Generator<Stages> {
  const next = [...stages];
  for (const [s, stage] of changes) {
    if (stage === null) return;
    next[s] = stage;
  }
  yield next;
}
