// The pure state machine of a peer: (state, event) -> effects. It decides which operation runs next, which frames are
// accepted, when a stage's total is complete and when a commit is applied. It never touches tensors, clocks or sockets.
// Every event only changes state; then one pass over the stage instances decides what follows.
// Invariants: (1) one job at a time; (2) a frame of another cut, of a sender that the view does not name, or of a finished
// round changes nothing; (3) a total is summed only over parts that form an exact cover of the step's micro-batches;
// (4) an instance's step only grows inside a cut, and only by a total with the hash that the commit named.
import type { FrameHeader } from "../wire/frame.ts";
import type { ModelSpec, RunConfig } from "../wire/run.ts";
import { roundOrder } from "../wire/view.ts";
import { acceptFrame } from "./accept.ts";
import { onLinkAgain, onView, wantEngine } from "./amend.ts";
import { beginIfDue, chooseOp, deliver, finishOp } from "./round.ts";
import {
  createPeerState,
  type Instance,
  type Job,
  type JobResult,
  type PeerEffect,
  type PeerEvent,
  type PeerState,
} from "./peer_state.ts";
import { onReduced } from "./sums.ts";
import { advanceTotal, ask, endGpuOptimizer, onTotal, placeOf, push, sayAgain, sendTotal } from "./totals.ts";

/** Commits remembered for a learner whose state is still on its way. */
const COMMITS_KEPT = 256;
/** Attempts in a row to have a link to a neighbour before the coordinator is told that there is none. */
const LINK_FAILURES_MAX = 3;

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
    this.#settle(out);
    return out;
  }

  #take(event: PeerEvent, out: PeerEffect[]): void {
    const s = this.state;
    switch (event.type) {
      case "view":
        return onView(s, event, out);
      case "open":
        return this.#onOpen(event);
      case "commit":
        return this.#onCommit(event);
      case "snapshot":
        return this.#onSnapshot(event);
      case "adopt":
        return this.#onAdopt(event);
      case "send-total":
        if (event.cut === s.view?.cut) sendTotal(s, this.#at(event.stage), { ...event, out });
        return;
      case "state":
        return this.#onState(event, out);
      case "fetched":
        return this.#onFetched(event, out);
      case "frame":
        return this.#onFrame(event.from, event.header, out);
      case "link":
        return this.#onLink(event, out);
      case "resumed":
        return this.#onResumed(out);
      case "finished":
        return this.#onFinished(event.job, event.result, out);
    }
  }

  #at(stage: number): Instance | undefined {
    return this.state.instances.find((it) => it.plan.index === stage);
  }

  /** Kept until the instance is at that step: the message may be quicker than the commit before it is applied. */
  #onAdopt({ cut, step, stage, hash }: PeerEvent & { type: "adopt" }): void {
    const instance = this.#at(stage);
    if (cut !== this.state.view?.cut || instance === undefined || step < (instance.step ?? 0)) return;
    if (instance.adopt === null || step >= instance.adopt.step) instance.adopt = { step, hash };
  }

  #onOpen({ gen, step, pass, lossScale }: PeerEvent & { type: "open" }): void {
    const s = this.state;
    const order = roundOrder(pass, step);
    if (gen !== s.gen || s.instances.length === 0) return;
    if (s.open === null || order > s.open.order || (order === s.open.order && gen > s.open.gen)) {
      s.open = { pass, step, order, gen, ...(lossScale === undefined ? {} : { lossScale }) };
    }
  }

  #onCommit({ cut, step, gradNormSq, hashes, skip }: PeerEvent & { type: "commit" }): void {
    const s = this.state;
    // A gap would mean that a commit was never sent; what follows it could not be applied.
    if (cut !== s.view?.cut || step > s.committed || hashes.length !== s.view.stages.length) return;
    const info = { gradNormSq, hashes, ...(skip === true ? { skip } : {}) };
    if (s.instances.length > 0) s.commits[step] ??= info;
    s.committed = Math.max(s.committed, step + 1);
  }

  #onSnapshot(event: { cut: number; step: number; stage: number }): void {
    const s = this.state;
    const instance = this.#at(event.stage);
    if (event.cut !== s.view?.cut || instance === undefined || instance.step === null) return;
    if (event.step >= instance.step) s.pendingSnapshots.push({ step: event.step, stage: event.stage });
  }

  #onState({ cut, step, stage, file }: PeerEvent & { type: "state" }, out: PeerEffect[]): void {
    const instance = this.#at(stage);
    if (cut !== this.state.view?.cut || instance === undefined || instance.step !== null) return;
    if (instance.fetching) return;
    instance.fetching = true;
    out.push({ do: "fetch", cut, stage, step, file });
  }

  #onFetched(event: PeerEvent & { type: "fetched" }, out: PeerEffect[]): void {
    const s = this.state;
    const { cut, step, stage, file, problem } = event;
    const instance = this.#at(stage);
    if (cut !== s.view?.cut || instance === undefined || !instance.fetching) return;
    if (problem === null) {
      return push(s, { job: "adopt", step, stage, plan: instance.plan, view: s.view, file });
    }
    this.#stateFailed(instance, { reason: problem, out });
  }

  #stateFailed(instance: Instance, { reason, out }: { reason: string; out: PeerEffect[] }): void {
    instance.fetching = false;
    const base = { cut: this.state.view!.cut, stage: instance.plan.index };
    out.push({ do: "say", message: { type: "want-state", ...base, reason: reason.slice(0, 500) } });
  }

  #onFrame(from: string, header: FrameHeader, out: PeerEffect[]): void {
    const s = this.state;
    const frame = acceptFrame(s, from, header);
    if (frame === null) {
      s.fenced++;
      return;
    }
    out.push({ do: "keep" });
    const instance = this.#at(frame.stage)!;
    if (frame.kind !== "total") {
      s.arrived.push(frame);
      return deliver(s, instance, frame);
    }
    const work = instance.work!;
    work.total = "installing";
    const { step, wanted } = work;
    const stage = frame.stage;
    push(s, { job: "install", step, stage, from, hash: wanted ?? "", countTied: stage === 0 });
  }

  #onLink(event: { peer: string; open: boolean; reason: string }, out: PeerEffect[]): void {
    const s = this.state;
    const { peer, open } = event;
    const was = s.links.includes(peer);
    s.links = s.links.filter((it) => it !== peer);
    if (open) {
      s.links.push(peer);
      // It may have been open before, or the round is older than the link, as after the coordinator's restart: what was sent
      // meanwhile is lost.
      if (!was && s.neighbours.includes(peer)) onLinkAgain(s, peer, out);
      delete s.linkFailures[peer];
      return;
    }
    if (!s.neighbours.includes(peer)) return;
    const failures = (s.linkFailures[peer] ?? 0) + (was ? 0 : 1);
    s.linkFailures[peer] = failures;
    if (failures < LINK_FAILURES_MAX) {
      out.push({ do: "connect", peers: [{ peer, initiator: s.id < peer }] });
    } else if (failures === LINK_FAILURES_MAX) {
      const reason = event.reason.slice(0, 500);
      out.push({ do: "say", message: { type: "link-lost", gen: s.gen, peer, reason } });
    }
  }

  #onResumed(out: PeerEffect[]): void {
    const s = this.state;
    if (s.view === null) return;
    for (const instance of s.instances) {
      sayAgain(s, instance, out);
      if (instance.step === null && !instance.fetching) {
        this.#stateFailed(instance, { reason: "the coordinator was away", out });
      }
    }
  }

  #onFinished(job: Job, result: JobResult, out: PeerEffect[]): void {
    const s = this.state;
    s.busy = null;
    if (job.cut !== s.view?.cut) return;
    if (job.job === "load") {
      s.loaded = true;
      return;
    }
    const instance = this.#at(job.stage);
    if (instance === undefined) return;
    switch (job.job) {
      case "op":
        return finishOp(s, { instance, job, result, out });
      case "engine":
        // Otherwise it was built for the stage as it was held before, and went with it.
        if (instance.engine !== "building") return;
        instance.engine = "ready";
        out.push({ do: "say", message: { type: "warm", ...placeOf(s), stage: job.stage } });
        return;
      case "sum":
        // Otherwise the view was amended meanwhile, and what counts is added up again.
        if (instance.work?.step === job.step && instance.work.total === "summing") {
          instance.work.total = "summed";
        }
        return;
      case "reduce":
        return onReduced(s, instance, { job, out });
      case "seal":
        if (instance.work?.step === job.step && instance.work.total === "sealing") {
          onTotal(s, instance, { result, out });
        }
        return;
      case "install":
        return this.#onInstalled(instance, { job, result, out });
      case "apply":
        return this.#onApplied(instance, { job, result, out });
      case "adopt":
        return this.#onAdopted(instance, { job, result, out });
      case "exact":
        // What was told after the step had no hash; learners are compared with this one.
        if (job.step > 0) this.#sayApplied(instance, { step: job.step - 1, hash: result.hash ?? "", out });
        return;
      case "export":
        return;
    }
  }

  #onInstalled(
    instance: Instance,
    end: { job: Job & { job: "install" }; result: JobResult; out: PeerEffect[] },
  ): void {
    const work = instance.work;
    if (work?.step !== end.job.step || work.total !== "installing") return;
    if (end.result.hash === end.job.hash) onTotal(this.state, instance, end);
    // A holder that sent something else is no use; the coordinator asks the next, if the total is still another's.
    else if (work.wanted === null) work.total = "none";
    else ask(this.state, instance, end.out);
  }

  #onApplied(
    instance: Instance,
    { job, result, out }: { job: Job & { job: "apply" }; result: JobResult; out: PeerEffect[] },
  ): void {
    const s = this.state;
    // It let go of the stage while this ran, and learns it anew.
    if (!instance.applying || instance.step !== job.step) return;
    Object.assign(instance, { step: job.step + 1, applying: false, work: null });
    instance.oldest = Math.max(instance.oldest, job.step + 1 - job.keep);
    if (!job.upload && instance.engine === "ready") instance.engine = "stale";
    this.#sayApplied(instance, { step: job.step, hash: result.hash ?? "", out });
    // A learner's state may be a good many steps old when it comes.
    const oldest = Math.min(...s.instances.map((it) => it.step ?? s.committed - COMMITS_KEPT));
    for (const step of Object.keys(s.commits)) if (Number(step) < oldest) delete s.commits[Number(step)];
    // A shadow builds its engine once the first step is over, so that it can compute at once when it must.
    if (instance.microBatches.length > 0 || instance.engine === "none") wantEngine(s, instance);
  }

  #sayApplied(
    instance: Instance,
    { step, hash, out }: { step: number; hash: string; out: PeerEffect[] },
  ): void {
    const base = { ...placeOf(this.state), step, stage: instance.plan.index };
    out.push({ do: "say", message: { type: "applied", ...base, hash } });
  }

  /** A learner has its state; the totals since then are fetched like any that was missed. */
  #onAdopted(
    instance: Instance,
    { job, result, out }: { job: Job & { job: "adopt" }; result: JobResult; out: PeerEffect[] },
  ): void {
    if (instance.step !== null) return;
    if (result.hash !== job.file.hash) {
      return this.#stateFailed(instance, { reason: "the state has another hash than announced", out });
    }
    Object.assign(instance, { step: job.step, oldest: job.step, fetching: false });
    // It is to compute, or to be able to at once.
    wantEngine(this.state, instance);
    if (job.step > 0) this.#sayApplied(instance, { step: job.step - 1, hash: job.file.hash, out });
  }

  #settle(out: PeerEffect[]): void {
    const s = this.state;
    if (s.view === null) return;
    if (s.loaded) {
      for (const instance of s.instances) {
        endGpuOptimizer(s, instance);
        beginIfDue(s, instance, out);
        advanceTotal(s, instance, out);
      }
      this.#exportDue();
    }
    this.#pump(out);
  }

  #exportDue(): void {
    const s = this.state;
    const rest: typeof s.pendingSnapshots = [];
    for (const wanted of s.pendingSnapshots) {
      const instance = this.#at(wanted.stage);
      if (instance === undefined || instance.step === null || wanted.step < instance.step) continue;
      if (wanted.step === instance.step && !instance.applying) push(s, { job: "export", ...wanted });
      else if (wanted.step > instance.step) rest.push(wanted);
    }
    s.pendingSnapshots = rest;
  }

  #pump(out: PeerEffect[]): void {
    const s = this.state;
    if (
      s.loaded && !s.readySent && s.instances.length > 0 &&
      s.neighbours.every((peer) => s.links.includes(peer))
    ) {
      s.readySent = true;
      out.push({ do: "say", message: { type: "ready", gen: s.gen } });
    }
    if (s.busy !== null) return;
    for (const stage of s.releases.splice(0)) {
      out.push(stage === "all" ? { do: "unload" } : { do: "release", stage });
    }
    const job = s.jobs.shift() ?? chooseOp(s);
    if (job === null) return;
    s.busy = job;
    out.push({ do: "job", job });
  }
}
