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
  const search = new Search(model, options);
  return search.run();
}

class Search {
  readonly #model: CostModel;
  readonly #stageCount: number | null;
  readonly #groups: number[][];
  readonly #stages = new Map<number, GroupStage | null>();
  /** Labels by first layer, then by place. */
  readonly #open: Map<number, Label[]>[];
  readonly #fastest: number;
  readonly #throughput: number[];
  #below: number;
  #best: Label | null = null;

  constructor(model: CostModel, { below = Infinity, stageCount = null }: ExactOptions) {
    this.#model = model;
    this.#below = below;
    this.#stageCount = stageCount;
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

  run(): ExactLayout | null {
    const { layers } = this.#model;
    this.#extend(null, layers);
    for (let first = layers - 1; first >= 1; first--) {
      for (const labels of this.#open[first]!.values()) {
        for (const label of labels) this.#extend(label, first);
      }
    }
    if (this.#best === null) return null;
    const stages: ExactStage[] = [];
    for (let label: Label | null = this.#best; label !== null; label = label.after) {
      stages.push({ stage: label.stage, option: label.option });
    }
    return { seconds: this.#below, stages };
  }

  /** Every stage that may stand before a suffix that begins at layer `end`. */
  #extend(after: Label | null, end: number): void {
    const everyone = this.#groups.length - 1;
    const free = everyone & ~(after?.used ?? 0);
    if (after !== null && (this.#stageCount !== null && after.stages >= this.#stageCount)) return;
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
    if (this.#leastSeconds(label) >= this.#below - EPSILON) return;
    if (label.first === 0) {
      if (this.#stageCount !== null && label.stages !== this.#stageCount) return;
      this.#below = this.#model.total(label);
      this.#best = label;
      return;
    }
    this.#keep(label);
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
    const counted = this.#stageCount === null ? 0 : label.stages;
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

function membersOf(mask: number, peers: number): number[] {
  return Array.from({ length: peers }, (_, peer) => peer).filter((peer) => (mask >> peer) & 1);
}
