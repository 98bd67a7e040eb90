// The cost model that the planner searches with: seconds of a step from who holds which layers. An estimate that is quick
// and steady, not the last word: the simulator judges what the search finds. Pure; costs are remembered, never changed.
//
// T = sum_s (t_s + hops after s, both ways) + (N-1) * max_s max(G_s, x_s, R_s / K_s) + max_s y_s, with t_s the mean time of a
// micro-batch in stage s, G_s its replicas' pace at the best shares, x_s the busiest link after it, R_s the round trip from s
// to the end and back, K_s the micro-batches in flight that its memory allows (no bound if all N fit), y_s the exchange of sums.
import { stageLayout } from "../../peer/model/layout.ts";
import type { CodecId, RecomputeId, StageSpec } from "../../peer/wire/run.ts";
import { type Hop, PlannerLinks } from "./planner_links.ts";
import { bestShares, bytesBySlots, fastest, headWork } from "./planner_shares.ts";
import type { EngineSpeed, HolderRun, PlanRequest } from "./planner_types.ts";

/** A tab in the background gives half: it stays useful, and its departure is cheap. */
export const HIDDEN_SHARE = 0.5;
/** Cheapest first; each keeps less than the one before. */
export const RECOMPUTE_MODES: readonly RecomputeId[] = ["none", "attention", "block"];
/** What a mode computes again, as a share of the forward. */
export const RECOMPUTED: Readonly<Record<RecomputeId, number>> = { none: 0, attention: 0.2, block: 1 };
/** Bytes of a value of a boundary tensor: 64 8-bit integers share one 16-bit scale. */
export const BYTES_PER_VALUE: Readonly<Record<CodecId, number>> = { raw32: 4, f16s: 2, i8b64: 66 / 64 };
/** Bytes of a parameter's summed gradient as replicas exchange it. */
const BYTES_PER_GRADIENT = { int8: 0.93, raw32: 4 } as const;
/** From this many computing replicas on, sums are exchanged in shards. */
const BUTTERFLY_REPLICAS = 3;

/** One way of running a group's stage; a group has one per recompute mode that is worth having. */
export interface StageOption {
  recompute: RecomputeId;
  /** Mean seconds of a micro-batch, F + B + W. */
  pass: number;
  /** Seconds per micro-batch of the group at its best shares. */
  pace: number;
  /**
   * Micro-batches in flight that the group's memory allows; N if all fit. Of all that are on their way a member has as large a part
   * as of the step, so the one with the most work for its slots is the limit.
   */
  inflight: number;
  /** Slots of each replica. */
  slots: number;
  /** Micro-batches of each member. */
  shares: number[];
}

/** A group of peers on a run of layers. Immutable. */
export interface GroupStage {
  peers: readonly number[];
  first: number;
  end: number;
  options: readonly StageOption[];
  /** Seconds in which the replicas exchange their sums. */
  sync: number;
}

export interface LayoutCost {
  seconds: number;
  /** Slowest pace, and the stage that sets it. */
  pace: number;
  slowest: number;
  /** Round trip of the whole pipeline. */
  round: number;
  sync: number;
  /** Index into each stage's options. */
  options: number[];
}

export class CostModel {
  readonly request: PlanRequest;
  readonly layers: number;
  readonly N: number;
  readonly peers: number;
  readonly engines: EngineSpeed[];
  /** Work of the head in layers. */
  readonly headLayers: number;
  readonly modes: readonly RecomputeId[];
  readonly #links: PlannerLinks;
  readonly #gradientBytes = new Map<string, number>();
  readonly #memory = new Map<string, (slots: number) => number>();
  /** One more than the slots; 0 while they were not asked for. */
  readonly #slots: Int32Array;
  readonly #stages = new Map<string, GroupStage | null>();

  constructor(request: PlanRequest) {
    const { spec, config, peers } = request;
    this.request = request;
    this.layers = spec.n_layer;
    this.N = config.gradient_accumulation_steps;
    this.peers = peers.length;
    this.engines = peers.map((peer) => fastest(peer.id, peer.engines));
    this.headLayers = headWork(spec);
    this.modes = config.recompute === "auto" ? RECOMPUTE_MODES : [config.recompute];
    this.#slots = new Int32Array(peers.length * (this.layers + 1) * 4 * RECOMPUTE_MODES.length);
    this.#links = new PlannerLinks(request, {
      forward: this.boundaryBytes(config.codec_forward),
      backward: this.boundaryBytes(config.codec_backward),
    });
  }

  /** Some link was not measured. */
  get doubtful(): boolean {
    return this.#links.doubtful;
  }

  stageSpec(first: number, end: number, index = 0): StageSpec {
    return { index, firstLayer: first, endLayer: end, embed: first === 0, head: end === this.layers };
  }

  /** Layers of a stage, the head counted by its work. */
  work(first: number, end: number): number {
    return end - first + (end === this.layers ? this.headLayers : 0);
  }

  /** Share of its speed that a peer is planned with. */
  #share(peer: number): number {
    return this.request.peers[peer]!.hidden ? HIDDEN_SHARE : 1;
  }

  /** Seconds of each operation of one micro-batch on a peer. */
  opSeconds(peer: number, first: number, end: number, recompute: RecomputeId) {
    const { forward, backward, weightGrad, overhead = 0 } = this.engines[peer]!;
    const coding = this.codingSeconds(peer, first, end) / 2;
    const work = this.work(first, end) / this.#share(peer);
    const again = RECOMPUTED[recompute] * (end - first) / this.#share(peer);
    return {
      F: overhead + coding + work * forward,
      B: overhead + coding + work * backward + again * forward,
      W: overhead + work * weightGrad,
    };
  }

  /** Seconds of F + B + W. */
  seconds(peer: number, first: number, end: number, recompute: RecomputeId): number {
    const { forward, backward, weightGrad, overhead = 0 } = this.engines[peer]!;
    const layers = this.work(first, end) * (forward + backward + weightGrad) +
      RECOMPUTED[recompute] * (end - first) * forward;
    return 3 * overhead + this.codingSeconds(peer, first, end) + layers / this.#share(peer);
  }

  /** What of F and B is decoding and encoding, of one micro-batch: once for each boundary of the stage. */
  codingSeconds(peer: number, first: number, end: number): number {
    const { coding = 0 } = this.engines[peer]!;
    return coding * (Number(first > 0) + Number(end < this.layers)) / this.#share(peer);
  }

  /** Whether nothing tells the links of two peers apart, those between the two included. */
  sameLinks(a: number, b: number): boolean {
    return this.#links.same(a, b);
  }

  latency(from: number, to: number): number {
    return this.#links.latency(from, to);
  }

  /** The longest that it may turn out to be. */
  latencyMost(from: number, to: number): number {
    const { peers, link } = this.request;
    const most = from === to ? 0 : link(peers[from]!.id, peers[to]!.id)?.latencyMost ?? 0;
    return Math.max(most, this.latency(from, to));
  }

  /** Seconds of one boundary tensor on a link; `forward` names the codec. */
  transfer(from: number, to: number, codec: CodecId): number {
    return this.boundaryBytes(codec) / this.#links.rate(from, to);
  }

  /** Of all links between two groups, both ways. */
  slowestRate(before: readonly number[], after: readonly number[]): number {
    const rates = before.flatMap((i) =>
      after.flatMap((j) => [this.#links.rate(i, j), this.#links.rate(j, i)])
    );
    return Math.min(...rates);
  }

  boundaryBytes(codec: CodecId): number {
    const { spec, config } = this.request;
    return config.batch_size * spec.block_size * spec.n_embd * BYTES_PER_VALUE[codec];
  }

  /** What a holder allocates. Layers are alike, so the answer is remembered by the stage's shape. */
  bytes(peer: number, range: { first: number; end: number }, run: HolderRun): number {
    const { first, end } = range;
    const { engine } = this.engines[peer]!;
    const ends = Number(first === 0) + 2 * Number(end === this.layers);
    const key = `${end - first}/${ends}/${run.recompute}/${engine}`;
    let bySlots = this.#memory.get(key);
    if (bySlots === undefined) {
      const stage = this.stageSpec(first, end);
      bySlots = bytesBySlots((slots) => this.request.memory(stage, { ...run, slots }, engine), this.N);
      this.#memory.set(key, bySlots);
    }
    return bySlots(run.slots);
  }

  /** Most slots, up to N, with which the stage fits the peer's memory; 0 if it does not fit with one. */
  slotsFit(peer: number, first: number, end: number, recompute: RecomputeId): number {
    const ends = Number(first === 0) + 2 * Number(end === this.layers);
    const mode = RECOMPUTE_MODES.indexOf(recompute);
    const key = ((peer * (this.layers + 1) + end - first) * 4 + ends) * RECOMPUTE_MODES.length + mode;
    const known = this.#slots[key]!;
    if (known > 0) return known - 1;
    const slots = this.#searchSlots(peer, { first, end }, recompute);
    this.#slots[key] = slots + 1;
    return slots;
  }

  #searchSlots(peer: number, range: { first: number; end: number }, recompute: RecomputeId): number {
    const room = this.request.peers[peer]!.memoryBytes;
    const fits = (slots: number) => this.bytes(peer, range, { slots, recompute }) <= room;
    let low = 0;
    for (let high = this.N; low < high;) {
      const middle = (low + high + 1) >> 1;
      if (fits(middle)) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  gradientBytes(first: number, end: number): number {
    const ends = Number(first === 0) + 2 * Number(end === this.layers);
    const key = `${end - first}/${ends}`;
    let bytes = this.#gradientBytes.get(key);
    if (bytes === undefined) {
      const { spec, config } = this.request;
      bytes = stageLayout(spec, this.stageSpec(first, end)).size * BYTES_PER_GRADIENT[config.reduce];
      this.#gradientBytes.set(key, bytes);
    }
    return bytes;
  }

  /**
   * The group on these layers, or null if some member's memory cannot hold them, or if it may not be on its own. Remembered: a
   * local search comes upon the same group again after every move that leaves it alone.
   */
  stage(peers: readonly number[], first: number, end: number): GroupStage | null {
    const key = String.fromCharCode(first, end, ...peers);
    let stage = this.#stages.get(key);
    if (stage === undefined) this.#stages.set(key, stage = this.#groupStage(peers, first, end));
    return stage;
  }

  #groupStage(peers: readonly number[], first: number, end: number): GroupStage | null {
    const { hiddenAlone = true, peers: known } = this.request;
    if (!hiddenAlone && peers.every((peer) => known[peer]!.hidden)) return null;
    const options: StageOption[] = [];
    for (const recompute of this.modes) {
      // A mode that keeps less is only worth its time if more micro-batches then fit.
      const before = options.at(-1)?.inflight ?? 0;
      if (before >= this.N) break;
      const option = this.#option(peers, { first, end }, recompute);
      if (option !== null && option.inflight > before) options.push(option);
    }
    return options.length === 0
      ? null
      : { peers, first, end, options, sync: this.syncSeconds(peers, first, end) };
  }

  #option(
    peers: readonly number[],
    { first, end }: { first: number; end: number },
    recompute: RecomputeId,
  ): StageOption | null {
    let slots = this.N;
    for (const peer of peers) slots = Math.min(slots, this.slotsFit(peer, first, end, recompute));
    if (slots < 1) return null;
    const seconds = peers.map((peer) => this.seconds(peer, first, end, recompute));
    const shares = bestShares(seconds, this.N);
    let pass = 0;
    let pace = 0;
    let inflight = this.N;
    shares.forEach((share, i) => {
      pass += share * seconds[i]! / this.N;
      pace = Math.max(pace, share * seconds[i]! / this.N);
      if (share > slots) inflight = Math.min(inflight, this.N * slots / share);
    });
    return { recompute, pass, pace, inflight, slots, shares };
  }

  /** Seconds for everyone who holds the stage to get the total, by the slowest uplink among them. */
  syncSeconds(peers: readonly number[], first: number, end: number): number {
    const { shadows } = this.request.config;
    const holders = peers.length === 1 && shadows && this.peers > 1 ? 2 : peers.length;
    if (holders < 2) return 0;
    const bytes = this.gradientBytes(first, end);
    const sent = peers.length < BUTTERFLY_REPLICAS
      ? (holders - 1) * bytes
      : (peers.length - 1 + holders - 1) / peers.length * bytes;
    return sent / this.#links.uplink(peers);
  }

  /** Between two neighbouring groups; the codecs are the configuration's. */
  hop(before: readonly number[], after: readonly number[]): Hop {
    return this.#links.hop(before, after);
  }

  /** The model's cost of a whole layout, each stage at the option that suits it best, or at those that are given. */
  evaluate(stages: readonly GroupStage[], options?: readonly number[]): LayoutCost {
    const cost: LayoutCost = { seconds: 0, pace: 0, slowest: 0, round: 0, sync: 0, options: [] };
    for (let s = stages.length - 1; s >= 0; s--) {
      const stage = stages[s]!;
      if (s + 1 < stages.length) {
        const hop = this.hop(stage.peers, stages[s + 1]!.peers);
        cost.round += hop.round;
        if (hop.pace > cost.pace) Object.assign(cost, { pace: hop.pace, slowest: s });
      }
      const chosen = options?.[s] ?? this.#bestOption(stage, cost);
      const option = stage.options[chosen]!;
      cost.round += option.pass;
      const pace = this.paceOf(option, cost.round);
      if (pace > cost.pace) Object.assign(cost, { pace, slowest: s });
      cost.sync = Math.max(cost.sync, stage.sync);
      cost.options.unshift(chosen);
    }
    cost.seconds = this.total(cost);
    return cost;
  }

  /** Pace of a stage whose round trip to the end and back, its own time included, is `round`. */
  paceOf(option: StageOption, round: number): number {
    return option.inflight < this.N ? Math.max(option.pace, round / option.inflight) : option.pace;
  }

  total({ round, pace, sync }: { round: number; pace: number; sync: number }): number {
    // A single micro-batch keeps no pace, and must not multiply an unreachable link's by zero.
    const steady = this.N > 1 ? (this.N - 1) * pace : 0;
    return round + steady + sync + (this.request.commitSeconds ?? 0);
  }

  #bestOption(stage: GroupStage, { round, pace }: LayoutCost): number {
    let best = 0;
    let least = Infinity;
    stage.options.forEach((option, i) => {
      const longer = round + option.pass;
      const seconds = this.total({
        round: longer,
        pace: Math.max(pace, this.paceOf(option, longer)),
        sync: 0,
      });
      if (seconds < least) [best, least] = [i, seconds];
    });
    return best;
  }
}
