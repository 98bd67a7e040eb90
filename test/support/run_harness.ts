// A run's core and peers that answer on command, for unit tests of the state machine: no network, no tensors, a hand-set
// clock. Not a simulation (test/sim has that): each test says who says what, and when.
import assert from "node:assert/strict";
import { RunCore } from "../../coordinator/core/run_core.ts";
import type { CoordinatorEventLine, RunEffect, RunEvent } from "../../coordinator/core/run_state.ts";
import { readConfig } from "../../peer/model/config.ts";
import { specOf } from "../../peer/model/layout.ts";
import type { RunRecord } from "../../coordinator/core/run_record.ts";
import { liveHolders } from "../../coordinator/core/holders.ts";
import type { CoordinatorMessage, PeerMessage, StateFile } from "../../peer/wire/control.ts";
import { peersOf, stagesOf } from "../../peer/wire/view.ts";

type Sent<T extends CoordinatorMessage["type"]> = Extract<CoordinatorMessage, { type: T }>;
type Line<T extends CoordinatorEventLine["event"]> = Extract<CoordinatorEventLine, { event: T }>;

type Measured = Omit<PeerMessage & { type: "measured" }, "type">;

/** Two layers, two micro-batches; no evaluation, snapshot, sample or shadow unless a test asks for it. */
const QUIET = {
  ...{ n_layer: 2, n_head: 2, n_kv_head: 1, n_embd: 8, n_inner: 8, block_size: 4, batch_size: 1 },
  ...{ gradient_accumulation_steps: 2, max_iters: 10, warmup_iters: 0, eval_interval: 1000, eval_iters: 2 },
  ...{ snapshot_interval: 1000, checkpoint_interval: 1000, sample_chars: 0, min_peers: 2, shadows: false },
  parity: false,
};

/** A heartbeat of a peer that has nothing to tell. */
export const HEARTBEAT: PeerMessage & { type: "heartbeat" } = {
  ...{ type: "heartbeat", stepMs: 1, bytesUp: 2, bytesDown: 3, direct: 1, relayed: 0, hidden: false },
  ...{ recomputed: 0, recoveryBytes: 0, retainedBytes: 0 },
};
/** Between two heartbeats, and two ticks. */
const BEAT_MS = 250;
/** Loss of every micro-batch, unless a test says otherwise. */
export const LOSS = 2;

export class RunHarness {
  readonly core: RunCore;
  /** Everything the core asked for so far. */
  readonly effects: RunEffect[] = [];
  now = 1_000;

  constructor(
    changes: Record<string, unknown> = {},
    resume?: { step: number; files: StateFile[] },
    restored?: RunCore,
  ) {
    const config = readConfig({ ...QUIET, ...stagesOfPeers(changes), ...changes });
    this.core = restored ?? new RunCore(config, specOf(config, 7), resume);
  }

  /** A coordinator that has restarted and finds this in its log. */
  static restored(record: RunRecord, resume?: { step: number; files: StateFile[] }): RunHarness {
    return new RunHarness({}, undefined, RunCore.restored(record, resume));
  }

  get state() {
    return this.core.state;
  }

  get gen(): number {
    return this.state.gen;
  }

  get cut(): number {
    return this.state.view!.cut;
  }

  /** Takes one event; returns what the core asks for because of it. */
  feed(event: RunEvent): RunEffect[] {
    const effects = this.core.step(event, this.now);
    this.effects.push(...effects);
    return effects;
  }

  say(peer: string, message: PeerMessage): RunEffect[] {
    return this.feed({ type: "message", peer, message });
  }

  /** A peer says hello and is measured. */
  join(id: string, { blockMs = 10, memoryBytes = 1e9, ...more }: Partial<Measured> = {}): void {
    this.hello(id);
    this.say(id, { type: "measured", blockMs, memoryBytes, ...more });
    this.now++;
  }

  hello(id: string): void {
    this.feed({ type: "join", peer: { id, runtime: "deno", adapter: "none", engine: "cpu", name: id } });
  }

  gone(peer: string): RunEffect[] {
    return this.feed({ type: "gone", peer, reason: "connection closed" });
  }

  /** A run whose peers are all in the view and have loaded it; a round is open unless the run is paused. */
  static training(peers: string[], changes: Record<string, unknown> = {}): RunHarness {
    const run = new RunHarness({ min_peers: peers.length, ...changes });
    for (const peer of peers) run.join(peer);
    run.ready();
    assert.equal(run.state.status, "training");
    return run;
  }

  /** Every peer of the view that is not ready yet says so. */
  ready(): void {
    const { gen } = this;
    for (const peer of this.members()) this.say(peer, { type: "ready", gen });
  }

  members(): string[] {
    return this.state.view === null ? [] : peersOf(this.state.view);
  }

  /** Stage by stage who holds it, in the words of peer_harness.ts: "a:02 e f?". */
  layout(): string[] {
    return (this.state.view?.stages ?? []).map((stage) =>
      stage.replicas.map(({ peer, microBatches, learning }) => {
        const share = microBatches.length === 0 ? "" : `:${microBatches.join("")}`;
        return `${peer}${learning === true ? "?" : ""}${share}`;
      }).join(" ")
    );
  }

  /** One holder's total of the open step. */
  logged(peer: string, changes: Partial<Extract<PeerMessage, { type: "logged" }>> = {}): RunEffect[] {
    const stage = changes.stage ?? stagesOf(this.state.view!, peer)[0]?.index ?? 0;
    const step = this.state.round?.step ?? this.state.committed;
    const sums = { gradNormSq: 1, saturated: 0, nonFinite: 0 };
    const where = { cut: this.cut, gen: this.gen, step, stage, hash: `total ${stage}` };
    return this.say(peer, { type: "logged", ...where, ...sums, ...changes });
  }

  /** A replica of the last stage tells the losses of its micro-batches. */
  losses(peer: string, losses: Record<number, number>, step = this.state.committed): RunEffect[] {
    const { index: stage } = this.state.view!.stages.at(-1)!;
    const microBatches = Object.keys(losses).map(Number);
    const where = { cut: this.cut, step, stage };
    return this.say(peer, { type: "losses", ...where, microBatches, losses: Object.values(losses) });
  }

  /**
   * The open training step is logged by every holder that lives, and therefore committed; nobody has applied it yet. Whoever
   * computes tells first what is true of its state, if it has not.
   */
  commitOnly(): void {
    const { view, committed, cutBase } = this.state;
    for (const stage of committed === cutBase ? [] : view!.stages) {
      for (const { peer, microBatches } of liveHolders(this.state, stage)) {
        const told = this.state.applied[peer]?.[stage.index] ?? -1;
        if (microBatches.length > 0 && told < committed - 1) this.applied(peer, stage.index);
      }
    }
    for (const { peer, microBatches } of view!.stages.at(-1)!.replicas) {
      if (microBatches.length > 0) this.losses(peer, Object.fromEntries(microBatches.map((m) => [m, LOSS])));
    }
    for (const stage of view!.stages) {
      for (const { peer } of liveHolders(this.state, stage)) {
        this.logged(peer, { stage: stage.index, step: committed });
      }
    }
    assert.equal(this.state.committed, committed + 1, "the step was not committed");
  }

  /** A step is committed, and applied by all holders of the view in which it was. */
  commit(): void {
    const { view, committed } = this.state;
    this.commitOnly();
    for (const stage of view!.stages) {
      for (const { peer, learning } of stage.replicas) {
        if (learning === true) continue;
        this.applied(peer, stage.index, { step: committed });
        this.warm(peer, stage.index);
      }
    }
  }

  /** The first replica of the last stage reports the open evaluation round. */
  evaluate(loss = 3): void {
    const last = this.state.view!.stages.at(-1)!;
    const { gen } = this;
    const count = this.state.config.eval_iters;
    const sums = { lossSum: loss * count, lossCount: count };
    const { step } = this.state.round!;
    this.say(last.replicas[0]!.peer, { type: "evaluated", gen, step, stage: last.index, ...sums });
  }

  /** Says what is true of everybody who follows: the state after the newest step. */
  applied(
    peer: string,
    stage: number,
    changes: Partial<Extract<PeerMessage, { type: "applied" }>> = {},
  ): RunEffect[] {
    const step = changes.step ?? this.state.committed - 1;
    const base = { cut: this.cut, gen: this.gen, step, stage, hash: stateName(step + 1, stage) };
    return this.say(peer, { type: "applied", ...base, ...changes });
  }

  /** The peer's engine for the stage is built. */
  warm(peer: string, stage: number): RunEffect[] {
    return this.say(peer, { type: "warm", cut: this.cut, gen: this.gen, stage });
  }

  /** All stages asked for are uploaded. */
  store(): void {
    const { step } = this.state.pending!;
    for (const stage of [...this.state.view!.stages]) this.storeStage(step, stage.index);
  }

  storeStage(step: number, stage: number, cut = this.cut): RunEffect[] {
    return this.feed({ type: "stored", cut, step, file: this.fileOf(step, stage) });
  }

  fileOf(step: number, stage: number): StateFile {
    const { firstLayer, endLayer, embed, head } = this.state.view!.stages[stage]!;
    return { stage, firstLayer, endLayer, embed, head, bytes: 1, hash: stateName(step, stage) };
  }

  /** A learner gets its state, adopts it, builds its engine and follows up to the newest step: it is a holder from then on. */
  learn(peer: string, stage: number): void {
    const { step } = this.state.transfers.find((it) => it.peer === peer && it.stage === stage)!;
    this.storeStage(step, stage);
    this.applied(peer, stage);
    this.warm(peer, stage);
  }

  /** Time passes; the peers named send heartbeats. */
  pass(ms: number, alive: string[] = []): void {
    const end = this.now + ms;
    while (this.now < end) {
      this.now = Math.min(end, this.now + BEAT_MS);
      for (const peer of alive) if (this.state.peers[peer] !== undefined) this.say(peer, HEARTBEAT);
      this.feed({ type: "tick" });
    }
  }

  checkpointed(step: number): void {
    this.feed({ type: "checkpointed", step, path: `step-${step}`, bytes: 10 });
  }

  sent<T extends CoordinatorMessage["type"]>(type: T, effects = this.effects): (Sent<T> & { to: string })[] {
    return effects.flatMap((effect) =>
      effect.do === "send" && effect.message.type === type
        ? [{ ...effect.message as Sent<T>, to: effect.peer }]
        : []
    );
  }

  /** Who was told to send whom a total: "a to c: stage 0, step 3". */
  totalsAsked(effects = this.effects): string[] {
    return effects.flatMap((effect) => {
      if (effect.do !== "send" || effect.message.type !== "send-total") return [];
      const { to, stage, step } = effect.message;
      return [`${effect.peer} to ${to}: stage ${stage}, step ${step}`];
    });
  }

  reported<T extends CoordinatorEventLine["event"]>(event: T): Line<T>[] {
    return this.effects.flatMap((effect) =>
      effect.do === "report" && effect.line.event === event ? [effect.line as Line<T>] : []
    );
  }

  did<T extends RunEffect["do"]>(what: T): Extract<RunEffect, { do: T }>[] {
    return this.effects.filter((effect): effect is Extract<RunEffect, { do: T }> => effect.do === what);
  }
}

/** A stage for each peer, unless a test leaves the number to the planner with `n_stage: 0`, or to a schedule. */
function stagesOfPeers(changes: Record<string, unknown>): { n_stage?: number } {
  const { n_layer, min_peers, schedule } = { schedule: "dynamic", ...QUIET, ...changes };
  return schedule === "dynamic" ? { n_stage: Math.min(n_layer, min_peers) } : {};
}

/** Hash of a stage's state after so many committed steps. */
export function stateName(committed: number, stage: number): string {
  return `state ${committed}/${stage}`;
}
