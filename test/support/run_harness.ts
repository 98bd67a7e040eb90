// A run's core and peers that answer on command, for unit tests of the state machine: no network, no tensors, a hand-set
// clock. Not a simulation (test/sim has that): each test says who says what, and when.
import assert from "node:assert/strict";
import { RunCore } from "../../coordinator/core/run_core.ts";
import type { CoordinatorEventLine, RunEffect, RunEvent } from "../../coordinator/core/run_state.ts";
import { readConfig } from "../../peer/model/config.ts";
import { specOf } from "../../peer/model/layout.ts";
import type { CoordinatorMessage, PeerMessage, StateFile } from "../../peer/wire/control.ts";
import { peersOf, stagesOf } from "../../peer/wire/view.ts";

type Sent<T extends CoordinatorMessage["type"]> = Extract<CoordinatorMessage, { type: T }>;
type Line<T extends CoordinatorEventLine["event"]> = Extract<CoordinatorEventLine, { event: T }>;

/** Two layers, two micro-batches; no evaluation, snapshot, sample or shadow unless a test asks for it. */
const QUIET = {
  ...{ n_layer: 2, n_head: 2, n_kv_head: 1, n_embd: 8, n_inner: 8, block_size: 4, batch_size: 1 },
  ...{ gradient_accumulation_steps: 2, max_iters: 10, warmup_iters: 0, eval_interval: 1000, eval_iters: 2 },
  ...{ snapshot_interval: 1000, checkpoint_interval: 1000, sample_chars: 0, min_peers: 2, shadows: false },
};

export class RunHarness {
  readonly core: RunCore;
  /** Everything the core asked for so far. */
  readonly effects: RunEffect[] = [];
  now = 1_000;

  constructor(changes: Record<string, unknown> = {}, resume?: { step: number; files: StateFile[] }) {
    const config = readConfig({ ...QUIET, ...changes });
    this.core = new RunCore(config, specOf(config, 7), resume);
  }

  get state() {
    return this.core.state;
  }

  get gen(): number {
    return this.state.gen;
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
  join(id: string, { blockMs = 10, memoryBytes = 1e9 } = {}): void {
    this.hello(id);
    this.say(id, { type: "measured", blockMs, memoryBytes });
    this.now++;
  }

  hello(id: string): void {
    this.feed({ type: "join", peer: { id, runtime: "deno", adapter: "none", engine: "cpu", name: id } });
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

  /** One replica's total of the open step. */
  logged(peer: string, changes: Partial<Extract<PeerMessage, { type: "logged" }>> = {}): RunEffect[] {
    const stage = stagesOf(this.state.view!, peer)[0]?.index ?? 0;
    const step = this.state.round?.step ?? this.state.committed;
    const sums = { gradNormSq: 1, lossSum: 4, lossCount: 2, saturated: 0, nonFinite: 0 };
    const where = { gen: this.gen, step, stage, hash: `total ${stage}` };
    return this.say(peer, { type: "logged", ...where, ...sums, ...changes });
  }

  /** The open training step is logged by every replica of every stage, and therefore committed. */
  commit(): void {
    const { view, committed } = this.state;
    for (const stage of view!.stages) {
      for (const replica of stage.replicas) {
        this.logged(replica.peer, { stage: stage.index, hash: `total ${stage.index}` });
      }
    }
    assert.equal(this.state.committed, committed + 1, "the step was not committed");
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

  applied(peer: string, stage: number, hash: string): RunEffect[] {
    const { gen } = this;
    return this.say(peer, { type: "applied", gen, step: this.state.committed - 1, stage, hash });
  }

  /** All stages asked for are uploaded. */
  store(): void {
    const { step } = this.state.pending!;
    for (const stage of [...this.state.view!.stages]) this.storeStage(step, stage.index);
  }

  storeStage(step: number, stage: number, gen = this.gen): RunEffect[] {
    const plan = this.state.view!.stages[stage]!;
    const { firstLayer, endLayer, embed, head } = plan;
    const file = { stage, firstLayer, endLayer, embed, head, bytes: 1, hash: `state ${step}/${stage}` };
    return this.feed({ type: "stored", gen, step, file });
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

  reported<T extends CoordinatorEventLine["event"]>(event: T): Line<T>[] {
    return this.effects.flatMap((effect) =>
      effect.do === "report" && effect.line.event === event ? [effect.line as Line<T>] : []
    );
  }

  did<T extends RunEffect["do"]>(what: T): Extract<RunEffect, { do: T }>[] {
    return this.effects.filter((effect): effect is Extract<RunEffect, { do: T }> => effect.do === what);
  }
}
