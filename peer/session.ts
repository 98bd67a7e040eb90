// One incarnation of a peer: from hello to the end of its line to the coordinator, which outlives a coordinator's restart.
// Binds the pure core to that line, the links, the holder and the clock; contains no protocol decisions. A session that has
// ended never comes back: a new one joins as a new peer.
import { PeerCore } from "./core/peer_core.ts";
import type { Job, PeerEffect, PeerEvent } from "./core/peer_state.ts";
import { heartbeatOf } from "./heartbeat.ts";
import { firstHello, resumption } from "./hello.ts";
import { Holder } from "./holder.ts";
import { asLimited, isWork } from "./limits.ts";
import { measurePeer } from "./measure.ts";
import type { RelayingLinkHost } from "./net/host.ts";
import { isOutOfMemory } from "./out_of_memory.ts";
import { fetchCorpus, Requests, type Sources, sourcesOf } from "./requests.ts";
import { CoordinatorLine, staleness } from "./reconnect.ts";
import type { SessionEnd, SessionFacts, SessionOptions } from "./session_facts.ts";
import { SessionMeasures } from "./session_measures.ts";
import { Sidelines } from "./sidelines.ts";
import {
  type CoordinatorMessage,
  decodeCoordinatorMessage,
  type PeerMessage,
  readTagged,
  type Welcome,
} from "./wire/control.ts";
import { messageOf, ShoalError } from "./wire/errors.ts";
import { decodeFrame, encodeFrame } from "./wire/frame.ts";

/** Longest reason that a message carries. */
const REASON_CHARS_MAX = 512;

export type { SessionEnd, SessionOptions } from "./session_facts.ts";

export class Session {
  readonly facts: SessionFacts = {
    ...{ step: "joining", peer: null, welcome: null, group: null, hidden: false, paused: false },
    ...{ leaving: false, ownStepMs: 0, writes: false, links: {}, away: null, seen: null },
  };
  core: PeerCore | null = null;
  holder: Holder | null = null;
  readonly ended: Promise<SessionEnd>;
  readonly #options: SessionOptions;
  readonly #line: CoordinatorLine;
  #end: (end: SessionEnd) => void = () => {};
  #over = false;
  #host: RelayingLinkHost | null = null;
  #early: CoordinatorMessage[] = [];
  #timers: ReturnType<typeof setInterval>[] = [];
  readonly #requests: Requests;
  #sources: Sources | null = null;
  #stepBusyMs = 0;
  #recoveryBytes = 0;
  readonly #measures = new SessionMeasures();
  #side: Sidelines | null = null;
  /** A job is being done. */
  #busy = false;
  #working: Promise<void> = Promise.resolve();

  constructor(options: SessionOptions) {
    this.#options = options;
    this.#requests = new Requests({
      ...{ origin: options.origin, token: options.token },
      identity: () => this.facts.welcome,
      back: () => this.#line.back(),
      over: () => this.#over,
      gate: options.gate,
      onNote: (text) => options.onNote?.(text),
    });
    this.ended = new Promise((resolve) => this.#end = resolve);
    this.#line = new CoordinatorLine({
      url: `${options.origin.replace(/^http/, "ws")}/api/peer`,
      mayResume: () => this.core !== null && !this.facts.leaving,
      hello: (again) => this.#hello(again),
      onmessage: (bytes) => this.#receive(bytes),
      onlost: (reason) => this.close("offline", "offline", reason),
      onaway: () => this.#onAway(),
    });
  }

  /** Bytes kept for snapshots and texts. */
  get keptBytes(): number {
    return (this.#side?.snapshots.desk.bytes ?? 0) + (this.#side?.writer.bytes ?? 0);
  }

  /** Asks to be replaced at the next step boundary; the session ends when the coordinator says so. */
  leaveCleanly(): void {
    this.facts.leaving = true;
    this.say({ type: "leave", reason: "asked by its owner" });
    this.#options.onChange();
  }

  setPaused(paused: boolean): void {
    this.facts.paused = paused;
    this.say({ type: "pause", paused });
    this.#options.onChange();
  }

  setHidden(hidden: boolean): void {
    this.facts.hidden = hidden;
  }

  /** Ends the session at once, says goodbye while the socket still carries it, and lets go of everything. */
  close(kind: SessionEnd["kind"], code: string, reason: string): void {
    if (this.#over) return;
    this.#over = true;
    for (const timer of this.#timers) clearInterval(timer);
    // First of all: a page that closes may stop this thread at any moment.
    this.say({ type: "goodbye", reason: reason.slice(0, REASON_CHARS_MAX) });
    this.#side?.close();
    this.#host?.closeAll(reason);
    this.#line.close();
    const holder = this.holder;
    // The engine is destroyed only after the operation that may be using it.
    void this.#working.finally(() => holder?.unload()).finally(() => this.#end({ kind, code, reason }));
  }

  say(message: PeerMessage): void {
    this.#line.say(message);
  }

  #hello(again: boolean): PeerMessage {
    const holding = again ? resumption(this.facts, this.core!, this.holder!) : {};
    return { ...firstHello(this.#options), ...holding };
  }

  /** The coordinator went away or is back; links that led through it are over either way. */
  #onAway(): void {
    const begins = this.facts.away === null;
    this.facts.away = this.#line.away;
    const relayed = Object.entries(this.facts.links).filter(([, link]) => link.path === "relay");
    if (begins) {
      for (const [peer] of relayed) this.#host?.close(peer, "the coordinator that relayed it is away");
    }
    this.#options.onChange();
  }

  #receive(bytes: Uint8Array): void {
    const tagged = readTagged(bytes);
    if (!tagged.ok) return this.close("failed", tagged.code, tagged.reason);
    if (tagged.value.kind === "relay") return this.#host?.receiveRelay(tagged.value.peer, tagged.value.bytes);
    const message = decodeCoordinatorMessage(tagged.value.bytes);
    if (!message.ok) return this.close("failed", message.code, message.reason);
    this.#hear(message.value);
  }

  #hear(message: CoordinatorMessage): void {
    switch (message.type) {
      case "welcome":
        return this.#welcomed(message);
      case "refused":
        return this.close(
          message.code === "not-resumed" ? "offline" : "refused",
          message.code,
          message.reason,
        );
      case "kicked":
        return this.close(message.mayReturn ? "offline" : "kicked", "kicked", message.reason);
      case "done":
        return this.close(this.facts.leaving ? "left" : "done", "done", message.reason);
      case "status":
        this.facts.group = message;
        return this.#options.onChange();
      default:
        this.#see(message);
        if (this.core === null) this.#early.push(message);
        else if (message.type === "signal") this.#host?.signal(message.peer, message.data);
        else if (message.type === "snapshot-out") this.#exportFor(message);
        else if (!this.#side!.hear(message)) this.#feed(message as Extract<PeerEvent, CoordinatorMessage>);
    }
  }

  #welcomed(welcome: Welcome): void {
    const stale = staleness(this.facts.seen, welcome);
    if (stale !== null) return this.close("refused", "stale-coordinator", stale);
    if (this.facts.welcome !== null) {
      // Whoever asked to go on and was taken for somebody new holds nothing that still counts.
      if (!welcome.resumed) return this.close("offline", "not-resumed", "the coordinator forgot this peer");
      this.facts.welcome = welcome;
      this.#side?.writer.clear();
      this.#line.welcomedBack();
      return this.#feed({ type: "resumed" });
    }
    this.#seeEpoch(welcome.epoch);
    void this.#setUp(welcome).catch((error) => this.#fail(error));
  }

  #seeEpoch(epoch: string): void {
    if (this.facts.seen?.epoch !== epoch) this.facts.seen = { epoch, committed: 0 };
  }

  #see(message: CoordinatorMessage): void {
    const { seen } = this.facts;
    this.#measures.hear(message, performance.now());
    if (message.type === "view" && message.epoch !== undefined) this.#seeEpoch(message.epoch);
    else if (message.type === "commit" && seen !== null) {
      seen.committed = Math.max(seen.committed, message.step + 1);
    }
  }

  async #setUp(welcome: Welcome): Promise<void> {
    Object.assign(this.facts, { welcome, peer: welcome.peer, step: "measuring" });
    const beat = setInterval(() => this.#heartbeat(), welcome.heartbeatMs);
    this.#timers.push(beat);
    this.#options.onChange();
    const { config, spec } = welcome;
    const corpus = await fetchCorpus(this.#requests, welcome.corpus);
    const { createEngine, gate } = this.#options;
    const measured = asLimited(await measurePeer(createEngine, config, spec), gate);
    if (this.#over) return;
    const sources = this.#sources = sourcesOf(this.#requests, spec, this.#options);
    this.holder = new Holder({ self: welcome.peer, config, spec, corpus, ...sources });
    this.core = new PeerCore(welcome.peer, config, spec);
    const host = this.#host = this.#openHost(welcome.peer);
    this.#side = new Sidelines({
      ...{ welcome, session: this.#options, host, say: (message) => this.say(message) },
      upload: (job, file) => this.#requests.upload(job, file),
      ...{ facts: this.facts, busy: () => this.#busy, holder: this.holder, weightsOf: sources.weightsOf },
      afterJobs: (run) => void (this.#working = this.#working.then(run)),
    });
    this.facts.step = "joined";
    if (this.facts.paused) this.say({ type: "pause", paused: true });
    const kernels = this.#options.kernels?.();
    const { memoryBytes } = this.#options;
    const able = { probes: true, writes: true, ...(kernels ? { kernels } : {}) };
    this.say({ type: "measured", ...measured, memoryBytes, ...able });
    for (const message of this.#early.splice(0)) this.#hear(message);
    void this.#side.snapshots.offerSaved();
    this.#options.onChange();
  }

  #openHost(selfId: string): RelayingLinkHost {
    const host = this.#options.createHost(selfId, (remote, bytes) => {
      this.#line.relay(remote, bytes);
    }, this.facts.welcome!.ticket);
    host.onsignal = (peer, data) => this.say({ type: "signal", peer, data });
    host.onframe = (remote, frame) => this.#onFrame(remote, frame);
    host.onstate = (peer, state, reason) => {
      if (state === "connecting") return;
      const open = state === "open";
      this.#feed({ type: "link", peer, open, reason });
      this.#side?.link(peer, open);
    };
    return host;
  }

  #onFrame(remote: string, bytes: Uint8Array): void {
    if (this.core === null || this.holder === null) return;
    const frame = decodeFrame(bytes);
    if (!frame.ok) return this.#host?.close(remote, `bad-frame: ${frame.reason}`);
    const { header, payload } = frame.value;
    if (this.#side!.receive(remote, header, payload)) return;
    const problem = this.core.expects(remote, header) ? this.holder.check(header, payload) : null;
    if (problem !== null) return this.#host?.close(remote, `bad-frame: ${problem}`);
    this.#feed({ type: "frame", from: remote, header }, () => this.holder!.keep(header, payload, remote));
  }

  #feed(event: PeerEvent, keep: () => void = () => {}): void {
    if (this.#over || this.core === null) return;
    try {
      for (const effect of this.core.step(event)) {
        if (effect.do === "keep") keep();
        else this.#perform(effect);
      }
    } catch (error) {
      // A plan or an order that breaks an invariant: this peer leaves with the reason rather than compute on.
      this.#fail(error);
    }
  }

  #perform(effect: Exclude<PeerEffect, { do: "keep" }>): void {
    switch (effect.do) {
      case "say":
        return this.say(effect.message);
      case "begin":
        this.facts.ownStepMs = this.#stepBusyMs || this.facts.ownStepMs;
        this.#stepBusyMs = 0;
        return this.holder!.begin(effect.stage, effect.pass, effect.step);
      case "fetch":
        void this.#fetchOffer(effect);
        return;
      case "disconnect":
        return this.#disconnect(effect.peers);
      case "release":
        this.#working = this.#working.then(() => this.holder!.release(effect.stage));
        return;
      case "connect":
        return this.#connect(effect.peers);
      case "unload":
        this.#working = this.#working.then(() => this.holder!.unload());
        return this.#options.onChange();
      case "send":
        return this.#send(effect.frame);
      case "job":
        this.#working = this.#working.then(() => this.#work(effect.job));
    }
  }

  #disconnect(peers: string[]): void {
    for (const peer of peers) {
      if (!this.#side!.needs(peer)) this.#host!.close(peer, "it is no neighbour any more");
    }
  }

  /** A snapshot needs the state of exactly that step: the core exports it between two steps, as for an upload. */
  #exportFor(message: Extract<CoordinatorMessage, { type: "snapshot-out" }>): void {
    const { cut, step, stage } = message;
    this.#side?.snapshots.order(message);
    this.#feed({ type: "snapshot", cut, step, stage });
  }

  #exported(job: Job & { job: "export" }, file: { bytes: Uint8Array; hash: string }): void {
    const plan = this.core?.state.view?.stages[job.stage];
    if (!this.#side?.snapshots.take(job, { file, plan })) void this.#requests.upload(job, file);
  }

  #connect(peers: { peer: string; initiator: boolean }[]): void {
    const { iceServers } = this.facts.welcome!.config;
    for (const { peer, initiator } of peers) this.#host!.connect(peer, { initiator, iceServers });
  }

  /** A learner's state: on the bench first, then the core is told. */
  async #fetchOffer(wanted: PeerEffect & { do: "fetch" }): Promise<void> {
    const { do: _, ...which } = wanted;
    let problem: string | null = null;
    try {
      const bytes = await this.#sources!.learn(wanted.step, wanted.file);
      this.holder?.offer(wanted.stage, bytes);
    } catch (error) {
      problem = messageOf(error);
    }
    this.#feed({ type: "fetched", ...which, problem });
  }

  #send(out: Parameters<Holder["frame"]>[0]): void {
    const begun = performance.now();
    const { header, payload } = this.holder!.frame(out);
    const incarnation = this.facts.welcome!.incarnation;
    const bytes = encodeFrame({ ...header, incarnation }, payload);
    if (out.recovery) this.#recoveryBytes += bytes.length;
    if (out.to === this.facts.peer) return queueMicrotask(() => this.#onFrame(out.to, bytes));
    try {
      this.#host!.send(out.to, bytes, out.kind === "part" || out.kind === "tied" ? 1 : 0);
      this.#measures.sent(out, performance.now() - begun);
    } catch (error) {
      // A closed link reports itself; an overflowing one must be ended so that both sides notice.
      if (error instanceof ShoalError && error.code === "link-overflow") {
        this.#host!.close(out.to, error.message);
      } else if (!(error instanceof ShoalError)) throw error;
    }
  }

  async #work(job: Job): Promise<void> {
    const { gate } = this.#options;
    const due = performance.now();
    if (isWork(job)) await gate?.before();
    if (this.#over) return;
    const begun = performance.now();
    this.#busy = true;
    try {
      const { file, ...result } = await this.holder!.run(job);
      // Waiting for a page of the text is no work, and must not make plans believe in a slow computer.
      const worked = begun + this.holder!.takeWaitMs(), busyMs = performance.now() - worked;
      if (isWork(job)) gate?.after(busyMs);
      // Rests count: whoever plans needs to know what this peer really takes.
      const stretch = 1 / (gate?.duty ?? 1);
      this.#stepBusyMs += busyMs * stretch;
      const span = { due, begun: worked, ended: worked + busyMs, stretch };
      this.#measures.ran(job, span, this.holder!.instances());
      if (file !== undefined && job.job === "export") this.#exported(job, file);
      await this.#side!.settle();
      this.#feed({ type: "finished", job, result });
      const trace = this.core === null ? null : this.#measures.traceDue(this.core, performance.now());
      if (trace !== null) this.say(trace);
      await this.#side!.afterJob(busyMs);
    } catch (error) {
      this.#fail(error);
    } finally {
      this.#busy = false;
    }
  }

  /** Goes out at once with the newest figures there are: those of a tab come from its page, which may be busy. */
  #heartbeat(): void {
    void this.#host?.stats().then((links) => {
      this.facts.links = links;
      this.#measures.observeLinks(links);
      this.#side?.tick(links);
    });
    const { facts, core, holder } = this;
    const desk = this.#side?.snapshots.desk ?? null;
    const figures = this.#measures.figures(core?.state.view?.cut, facts.links);
    this.say(heartbeatOf({ facts, core, holder, desk, recoveryBytes: this.#recoveryBytes, figures }));
    this.#options.onChange();
  }

  #fail(error: unknown): void {
    const known = error instanceof ShoalError ? error.code : "internal";
    const code = isOutOfMemory(error) ? "out-of-memory" : known;
    this.close(code === "device-lost" ? "device-lost" : "failed", code, messageOf(error));
  }
}
