// A peer as its owner sees it: joins, stays in through lost connections, pauses, leaves. Sessions come and go underneath;
// this is the part that a tab's worker and the command line share.
import { KeptBase } from "./base.ts";
import type { StageBuild, StageEngine } from "./engine/engine.ts";
import { isOutOfMemory, MemoryOffer } from "./out_of_memory.ts";
import { Session, type SessionEnd, type SessionOptions } from "./session.ts";
import { engineSaid } from "./model/stage_memory.ts";
import { messageOf } from "./wire/errors.ts";
import type { LossPoint, TabPhase, TabSnapshot } from "./wire/status.ts";
import { heldOnlyBy } from "./wire/view.ts";

/** First and longest wait between attempts to reach the coordinator again. */
const RETRY_FIRST_MS = 1_000;
const RETRY_MAX_MS = 15_000;
/** Failures of the work itself in a row after which the peer gives up rather than trouble the run again. */
const FAILURES_MAX = 5;
/** Points of the loss curve kept for the page. */
const LOSSES_MAX = 2_000;

/** What a peer computes with. */
export interface PeerCompute extends Pick<SessionOptions, "adapter" | "engine" | "createEngine" | "kernels"> {
  /** Settles with a reason when the GPU is gone for good. */
  deviceLost?: Promise<string>;
}

export interface PeerOptions extends PeerCompute, Omit<SessionOptions, "onChange"> {
  onChange(snapshot: TabSnapshot): void;
  /** Joins, and computes nothing until resume(); default false. */
  paused?: boolean;
  /** Opens what it computes with anew after its GPU was lost; absent: the peer ends then. */
  reopen?(): Promise<PeerCompute>;
}

export class Peer {
  readonly #options: PeerOptions;
  readonly #memory: MemoryOffer;
  /** A peer that was put out and joins again fetches nothing twice. */
  readonly #keptBase = new KeptBase();
  #compute: PeerCompute;
  #session: Session | null = null;
  #phase: TabPhase | null = null;
  #reason = "";
  #code = "";
  #note = "";
  #stopped: (() => void) | null = null;
  #losses = new Map<number, LossPoint>();
  #tokensBefore = 0;

  constructor(options: PeerOptions) {
    this.#options = options;
    this.#memory = new MemoryOffer(options.memoryBytes);
    this.#compute = options;
    this.#watch(options);
  }

  #watch(compute: PeerCompute): void {
    void compute.deviceLost?.then((reason) => {
      if (this.#compute === compute) this.#session?.close("device-lost", "device-lost", reason);
    });
  }

  /** Joins and works until it has left, was put out, or cannot go on. */
  async run(signal?: AbortSignal): Promise<SessionEnd> {
    signal?.addEventListener("abort", () => this.leaveNow(), { once: true });
    let failures = 0;
    let wait = RETRY_FIRST_MS;
    while (true) {
      const begun = performance.now();
      const end = await this.#once();
      const lasted = performance.now() - begun;
      if (lasted > RETRY_MAX_MS * 2) [failures, wait] = [0, RETRY_FIRST_MS];
      // The coordinator has just answered, so there is nothing to wait for: it joins anew.
      if (end.code === "not-resumed" && this.#stopped === null && !signal?.aborted) continue;
      const own = end.kind === "failed" || (end.kind === "device-lost" && this.#options.reopen !== undefined);
      const again = end.kind === "offline" || (own && ++failures < FAILURES_MAX);
      if (end.code === "out-of-memory" || end.kind === "device-lost") {
        this.#memory.lower();
        this.#keptBase.forget();
      }
      if (!again || this.#stopped !== null || signal?.aborted) return this.#finish(end);
      // Who asked to leave does not want to be brought back by a lost connection.
      if (this.#session?.facts.leaving) return this.#finish({ ...end, kind: "left" });
      this.#show("offline", `${end.reason}; trying again in ${Math.round(wait / 1000)} s`);
      await new Promise((resolve) => setTimeout(resolve, wait));
      wait = Math.min(wait * 2, RETRY_MAX_MS);
      if (this.#stopped !== null || signal?.aborted) return this.#finish({ ...end, kind: "left" });
      const problem = end.kind === "device-lost" ? await this.#reopen() : null;
      if (problem !== null) return this.#finish({ ...end, reason: `${end.reason}; ${problem}` });
    }
  }

  /** Why there is no device any more; null if there is a new one. */
  async #reopen(): Promise<string | null> {
    try {
      this.#compute = await this.#options.reopen!();
      this.#watch(this.#compute);
      return null;
    } catch (error) {
      return messageOf(error);
    }
  }

  async #createEngine(build: StageBuild): Promise<StageEngine> {
    try {
      return await this.#compute.createEngine(build);
    } catch (error) {
      const config = this.#session?.facts.welcome?.config;
      if (isOutOfMemory(error) && config) this.#memory.note(this.#compute.engine, build, config);
      throw error;
    }
  }

  async #once(): Promise<SessionEnd> {
    this.#phase = null;
    const onChange = () => this.#options.onChange(this.snapshot());
    // Only now, so that the last snapshot of a session counts its own tokens once.
    this.#tokensBefore += this.#session?.holder?.tokens ?? 0;
    const { paused = this.#options.paused ?? false, hidden = false, seen = null } = this.#session?.facts ??
      {};
    const { adapter, engine } = this.#compute;
    const createEngine = (build: StageBuild) => this.#createEngine(build);
    const kernels = () => this.#compute.kernels?.() ?? "";
    const own = { adapter, engine, createEngine, kernels, memoryBytes: this.#memory.bytes };
    const onNote = (text: string) => {
      this.#note = text;
      onChange();
    };
    const kept = { keptBase: this.#keptBase };
    this.#session = new Session({ ...this.#options, ...own, ...kept, onChange, onNote });
    // The owner's wishes outlive a lost connection, and so does what the peer has seen of the run.
    Object.assign(this.#session.facts, { paused, hidden, seen });
    return await this.#session.ended;
  }

  pause(): void {
    this.#session?.setPaused(true);
  }

  resume(): void {
    this.#session?.setPaused(false);
  }

  finishAndLeave(): void {
    const core = this.#session?.core;
    if (core == null || this.#phase === "offline" || this.#session?.facts.away != null) {
      return this.leaveNow();
    }
    this.#session?.leaveCleanly();
  }

  leaveNow(reason = "left at once"): void {
    this.#stopped = () => {};
    this.#session?.close("left", "left", reason);
  }

  setHidden(hidden: boolean): void {
    this.#session?.setHidden(hidden);
  }

  #finish(end: SessionEnd): SessionEnd {
    const phases: Partial<Record<SessionEnd["kind"], TabPhase>> = {
      done: "done",
      left: "left",
      kicked: "kicked",
      "device-lost": "device-lost",
      offline: "offline",
    };
    const refused = end.code === "wrong-version" ? "wrong-version" : "kicked";
    this.#code = end.code;
    this.#show(phases[end.kind] ?? (end.kind === "refused" ? refused : "kicked"), end.reason);
    return end;
  }

  #show(phase: TabPhase, reason: string): void {
    this.#phase = phase;
    this.#reason = reason;
    this.#options.onChange(this.snapshot());
  }

  snapshot(): TabSnapshot {
    const facts = this.#session?.facts;
    const holder = this.#session?.holder;
    const core = this.#session?.core?.state;
    const group = facts?.group;
    for (const point of group?.losses ?? []) this.#keepLoss(point);
    const computing = core?.instances.find((it) => it.microBatches.length > 0) ?? core?.instances[0];
    const instance = computing?.plan;
    const links = Object.values(facts?.links ?? {});
    const viaRelay = links.filter((link) => link.path === "relay");
    const relayed = viaRelay.length;
    const why = viaRelay.find((link) => link.why !== undefined)?.why;
    const held = this.#options.gate?.heldBack() ?? null;
    return {
      phase: this.#phase ?? this.#livePhase(),
      reason: this.#phase === null ? this.#liveReason() : this.#reason,
      adapter: this.#compute.adapter,
      engine: engineSaid(this.#compute.engine, facts?.welcome?.config ?? {}),
      stage: instance?.index ?? null,
      stageCount: core?.view?.stages.length ?? 0,
      layers: instance === undefined ? null : [instance.firstLayer, instance.endLayer],
      params: holder?.states().reduce((sum, state) => sum + state.layout.size, 0) ?? 0,
      memoryBytes: (holder?.memoryBytes() ?? 0) + (this.#session?.keptBytes ?? 0),
      step: group?.step ?? 0,
      maxIters: facts?.welcome?.config.max_iters ?? 0,
      ownStepMs: facts?.ownStepMs ?? 0,
      groupStepMs: group?.groupStepMs ?? 0,
      tokens: this.#tokensBefore + (holder?.tokens ?? 0),
      bytesUp: links.reduce((sum, link) => sum + link.bytesUp, 0),
      bytesDown: links.reduce((sum, link) => sum + link.bytesDown, 0),
      links: { direct: links.length - relayed, relayed, ...(why === undefined ? {} : { why }) },
      ...(held === null ? {} : { held }),
      ...(facts?.writes === true ? { writes: true } : {}),
      ...(this.#code === "" ? {} : { code: this.#code }),
      ...(this.#note === "" ? {} : { note: this.#note }),
      losses: [...this.#losses.values()].sort((a, b) => a.step - b.step),
      sample: group?.sample ?? null,
      alone: core === undefined || core.view === null ? [] : heldOnlyBy(core.view, core.id),
    };
  }

  #liveReason(): string {
    const facts = this.#session?.facts;
    if (facts?.away == null) return facts?.group?.reason ?? "";
    const { retryMs } = facts.away;
    const when = retryMs === 0 ? "trying again now" : `trying again in ${Math.ceil(retryMs / 1000)} s`;
    return `the coordinator does not answer; this computer completes what it can and keeps its state; ${when}`;
  }

  #livePhase(): TabPhase {
    const facts = this.#session?.facts;
    const core = this.#session?.core?.state;
    if (facts === undefined || facts.step === "joining") return "joining";
    if (facts.away !== null) return "offline";
    if (facts.step === "measuring" || core === undefined) return "measuring";
    if (facts.leaving) return "finishing";
    if (facts.paused) return "paused";
    if (core.instances.length === 0) return "spare";
    return core.readySent ? "training" : "loading";
  }

  #keepLoss(point: LossPoint): void {
    this.#losses.set(point.step, { ...this.#losses.get(point.step), ...point });
    if (this.#losses.size > LOSSES_MAX) this.#losses.delete(this.#losses.keys().next().value!);
  }
}
