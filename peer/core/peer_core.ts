// The pure state machine of a peer: (state, event) -> effects. It decides which operation runs next, which frames are
// accepted, when a stage's total is complete and when a commit is applied. It never touches tensors, clocks or sockets.
// Invariants: (1) one job at a time; (2) a frame of another generation, another sender than the view names, or a finished
// round changes nothing; (3) a total is summed only over parts that form an exact cover of the step's micro-batches;
// (4) the committed count only grows inside a generation, and only by an applied commit.
import type { Pass } from "../wire/control.ts";
import { assert } from "../wire/errors.ts";
import type { FrameHeader } from "../wire/frame.ts";
import type { ModelSpec, RunConfig } from "../wire/run.ts";
import { neighboursOf, roundOrder, stagesOf, tiedPartner, tiedReceivers } from "../wire/view.ts";
import { activationArrived, finished, gradientArrived } from "../schedule/executor.ts";
import { exactCover } from "../exact/accumulate.ts";
import { acceptFrame, partners } from "./accept.ts";
import { beginRound, chooseOp, finishOp, type RoundContext } from "./round.ts";
import {
  createPeerState,
  type FrameOut,
  type Instance,
  type Job,
  type JobResult,
  type PeerEffect,
  type PeerEvent,
  type PeerState,
} from "./peer_state.ts";

export class PeerCore {
  readonly state: PeerState;

  constructor(id: string, config: RunConfig, spec: ModelSpec) {
    this.state = createPeerState(id, config, spec);
  }

  /**
   * Whether a frame would be accepted now. Its payload is worth checking only then: a stale frame may have the size of an
   * earlier cut of the layers, which says nothing against its sender.
   */
  expects(from: string, header: FrameHeader): boolean {
    return acceptFrame(this.state, from, header) !== null;
  }

  /** Takes one event and returns everything the shell must do because of it, in order. */
  step(event: PeerEvent): PeerEffect[] {
    const out: PeerEffect[] = [];
    this.#take(event, out);
    this.#pump(out);
    return out;
  }

  #take(event: PeerEvent, out: PeerEffect[]): void {
    switch (event.type) {
      case "view":
        return this.#onView(event, out);
      case "open":
        return this.#onOpen(event, out);
      case "commit":
        return this.#onCommit(event);
      case "snapshot":
        return this.#onSnapshot(event);
      case "frame":
        return this.#onFrame(event.from, event.header, out);
      case "link":
        return this.#onLink(event, out);
      case "finished":
        return this.#onFinished(event.job, event.result, out);
    }
  }

  #onView(event: PeerEvent & { type: "view" }, out: PeerEffect[]): void {
    const s = this.state;
    if (event.view.gen <= s.gen) return;
    const mine = stagesOf(event.view, s.id);
    Object.assign(s, { view: event.view, gen: event.view.gen, committed: event.view.baseStep });
    Object.assign(s, {
      loaded: false,
      readySent: false,
      round: null,
      pendingOpen: null,
      pendingSnapshots: [],
    });
    s.arrived = [];
    s.jobs = [];
    s.instances = mine.map((plan) => createInstance(plan, s.id));
    s.neighbours = neighboursOf(event.view, s.config, s.id);
    if (mine.length === 0) {
      out.push({ do: "unload" });
      return;
    }
    out.push({ do: "connect", peers: s.neighbours.map((peer) => ({ peer, initiator: s.id < peer })) });
    const stages = mine.map((plan) => plan.index);
    s.jobs.push({ job: "load", gen: s.gen, view: event.view, source: event.source, stages });
  }

  #onOpen(event: { gen: number; step: number; pass: Pass }, out: PeerEffect[]): void {
    const s = this.state;
    if (event.gen !== s.gen || s.instances.length === 0) return;
    if (event.step !== s.committed) {
      s.pendingOpen = { step: event.step, pass: event.pass };
      return;
    }
    const order = roundOrder(event.pass, event.step);
    if (s.round !== null && s.round.order >= order) return;
    s.round = { pass: event.pass, step: event.step, order };
    s.arrived = s.arrived.filter((frame) => frame.order >= order);
    out.push({ do: "round", pass: event.pass, step: event.step });
    beginRound(this.#context());
    for (const frame of s.arrived) if (frame.order === order) this.#deliver(frame);
  }

  #onCommit(event: { gen: number; step: number; gradNormSq: number }): void {
    const s = this.state;
    if (event.gen !== s.gen || event.step !== s.committed) return;
    for (const instance of s.instances) {
      assert(instance.phase === "logged", `commit of step ${event.step} in phase ${instance.phase}`);
      instance.phase = "applying";
      const stage = instance.plan.index;
      s.jobs.push({ job: "apply", gen: s.gen, step: event.step, stage, gradNormSq: event.gradNormSq });
    }
  }

  #onSnapshot(event: { gen: number; step: number; stage: number }): void {
    const s = this.state;
    if (event.gen !== s.gen) return;
    if (event.step === s.committed && s.loaded) this.#export(event);
    else if (event.step > s.committed) s.pendingSnapshots.push({ step: event.step, stage: event.stage });
  }

  #export(wanted: { step: number; stage: number }): void {
    if (!this.state.instances.some((instance) => instance.plan.index === wanted.stage)) return;
    this.state.jobs.push({ job: "export", gen: this.state.gen, step: wanted.step, stage: wanted.stage });
  }

  #onFrame(from: string, header: FrameHeader, out: PeerEffect[]): void {
    const s = this.state;
    const frame = acceptFrame(s, from, header);
    if (frame === null) {
      s.fenced++;
      return;
    }
    s.arrived.push(frame);
    out.push({ do: "keep" });
    if (s.round?.order === frame.order) this.#deliver(frame);
  }

  #deliver(frame: { kind: FrameHeader["kind"]; stage: number; microBatch: number; from: string }): void {
    const instance = this.state.instances.find((it) => it.plan.index === frame.stage);
    if (instance === undefined) return;
    if (frame.kind === "part") instance.parts.push(frame.from);
    else if (frame.kind === "tied") instance.tiedArrived = true;
    else if (this.state.round?.pass === "eval") instance.evalReady.push(frame.microBatch);
    else if (instance.progress !== null && frame.kind === "activation") {
      activationArrived(instance.progress, frame.microBatch);
    } else if (instance.progress !== null) gradientArrived(instance.progress, frame.microBatch);
    this.#advance(instance);
  }

  #onLink(event: { peer: string; open: boolean; reason: string }, out: PeerEffect[]): void {
    const s = this.state;
    const was = s.links.includes(event.peer);
    s.links = s.links.filter((peer) => peer !== event.peer);
    if (event.open) s.links.push(event.peer);
    const lost = !event.open && (was || !s.readySent) && s.neighbours.includes(event.peer);
    if (!lost) return;
    const reason = event.reason.slice(0, 500);
    out.push({ do: "say", message: { type: "link-lost", gen: s.gen, peer: event.peer, reason } });
  }

  #onFinished(job: Job, result: JobResult, out: PeerEffect[]): void {
    const s = this.state;
    s.busy = null;
    if (job.gen !== s.gen) return;
    if (job.job === "load") {
      s.loaded = true;
      return;
    }
    const instance = s.instances.find((it) => it.plan.index === job.stage);
    if (instance === undefined || job.job === "export") return;
    if (job.job === "op") {
      if (s.round === null || roundOrder(job.pass, job.step) !== s.round.order) return;
      finishOp(this.#context(), { instance, job, result, out });
      if (job.pass === "train") this.#advance(instance);
    } else if (job.job === "sum") this.#onSummed(instance, out);
    else if (job.job === "seal") this.#onSealed(instance, result, out);
    else this.#onApplied(instance, job.step, { result, out });
  }

  /** Moves an instance on when its own share and every part it needs are there. */
  #advance(instance: Instance): void {
    const s = this.state;
    const round = s.round;
    if (round === null || round.pass === "eval") return;
    const done = instance.progress !== null && finished(instance.progress);
    const others = partners(instance.plan, s.id);
    if (instance.phase === "computing" && done && others.every((peer) => instance.parts.includes(peer))) {
      this.#checkCover(instance, others);
      instance.phase = "summing";
      const { gen } = s;
      s.jobs.push({ job: "sum", gen, step: round.step, stage: instance.plan.index, parts: others });
    } else if (instance.phase === "awaiting tied" && instance.tiedArrived) this.#seal(instance, true);
  }

  /** Invariant 3. Each part was accepted only with exactly its sender's share, so the shares say what the sum contains. */
  #checkCover(instance: Instance, others: string[]): void {
    const shares = instance.plan.replicas.filter((it) => others.includes(it.peer)).map((it) =>
      it.microBatches
    );
    const cover = exactCover(
      [instance.microBatches, ...shares],
      this.state.config.gradient_accumulation_steps,
    );
    assert(cover.ok, `stage ${instance.plan.index} cannot be summed: ${cover.ok ? "" : cover.reason}`);
  }

  #onSummed(instance: Instance, out: PeerEffect[]): void {
    const s = this.state;
    assert(s.view !== null && s.round !== null, "a sum without a round");
    const partner = tiedPartner(s.view, s.config, instance.plan.index);
    if (partner === null) return this.#seal(instance, false);
    for (const to of tiedReceivers(instance.plan, partner, s.id)) {
      const frame = { to, kind: "tied" as const, toStage: partner.index };
      out.push({ do: "send", frame: this.#frame(instance, frame) });
    }
    instance.phase = "awaiting tied";
    this.#advance(instance);
  }

  #frame(instance: Instance, part: Pick<FrameOut, "to" | "kind" | "toStage">): FrameOut {
    const s = this.state;
    const all = Array.from({ length: s.config.gradient_accumulation_steps }, (_, m) => m);
    return {
      ...part,
      gen: s.gen,
      pass: "train",
      step: s.committed,
      fromStage: instance.plan.index,
      microBatch: 0,
      set: all,
    };
  }

  #seal(instance: Instance, tied: boolean): void {
    const s = this.state;
    instance.phase = "sealing";
    const stage = instance.plan.index;
    s.jobs.push({ job: "seal", gen: s.gen, step: s.committed, stage, tied, countTied: stage === 0 });
  }

  #onSealed(instance: Instance, result: JobResult, out: PeerEffect[]): void {
    instance.phase = "logged";
    const losses = Object.values(instance.losses);
    const message = {
      type: "logged" as const,
      gen: this.state.gen,
      step: this.state.committed,
      stage: instance.plan.index,
      hash: result.hash ?? "",
      gradNormSq: result.gradNormSq ?? 0,
      lossSum: losses.reduce((sum, loss) => sum + loss, 0),
      lossCount: losses.length,
      saturated: result.saturated ?? 0,
      nonFinite: result.nonFinite ?? 0,
    };
    out.push({ do: "say", message });
  }

  #onApplied(instance: Instance, step: number, end: { result: JobResult; out: PeerEffect[] }): void {
    const s = this.state;
    instance.phase = "applied";
    const hash = end.result.hash ?? "";
    end.out.push({
      do: "say",
      message: { type: "applied", gen: s.gen, step, stage: instance.plan.index, hash },
    });
    if (!s.instances.every((it) => it.phase === "applied")) return;
    s.committed = step + 1;
    for (const wanted of s.pendingSnapshots) if (wanted.step === s.committed) this.#export(wanted);
    s.pendingSnapshots = s.pendingSnapshots.filter((wanted) => wanted.step > s.committed);
    const open = s.pendingOpen;
    s.pendingOpen = null;
    if (open !== null) this.#onOpen({ gen: s.gen, ...open }, end.out);
  }

  #context(): RoundContext {
    const s = this.state;
    assert(s.view !== null && s.round !== null, "a round without a view");
    return { state: s, view: s.view, round: s.round };
  }

  #pump(out: PeerEffect[]): void {
    const s = this.state;
    if (s.loaded && !s.readySent && s.neighbours.every((peer) => s.links.includes(peer))) {
      s.readySent = true;
      out.push({ do: "say", message: { type: "ready", gen: s.gen } });
    }
    if (s.busy !== null) return;
    const job = s.jobs.shift() ?? (s.round === null ? null : chooseOp(this.#context()));
    if (job === null) return;
    s.busy = job;
    out.push({ do: "job", job });
  }
}

function createInstance(plan: Instance["plan"], peer: string): Instance {
  const own = plan.replicas.find((replica) => replica.peer === peer)?.microBatches ?? [];
  return {
    plan,
    microBatches: own,
    progress: null,
    losses: {},
    evalLeft: [],
    evalReady: [],
    parts: [],
    tiedArrived: false,
    phase: "computing",
  };
}
