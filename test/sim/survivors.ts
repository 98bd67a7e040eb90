// Whether a run had to go back: from what the coordinator has heard and who is gone since, kept apart from its own books. It may
// redo committed steps only if some stage has no holder left that is known to have all of them, and only if it had said before
// the loss that one departure could cost so much; or if as many of a stage's holders said one thing of its state as another. Reads only; a rollback that breaks this is invariants.ts's to report.
import type { RunCore } from "../../coordinator/core/run_core.ts";
import type { CoordinatorEventLine, RunEffect, RunEvent } from "../../coordinator/core/run_state.ts";
import type { PeerMessage } from "../../peer/wire/control.ts";
import type { View } from "../../peer/wire/run.ts";
import { holdings, sayingOf } from "./probe.ts";
import { sameRange } from "./reference.ts";
import type { SimPeer } from "./types.ts";

type Rollback = CoordinatorEventLine & { event: "rollback" };

/** What the coordinator said of itself just before it took an event. */
type Saying = ReturnType<typeof sayingOf>;

/** One stage's newest step with a peer: in its state, or logged and then committed. */
interface Evidence {
  cut: number;
  stage: number;
  step: number;
}

export class Survivors {
  readonly #peers: ReadonlyMap<string, SimPeer>;
  /** Peers that the coordinator has not heard the end of. */
  readonly #known = new Set<string>();
  readonly #evidence = new Map<string, Evidence[]>();
  /** Totals told of the open step. */
  #logged: (Evidence & { peer: string; hash: string })[] = [];
  /** State hashes by cut, stage and step, then by peer. */
  readonly #states = new Map<string, { step: number; told: Map<string, string> }>();
  #committed = 0;
  /** Committed steps with which the present cut began: all of its holders start with them. */
  #base = 0;
  #before: Saying | null = null;
  /** Members of the view that went in this turn. */
  #removed = 0;

  constructor(peers: ReadonlyMap<string, SimPeer>) {
    this.#peers = peers;
  }

  /** Before the coordinator takes the event. */
  heard(event: RunEvent, core: RunCore): void {
    this.#before = sayingOf(core.state);
    this.#removed = 0;
    if (event.type === "message") this.#onMessage(event.peer, event.message);
    if (event.type !== "return" || event.have === null) return;
    const { cut, stages } = event.have;
    for (const { stage, step, logged } of stages) {
      // What was logged counts if it was committed, which nobody but the log knows now.
      this.#note(event.peer.id, { cut, stage, step: step - 1 });
      if (logged === true && step < this.#committed) this.#note(event.peer.id, { cut, stage, step });
    }
  }

  effect(effect: RunEffect): void {
    if (effect.do === "persist" && effect.record.kind === "view") {
      const { view } = effect.record;
      if (view.cut === view.gen) this.#base = view.baseStep;
    } else if (effect.do === "persist" && effect.record.kind === "commit") {
      const { step, hashes } = effect.record;
      for (const it of this.#logged) {
        if (it.step === step && hashes[it.stage] === it.hash) this.#note(it.peer, it);
      }
      this.#logged = [];
      this.#committed = step + 1;
    } else if (effect.do === "report" && effect.line.event === "peer") {
      this.#onPeer(effect.line.id, effect.line.what);
    }
  }

  /** The coordinator's memory is gone; what peers hold is not, and they say it again. */
  restarted({ state: { committed } }: RunCore): void {
    this.#known.clear();
    this.#evidence.clear();
    this.#logged = [];
    this.#committed = committed;
    this.#base = -1;
    this.#before = null;
  }

  /** Null if the run had to go back; else why it had not. To be asked before the rollback changes anything. */
  objection({ step, steps_redone }: Rollback): string | null {
    if (this.#isDisputed(step)) return null;
    const { view, phase, risk } = this.#before ?? { view: null, phase: "idle", risk: 0 };
    if (view === null) return null;
    // Who has not come back yet cannot have told: there the peers' real states count.
    const holds = phase === "regathering" ? this.#reallyHolds : this.#isKnownToHold;
    const kept = view.stages.map((stage) =>
      stage.replicas.find((it) => it.learning !== true && holds.call(this, view, stage.index, it.peer))
    );
    if (kept.every((it) => it !== undefined)) {
      return `although ${kept.map((it) => it!.peer).join(", ")} hold every stage`;
    }
    const warned = phase === "restoring" || phase === "regathering" || this.#removed > 1;
    if (!warned && steps_redone > risk) {
      return `although it said that a departure costs ${risk} steps at most`;
    }
    return null;
  }

  /** Whether nobody could say which state is right after some step that the states of `step` committed steps do not contain. */
  #isDisputed(step: number): boolean {
    return [...this.#states.values()].some((it) => {
      const counts = [...Map.groupBy(it.told.values(), (hash) => hash).values()].map(({ length }) => length);
      const most = Math.max(...counts);
      return it.step >= step && counts.filter((count) => count === most).length > 1;
    });
  }

  #isKnownToHold(view: View, stage: number, peer: string): boolean {
    if (!this.#known.has(peer)) return false;
    if (this.#committed === this.#base) return true;
    const known = this.#evidence.get(peer) ?? [];
    return known.some((it) => it.cut === view.cut && it.stage === stage && it.step >= this.#committed - 1);
  }

  #reallyHolds(view: View, stage: number, id: string): boolean {
    const peer = this.#peers.get(id);
    if (peer === undefined || peer.dead || peer.core.state.view?.cut !== view.cut) return false;
    const range = view.stages[stage]!;
    return holdings(peer).some((it) => sameRange(it.range, range) && it.step >= this.#committed);
  }

  #onMessage(peer: string, message: PeerMessage): void {
    if (message.type === "applied") {
      this.#note(peer, message);
      const key = `${message.cut}/${message.stage}/${message.step}`;
      const state = this.#states.get(key) ?? { step: message.step, told: new Map<string, string>() };
      state.told.set(peer, message.hash);
      this.#states.set(key, state);
    }
    if (message.type !== "logged" || message.step !== this.#committed) return;
    const { cut, stage, step, hash } = message;
    this.#logged.push({ peer, cut, stage, step, hash });
  }

  #note(peer: string, { cut, stage, step }: Evidence): void {
    const known = this.#evidence.get(peer) ?? [];
    const others = known.filter((it) => it.cut === cut && it.stage !== stage);
    const before = known.find((it) => it.cut === cut && it.stage === stage);
    this.#evidence.set(peer, [...others, { cut, stage, step: Math.max(step, before?.step ?? -1) }]);
  }

  #onPeer(id: string, what: string): void {
    if (what === "joined" || what === "back") return void this.#known.add(id);
    this.#known.delete(id);
    this.#evidence.delete(id);
    this.#logged = this.#logged.filter((it) => it.peer !== id);
    if (this.#before?.view?.stages.some((stage) => stage.replicas.some((it) => it.peer === id))) {
      this.#removed++;
    }
  }
}
