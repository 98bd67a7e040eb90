// The invariants I1 to I8 as a bystander checks them: from what the cores ask for and from what jobs return, never with the
// cores' own checks. A violation is an exception that ends the world; its text starts with the invariant's number.
import type { RunCore } from "../../coordinator/core/run_core.ts";
import type { RunEffect, RunEvent } from "../../coordinator/core/run_state.ts";
import { stateHash } from "../../peer/exact/hash.ts";
import type { StageState } from "../../peer/exact/state.ts";
import type { Job, JobResult, PeerEvent } from "../../peer/core/peer_state.ts";
import { stageLayout, wholeModel } from "../../peer/model/layout.ts";
import type { PeerMessage } from "../../peer/wire/control.ts";
import type { View } from "../../peer/wire/run.ts";
import { isDelayed } from "../../peer/wire/view.ts";
import { excess, snapshotBytesMost } from "./memory.ts";
import {
  allWarm,
  coordinatorQueues,
  fingerprint,
  holdersOf,
  holdings,
  idleStates,
  peerQueues,
  type StageHolders,
} from "./probe.ts";
import { type Range, rangeOf, type Reference, sameRange } from "./reference.ts";
import { Survivors } from "./survivors.ts";
import type { Observer, Sent, SimPeer } from "./types.ts";
import type { World } from "./world.ts";

/** Losses are means of doubles added in an order that the shares decide. */
const LOSS_TOLERANCE = 1e-9;
/** With tied embeddings each end rounds its own share of a gradient. */
const TIED_LOSS_TOLERANCE = 1e-2;

/** In the middle of the mantissa: a lower one may vanish again in the rounding of the next update. */
const ROTTEN_BIT = 1 << 16;
export interface InvariantOptions {
  /** A scenario may lose what its faults take (both holders of a stage); others must not redo a step. */
  mayRedo: boolean;
  /** False: nobody may be put out. */
  mayLose: boolean;
  gapMostMs: number;
  /** So much more while somebody compiles. */
  patienceMs: number;
}

export interface Counts {
  commits: number;
  departures: number;
  /** Micro-batches of a stage that were computed more than once for the same step. */
  recomputed: number;
  /** Steps committed a second time. */
  redone: number;
  /** Commits at which a stage had fewer than two holders. */
  reduced: number;
  /** Virtual milliseconds between commits. */
  gaps: number[];
}

export class Violation extends Error {}

export class Invariants implements Observer {
  readonly counts: Counts = { commits: 0, departures: 0, recomputed: 0, redone: 0, reduced: 0, gaps: [] };
  /** Steps that were passed over because a gradient overflowed. */
  skipped = 0;
  readonly #world: World;
  readonly #reference: Reference;
  readonly #options: InvariantOptions;
  readonly #survivors: Survivors;
  /** Committed steps. Also the highest ever: a rollback must be told before it shows. */
  #committed = 0;
  /** The newest view that was told. */
  #view: View | null = null;
  #highest = 0;
  #lastCommitAt = 0;
  /** Since the last commit, or at it, a holder's engine was not built yet. */
  #compiling = false;
  /** Where the layers were cut in each committed step. */
  readonly #cuts: string[] = [];
  /** Frames that were taken, with the receiver's generation then. */
  readonly #kept = new WeakMap<Sent, number>();
  readonly #computed = new Set<string>();
  #snapshotBytesMost = 0;
  /** Peers whose memory was changed, and their step then: the next one that they apply must put them out. */
  readonly #rotten = new Map<string, number>();

  constructor(world: World, reference: Reference, options: InvariantOptions) {
    this.#world = world;
    this.#reference = reference;
    this.#options = options;
    this.#survivors = new Survivors(world.peers);
  }

  heard(event: RunEvent, core: RunCore): void {
    this.#survivors.heard(event, core);
  }

  coordinator(effect: RunEffect): void {
    this.#look(effect);
    this.#survivors.effect(effect);
  }

  #look(effect: RunEffect): void {
    if (effect.do === "persist" && effect.record.kind === "view") {
      this.#view = effect.record.view;
      const { cut, gen, stages } = this.#view;
      const learns = stages.some(({ replicas }) => replicas.some(({ learning }) => learning === true));
      this.#compiling ||= cut === gen || learns;
    }
    if (effect.do === "persist" && effect.record.kind === "commit") this.#onCommit(effect.record);
    if (effect.do !== "report") return;
    const { line } = effect;
    if (line.event === "rollback") {
      const objection = this.#survivors.objection(line);
      check(objection === null, `I1 back to step ${line.step} from ${this.#committed} ${objection}`);
      this.#rollback(line.step, `${line.steps_redone} steps`);
    }
    if (line.event === "step") this.#checkLoss(line.step - 1, line["train/loss"]);
    if (line.event === "peer" && !["joined", "back"].includes(line.what)) {
      this.counts.departures++;
      check(this.#options.mayLose, `I5 ${line.id} ${line.what}, for no reason`);
    }
  }

  restarted(_: unknown, after: RunCore): void {
    this.#survivors.restarted(after);
    if (after.state.committed < this.#committed) this.#rollback(after.state.committed, "a restart");
  }

  peer(peer: SimPeer, _: PeerEvent): void {
    const { state } = peer.core;
    check(state.committed <= this.#highest, `I1 ${peer.id} applied a step that was never committed`);
    for (const [name, length, most] of peerQueues(state)) {
      check(length <= most, `I6 ${peer.id}: ${length} ${name}, at most ${most}`);
    }
  }

  finished(peer: SimPeer, job: Job, result: JobResult): void {
    this.#checkMemory(peer);
    // What it loads is checked against a hash that others told, so it is right again.
    if (job.job === "load") this.#rotten.delete(peer.id);
    if (job.job === "op" && job.kind === "W") {
      const plan = job.cut === peer.core.state.view?.cut
        ? peer.core.state.view?.stages[job.stage]
        : undefined;
      if (plan === undefined) return;
      const key = `${plan.firstLayer}-${plan.endLayer}/${job.step}/${job.microBatch}`;
      if (this.#computed.has(key)) this.counts.recomputed++;
      this.#computed.add(key);
    } else if (job.job === "apply") {
      const plan = peer.core.state.view?.stages[job.stage];
      if (job.cut !== peer.core.state.view?.cut || plan === undefined) return;
      this.#checkState(plan, job.step + 1, { hash: result.hash ?? "", who: peer.id });
    }
  }

  /** A bit of the states that a peer does not compute with is wrong from here on; what it has then is nobody's doing. */
  rot(peer: SimPeer): void {
    for (const { params, step } of idleStates(peer)) {
      this.#rotten.set(peer.id, step);
      new Int32Array(params.buffer, params.byteOffset, 1)[0]! ^= ROTTEN_BIT;
    }
  }

  #checkMemory(peer: SimPeer): void {
    const { config, spec } = peer.core.state;
    const found = excess(peer, config);
    check(found === null, `I6 ${peer.id}: ${found}`);
    const { bytes } = peer.snapshots.desk;
    const shape = { stages: spec.n_layer, delayed: isDelayed(config) };
    this.#snapshotBytesMost ||= snapshotBytesMost(stageLayout(spec, wholeModel(spec)).size, shape);
    check(bytes <= this.#snapshotBytesMost, `I6 ${peer.id}: ${bytes} bytes for snapshots`);
  }

  /** Whether the receiver took this very frame and would still count it: a second one must then be refused. */
  wasKept(frame: Sent): boolean {
    if (frame.wrong === true) return false;
    const receiver = this.#world.peers.get(frame.to);
    return !receiver?.dead && this.#kept.get(frame) === receiver?.core.state.gen;
  }

  kept(peer: SimPeer, frame: Sent): void {
    this.#kept.set(frame, peer.core.state.gen);
    const { kind, step, gen } = frame.header;
    const what = `${kind} of step ${step}, generation ${gen}, from ${frame.from}`;
    check(frame.forged === undefined, `I3 ${peer.id} took a ${frame.forged}: ${what}`);
  }

  /** A control message that must change nothing. */
  mustIgnore(peer: string, message: PeerMessage): void {
    const before = fingerprint(this.#world.coordinator.state);
    this.#world.injectControl(peer, message);
    const after = fingerprint(this.#world.coordinator.state);
    check(after === before, `I3 a stale "${message.type}" of ${peer} changed the run: ${before} to ${after}`);
  }

  /** I8, once the run is over: what every holder has, and what was `written`, are the reference's bits. */
  finish(written: boolean): void {
    const { coordinator, reports } = this.#world;
    const { committed } = coordinator.state;
    const behind = this.behind();
    check(behind === null, `I4 ${behind} of ${committed} steps, long after the last commit`);
    for (const peer of this.#world.alive()) {
      const rotten = this.#rotten.get(peer.id) ?? Infinity;
      for (const state of peer.holder.states()) {
        check(state.step <= rotten, `I4 ${peer.id} has other bits and is not put out`);
        this.#checkState(rangeOf(state.layout), state.step, { hash: stateHash(state), who: peer.id });
      }
    }
    if (!written) return;
    const last = reports.findLast((effect) => effect.do === "checkpoint");
    check(
      last?.do === "checkpoint" && last.source.step === committed,
      "I8 no checkpoint of the last step was written",
    );
    for (const file of last?.do === "checkpoint" ? last.source.files : []) {
      this.#checkState(file, committed, { hash: file.hash, who: "the checkpoint" });
    }
  }

  /** A holder that has not everything committed, and what it has; null if there is none. */
  behind(): string | null {
    const { committed } = this.#world.coordinator.state;
    for (const peer of this.#world.alive()) {
      for (const state of peer.holder.states()) {
        const late = state.step !== committed && this.#mustHold(peer.id, state);
        if (late) return `${peer.id} has ${state.step}`;
      }
    }
    return null;
  }

  /** Holders that the coordinator counts on; a learner or a spare may be behind. */
  #mustHold(id: string, { layout }: StageState): boolean {
    const { coordinator } = this.#world;
    const own = rangeOf(layout);
    const { view } = coordinator.state;
    if (view === null) return false;
    return holdersOf(coordinator.state, view).some(({ range, living }) =>
      living.includes(id) && sameRange(range, own)
    );
  }

  #onCommit({ step, hashes, skip }: { step: number; hashes: string[]; skip?: boolean }): void {
    if (skip === true) this.skipped++;
    const { coordinator, clock: { now } } = this.#world;
    const again = step < this.#highest;
    check(step === this.#committed, `I1 step ${step} was committed after step ${this.#committed - 1}`);
    const holders = this.#view === null ? [] : holdersOf(coordinator.state, this.#view);
    this.#cuts[step] = holders.map(({ range }) => range.endLayer).join("/");
    const history = this.#history(step + 1);
    holders.forEach((holding, s) => {
      const { range } = holding;
      const hash = hashes[s] ?? "";
      check(
        this.#reference.agreeOnTotal({ range, step, history }, hash),
        `I2 stage ${s}: the total of step ${step} is not that of other runs`,
      );
      this.#checkDurable(holding, step, s);
    });
    this.counts.commits++;
    if (again) this.counts.redone++;
    const gap = this.counts.commits > 1 ? now - this.#lastCommitAt : 0;
    if (this.counts.commits > 1) this.counts.gaps.push(gap);
    const gapMostMs = this.#options.gapMostMs + (this.#compiling ? this.#options.patienceMs : 0);
    check(
      gap <= gapMostMs,
      `I5 step ${step} came ${Math.round(gap)} ms after the last, at most ${gapMostMs}`,
    );
    this.#lastCommitAt = now;
    this.#compiling = !allWarm(coordinator.state);
    this.#committed = step + 1;
    this.#highest = Math.max(this.#highest, step + 1);
    for (const [name, length, most] of coordinatorQueues(coordinator.state)) {
      check(length <= most, `I6 coordinator: ${length} ${name}, at most ${most}`);
    }
  }

  /** Two who logged the total, or all there are: then any one of them may go. The coordinator may not know of a death yet. */
  #checkDurable({ range, all, living }: StageHolders, step: number, stage: number): void {
    const able = all.filter((id) =>
      holdings(this.#world.peers.get(id)!).some((it) => sameRange(it.range, range) && it.step > step)
    );
    const needed = Math.min(2, living.length);
    if (living.length < 2) this.counts.reduced++;
    check(able.length >= needed, `I1 step ${step}: ${able.length} holders of stage ${stage}, not ${needed}`);
  }

  #checkState(range: Range, step: number, { hash, who }: { hash: string; who: string }): void {
    if (this.#rotten.has(who)) return;
    const layers = `layers ${range.firstLayer}-${range.endLayer}`;
    const wanted = this.#reference.stateHash(range, step);
    const right = wanted === null
      ? this.#reference.agreeOnState({ range, step, history: this.#history(step) }, hash)
      : wanted === hash;
    check(right, `I4 I8 ${who} has other bits in ${layers} after ${step} steps: ${hash}, not ${wanted}`);
  }

  /**
   * The loss is a function of the data, so it also shows micro-batches that are others or counted twice (I2, I7). It may be
   * unknown, if who computed it is gone before it could tell; it may never be wrong.
   */
  #checkLoss(step: number, loss: number | null): void {
    if (loss === null || Number.isNaN(loss)) return;
    const wanted = this.#reference.losses[step] ?? NaN;
    const tolerance = this.#reference.exact ? LOSS_TOLERANCE : TIED_LOSS_TOLERANCE;
    check(
      Math.abs(loss - wanted) <= tolerance * Math.abs(wanted),
      `I7 step ${step} has loss ${loss}, not ${wanted}`,
    );
  }

  #history(steps: number): string {
    return this.#cuts.slice(0, steps).join(" ");
  }

  #rollback(step: number, why: string): void {
    check(this.#options.mayRedo, `I1 back to step ${step} from ${this.#committed}: ${why}`);
    this.#committed = step;
  }
}

function check(holds: boolean, what: string): void {
  if (!holds) throw new Violation(what);
}
