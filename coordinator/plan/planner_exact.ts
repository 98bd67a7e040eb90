// The best layout under the cost model, exactly: every choice of peers, every grouping into replicas, every order of the
// groups, every cut, every recompute mode. For small swarms; the number of groupings grows with 4^peers. Pure.
import type { CostModel, GroupStage, StageOption } from "./planner_model.ts";

/** Groupings times cuts that are searched exactly; more would take longer than planning may. */
export const EXACT_STATES_MAX = 2_500_000;
/** Differences smaller than this are rounding noise. */
const EPSILON = 1e-12;

/** A suffix of the pipeline: layers [first, L) are placed. Labels of the same place are kept if none beats another. */
interface Label {
  first: number;
  used: number;
  group: number;
  stages: number;
  round: number;
  pace: number;
  sync: number;
  stage: GroupStage;
  option: StageOption;
  after: Label | null;
}

export interface ExactStage {
  stage: GroupStage;
  option: StageOption;
}

export interface ExactLayout {
  seconds: number;
  stages: ExactStage[];
}

export interface ExactOptions {
  /** Only layouts that cost less are of interest. Default: any. */
  below?: number;
  /** Exactly so many stages. Default: any number. */
  stageCount?: number | null;
}

/** Whether exactLayout is quick enough for this request. */
export function exactFits(model: CostModel): boolean {
  return 4 ** model.peers * model.layers ** 2 <= EXACT_STATES_MAX;
}

/**
 * The layout with the least seconds by CostModel.total, or null if none is below `below`. Builds pipelines from the last
 * stage to the first, so that a stage's round trip is known when it is added. Source: label-setting dynamic programme over
 * (peers used, first group, layers placed), labels compared by round trip, pace and exchange.
 */
export function exactLayout(model: CostModel, options: ExactOptions = {}): ExactLayout | null {
  const { below = Infinity, stageCount = null } = options;
  const limits = new Array<number>(model.peers + 1).fill(stageCount === null ? below : -Infinity);
  if (stageCount !== null) limits[stageCount] = below;
  const search = new Search(model, { limits, apart: stageCount !== null, within: 1 });
  const found = search.run().filter((layout) => layout !== null);
  return found.reduce<ExactLayout | null>(
    (best, it) => it.seconds < (best?.seconds ?? Infinity) ? it : best,
    null,
  );
}

/**
 * The same for every number of stages at once, by that number: null where none costs less than `below` says for it, or where the
 * best of any number is better by more than the factor `within`.
 */
export function exactLayouts(
  model: CostModel,
  { below, within }: { below: readonly number[]; within: number },
): (ExactLayout | null)[] {
  const limits = Array.from({ length: model.peers + 1 }, (_, count) => below[count] ?? Infinity);
  return new Search(model, { limits, apart: true, within }).run();
}

interface Limits {
  /** By number of stages: only what costs less is of interest. */
  limits: number[];
  /** Numbers of stages are kept apart; else one layout is sought among all. */
  apart: boolean;
  /** Nothing that costs more than the best by this factor is of interest. */
  within: number;
}

class Search {
  readonly #model: CostModel;
  readonly #apart: boolean;
  readonly #within: number;
  readonly #groups: number[][];
  readonly #stages = new Map<number, GroupStage | null>();
  /** Labels by first layer, then by place. */
  readonly #open: Map<number, Label[]>[];
  readonly #fastest: number;
  readonly #throughput: number[];
  readonly #limits: number[];
  /** By number of stages. */
  readonly #best: (Label | null)[];
  /** Least seconds of any number of stages so far. */
  #least = Infinity;

  constructor(model: CostModel, { limits, apart, within }: Limits) {
    this.#model = model;
    this.#limits = limits;
    this.#best = limits.map(() => null);
    this.#apart = apart;
    this.#within = within;
    this.#groups = Array.from({ length: 2 ** model.peers }, (_, mask) => membersOf(mask, model.peers));
    this.#open = Array.from({ length: model.layers + 1 }, () => new Map<number, Label[]>());
    const perLayer = (peer: number) => {
      const { forward, backward, weightGrad } = model.engines[peer]!;
      return forward + backward + weightGrad;
    };
    const peers = [...model.engines.keys()];
    this.#fastest = Math.min(...peers.map(perLayer));
    this.#throughput = this.#groups.map((group) => group.reduce((sum, peer) => sum + 1 / perLayer(peer), 0));
  }

  run(): (ExactLayout | null)[] {
    const { layers } = this.#model;
    this.#extend(null, layers);
    for (let first = layers - 1; first >= 1; first--) {
      for (const labels of this.#open[first]!.values()) {
        for (const label of labels) this.#extend(label, first);
      }
    }
    return this.#best.map((label, count) => label === null ? null : layoutOf(label, this.#limits[count]!));
  }

  /** Every stage that may stand before a suffix that begins at layer `end`. */
  #extend(after: Label | null, end: number): void {
    const everyone = this.#groups.length - 1;
    const free = everyone & ~(after?.used ?? 0);
    if (this.#limitFrom((after?.stages ?? 0) + 1) === -Infinity) return;
    // Every non-empty subset of the free peers, in descending order.
    for (let group = free; group > 0; group = (group - 1) & free) {
      const members = this.#groups[group]!;
      const hop = after === null ? null : this.#model.hop(members, this.#groups[after.group]!);
      if (hop !== null && hop.round === Infinity) continue;
      for (let first = end - 1; first >= 0; first--) {
        const stage = this.#stage(group, first, end);
        if (stage === null) break;
        for (const option of stage.options) this.#add({ stage, option, group, after, hop });
      }
    }
  }

  #add(
    next: {
      stage: GroupStage;
      option: StageOption;
      group: number;
      after: Label | null;
      hop: { round: number; pace: number } | null;
    },
  ): void {
    const { stage, option, group, after, hop } = next;
    const round = (after?.round ?? 0) + (hop?.round ?? 0) + option.pass;
    const label: Label = {
      ...{ first: stage.first, group, stage, option, after, round },
      used: (after?.used ?? 0) | group,
      stages: (after?.stages ?? 0) + 1,
      pace: Math.max(after?.pace ?? 0, hop?.pace ?? 0, this.#model.paceOf(option, round)),
      sync: Math.max(after?.sync ?? 0, stage.sync),
    };
    const seconds = this.#leastSeconds(label);
    if (seconds >= this.#limitFrom(label.stages) - EPSILON) return;
    if (label.first === 0) this.#take(label, seconds);
    else this.#keep(label);
  }

  /** Seconds below which a layout of so many stages, or of more, is of interest. */
  #limitFrom(count: number): number {
    let most = -Infinity;
    for (let it = count; it < this.#limits.length; it++) most = Math.max(most, this.#limits[it]!);
    return Math.min(most, this.#within * this.#least);
  }

  #take(label: Label, seconds: number): void {
    if (seconds >= this.#limits[label.stages]! - EPSILON) return;
    this.#best[label.stages] = label;
    this.#limits[label.stages] = seconds;
    this.#least = Math.min(this.#least, seconds);
  }

  /** No pipeline that ends in this suffix takes less. */
  #leastSeconds(label: Label): number {
    const free = (this.#groups.length - 1) & ~label.used;
    const throughput = this.#throughput[free]!;
    if (label.first > 0 && throughput === 0) return Infinity;
    return this.#model.total({
      round: label.round + label.first * this.#fastest,
      pace: Math.max(label.pace, label.first === 0 ? 0 : label.first / throughput),
      sync: label.sync,
    });
  }

  /** Keeps the label unless one of the same place is as good in everything; drops those that it beats. */
  #keep(label: Label): void {
    const place = this.#open[label.first]!;
    const counted = this.#apart ? label.stages : 0;
    const size = this.#groups.length;
    const key = (counted * size + label.used) * size + label.group;
    const rivals = place.get(key);
    if (rivals === undefined) return void place.set(key, [label]);
    const beats = (a: Label, b: Label) => a.round <= b.round && a.pace <= b.pace && a.sync <= b.sync;
    if (rivals.some((rival) => beats(rival, label))) return;
    place.set(key, [...rivals.filter((rival) => !beats(label, rival)), label]);
  }

  #stage(group: number, first: number, end: number): GroupStage | null {
    const { layers } = this.#model;
    const key = (group * (layers + 1) + first) * (layers + 1) + end;
    let stage = this.#stages.get(key);
    if (stage === undefined) {
      stage = this.#model.stage(this.#groups[group]!, first, end);
      this.#stages.set(key, stage);
    }
    return stage;
  }
}

function layoutOf(last: Label, seconds: number): ExactLayout {
  const stages: ExactStage[] = [];
  for (let label: Label | null = last; label !== null; label = label.after) {
    stages.push({ stage: label.stage, option: label.option });
  }
  return { seconds, stages };
}

function membersOf(mask: number, peers: number): number[] {
  return Array.from({ length: peers }, (_, peer) => peer).filter((peer) => (mask >> peer) & 1);
}
