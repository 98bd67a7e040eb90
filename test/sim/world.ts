// A whole swarm in one thread: the coordinator's process, the peers' cores with a real engine and the real exact core, under a
// virtual clock. Not a test itself, and no faults of its own: faults.ts draws them, network.ts and disk.ts carry them out.
// With coordinator.ts the files that call the cores and the holder. Everything drawn at random comes from one seed.
import type { RunCore } from "../../coordinator/core/run_core.ts";
import type { RunEffect } from "../../coordinator/core/run_state.ts";
import { PeerCore } from "../../peer/core/peer_core.ts";
import type { Job, JobResult, PeerEffect, PeerEvent } from "../../peer/core/peer_state.ts";
import { Holder } from "../../peer/holder.ts";
import type { CoordinatorMessage, PeerMessage, StateFile } from "../../peer/wire/control.ts";
import { ShoalError } from "../../peer/wire/errors.ts";
import { isSnapshotOrder } from "../../peer/wire/snapshots.ts";
import { type Random, seededRandom } from "../support/random.ts";
import { Clock } from "./clock.ts";
import { CoordinatorProcess } from "./coordinator.ts";
import { changed } from "./forgery.ts";
import { disconnect, handOver, keepingOf, type KeepingWorld, orderSnapshots } from "./keeping.ts";
import { KNOCK_MS, type KnockingWorld, loseSocket } from "./knocking.ts";
import { Links } from "./links.ts";
import { asBytes, COORDINATOR, Network, type Path } from "./network.ts";
import { isSumOfLogged } from "./probe.ts";
import { answerProbe, measuredOf } from "./probing.ts";
import { fallAsleep, thaw, wake } from "./sleep.ts";
import { beatOf } from "./speeds.ts";
import type { CoordinatorCrash, Observer, Sent, SimPeer, WorldOptions } from "./types.ts";
import { orderText, settleTexts, writerOf } from "./writing.ts";
import { createCpuBeside } from "../support/frozen_base.ts";

/** Virtual milliseconds after which a run that has not finished counts as stuck. */
const TIME_MAX = 600_000;
/** Heartbeat and tick of the virtual shells, ms. */
const BEAT_MS = 500;
const FOR_CORES = ["view", "open", "commit", "snapshot", "adopt", "send-total", "state"];

export class World {
  readonly peers = new Map<string, SimPeer>();
  readonly random: Random;
  readonly clock = new Clock();
  readonly network: Network;
  readonly links: Links;
  readonly process: CoordinatorProcess;
  readonly reports: RunEffect[] = [];
  readonly observers: Observer[] = [];
  readonly options: WorldOptions;
  /** Most frames that any core refused. */
  fenced = 0;
  /** By what all timers are longer than they should be. */
  timerScale = 1;
  /** Changes what the coordinator says, as a faulty coordinator would. */
  tamper: (message: CoordinatorMessage) => CoordinatorMessage = (message) => message;
  /** Orders or files may be wrong in this world; what peers said when they left because of it. */
  mayRefuse = false;
  readonly refusals: string[] = [];
  /** So many of the next totals that holders send to others are wrong, as from a faulty memory. */
  wrongTotals = 0;
  /** The next sum for this peer whose total somebody has logged already arrives with a wrong bit. */
  misled = "";
  #joined = 0;
  readonly #hooks: KeepingWorld & KnockingWorld;

  constructor(options: WorldOptions) {
    this.options = options;
    this.random = seededRandom(options.seed);
    this.network = new Network(this.clock, this.random);
    this.links = new Links(this, (id, other, open) => this.#onLink(id, other, open));
    const { clock, random, observers } = this;
    this.process = new CoordinatorProcess({
      ...{ config: options.config, spec: options.spec, clock, random, observers },
      onEffect: (effect) => this.#carryOut(effect),
      onDown: (lose) => this.#onDown(lose),
    });
    this.#hooks = {
      ...{ clock, random, options, network: this.network, links: this.links, process: this.process },
      ...{ spec: options.spec, peers: this.peers },
      wake: (id, run) => void this.#wake(id, run),
      say: (id, message) => this.#say(id, message),
      feed: (peer, event) => void this.#feed(peer, event),
      rejoin: (peer) => this.#rejoin(peer),
      toCoordinator: (event) => this.process.take(event),
    };
    for (let i = 0; i < options.peers; i++) this.join();
    this.#every(BEAT_MS, () => this.process.take({ type: "tick" }));
  }

  get coordinator(): RunCore {
    return this.process.core;
  }

  /** Runs until the run is finished (true), or nothing more can happen or `untilMs` is reached (false). */
  async run(untilMs = TIME_MAX): Promise<boolean> {
    while (this.clock.now < untilMs && await this.clock.step()) {
      const { status } = this.coordinator.state;
      if (status === "finished" || status === "failed") return status === "finished";
    }
    return false;
  }

  /** Lets what is under way arrive: a holder may be a commit behind when the run ends. */
  async drain(ms: number): Promise<void> {
    for (const end = this.clock.now + ms; this.clock.now < end && await this.clock.step(););
  }

  at(ms: number, run: () => void): void {
    this.clock.after(ms - this.clock.now, run);
  }

  /** A new peer says hello; it is measured a little later. */
  join(): string {
    const id = `p${this.#joined++}`;
    const { config, spec, corpus, createEngine = createCpuBeside } = this.options;
    const fetchState = (step: number, file: StateFile) => {
      const bytes = this.process.file(step, file);
      return bytes ? Promise.resolve(bytes) : Promise.reject(new Error(`no state ${step}/${file.stage}`));
    };
    const holder = new Holder({ self: id, config, spec, corpus, createEngine, fetchState });
    const core = new PeerCore(id, config, spec);
    const fresh = { dead: false, mute: false, stalled: null, away: null, seen: null };
    const side = { snapshots: keepingOf(this.#hooks, id), writer: writerOf(this.#hooks, id) };
    this.peers.set(id, { id, core, holder, ...fresh, ...side });
    this.clock.after(this.random() * 50, () => this.#greet(id));
    return id;
  }

  /**
   * The process is gone; its socket and links close a little later, at each end separately. What it has sent arrives, unless
   * the power went too: then what was under way over the `lose` paths is lost.
   */
  crash(id: string, lose: readonly Path[] = []): void {
    const peer = this.peers.get(id);
    if (peer === undefined || peer.dead) return;
    this.#end(peer);
    if (lose.length > 0) this.network.lose(({ from, path }) => from === id && lose.includes(path));
    this.clock.after(
      5 + this.random() * 200,
      () => this.process.take({ type: "gone", peer: id, reason: "closed" }),
    );
  }

  /** The link between two living peers breaks; each end notices in its own time, frames under way are lost. */
  cut(a: string, b: string, lateMs?: number): void {
    this.links.cut(a, b, lateMs);
  }

  /** What the organizer presses on the admin page. */
  press(action: "pause" | "resume" | "stop"): void {
    this.process.take({ type: "admin", action });
  }

  /** Heartbeats are lost but the peer goes on computing and sending: a throttled tab, a one-way partition. */
  mute(id: string): void {
    if (this.peers.has(id)) this.peers.get(id)!.mute = true;
  }

  /** SIGSTOP now, SIGCONT later: what reaches the peer meanwhile is dealt with when it thaws. */
  freeze(id: string, ms: number): void {
    if (fallAsleep(this.peers.get(id))) this.clock.after(ms, () => thaw(this.peers.get(id)!));
  }

  /** What the contributor of a peer asks for. */
  wish(id: string, message: PeerMessage & { type: "leave" | "pause" }): void {
    if (!this.peers.get(id)?.dead) this.#say(id, message);
  }

  /** kill -9 of the coordinator, now or at a chosen effect; it comes back with what its disk holds. */
  crashCoordinator(crash: CoordinatorCrash): void {
    this.process.crash(crash);
  }

  /** All faults end: what is frozen thaws, clogs and full disks open, clocks are right again. */
  heal(): void {
    this.network.heal();
    for (const peer of this.peers.values()) {
      peer.mute = false;
      void thaw(peer);
    }
    this.process.heal();
    this.timerScale = 1;
  }

  /** A frame as if it came from `from`, over no link: a replay, or what an evicted process still sends. */
  inject(frame: Sent, now = false): void {
    if (now) this.#arrive(frame);
    else this.network.send(frame.from, frame.to, "frames", () => this.#arrive(frame));
  }

  /** A control message that arrives once more, or long after its sender is gone. */
  injectControl(peer: string, message: PeerMessage): void {
    this.process.take({ type: "message", peer, message });
  }

  /** Peers on their way in, or on their way out without the coordinator knowing. */
  get joining(): number {
    const known = this.coordinator.state.peers;
    return [...this.peers.values()].filter((peer) => !peer.dead && known[peer.id] === undefined).length;
  }

  alive(): SimPeer[] {
    return [...this.peers.values()].filter((peer) => !peer.dead && this.coordinator.state.peers[peer.id]);
  }

  #greet(id: string): void {
    if (this.peers.get(id)!.dead) return;
    if (!this.process.up) return this.clock.after(KNOCK_MS * (0.5 + this.random()), () => this.#greet(id));
    const info = { id, runtime: "deno" as const, adapter: "simulated", engine: "cpu", name: id };
    this.process.take({ type: "join", peer: info });
    if (!this.process.up) return this.#greet(id); // It died of it, and whoever comes next has not heard of this peer.
    const peer = this.peers.get(id)!;
    peer.seen = { epoch: this.process.epoch, committed: 0 };
    this.#say(id, { type: "measured", ...measuredOf(this.options, this.random) });
    this.#every(BEAT_MS, () => this.#beat(id), () => this.peers.get(id)!.dead);
  }

  #end(peer: SimPeer): void {
    peer.dead = true;
    peer.snapshots.close();
    peer.writer.clear();
    peer.stalled = null;
    this.links.end(peer.id);
  }

  #onDown(lose: boolean): void {
    this.network.lose(({ from, to, path }) =>
      to === COORDINATOR || (lose && from === COORDINATOR && path === "control")
    );
    // The end of the stream comes behind what was said.
    for (const { id, seen } of this.peers.values()) {
      if (seen !== null) this.#tell(id, (peer) => loseSocket(this.#hooks, peer));
    }
  }

  /** Whoever cannot go on as who it was comes back as a new peer. */
  #rejoin(peer: SimPeer): void {
    this.#end(peer);
    this.join();
  }

  #beat(id: string): void {
    const peer = this.peers.get(id)!;
    if (peer.dead || peer.mute || peer.stalled !== null) return;
    this.#say(id, { type: "heartbeat", ...beatOf(this, peer) });
  }

  #say(id: string, message: PeerMessage): void {
    const peer = this.peers.get(id)!;
    if (peer.away !== null) return void (message.type !== "heartbeat" && peer.away.push(message));
    for (const observer of this.observers) observer.said?.(id, message);
    const deliver = () => this.process.take({ type: "message", peer: id, message });
    this.network.send(id, COORDINATOR, "control", deliver);
  }

  #carryOut(effect: RunEffect): void {
    this.reports.push(effect);
    if (effect.do !== "send") return;
    const [message, { epoch }] = [this.tamper(effect.message), this.process];
    this.#tell(effect.peer, (peer) => this.#fromCoordinator(peer, message, epoch));
  }

  /** Over the socket from the coordinator to a peer, in order. */
  #tell(id: string, arrive: (peer: SimPeer) => void): void {
    const deliver = () => void this.#wake(id, () => arrive(this.peers.get(id)!));
    this.network.send(COORDINATOR, id, "control", deliver);
  }

  #fromCoordinator(peer: SimPeer, message: CoordinatorMessage, epoch: string): void {
    const { seen } = peer;
    if (message.type === "view" && seen?.epoch !== epoch) peer.seen = { epoch, committed: 0 };
    else if (message.type === "commit" && seen) seen.committed = Math.max(seen.committed, message.step + 1);
    if (FOR_CORES.includes(message.type)) this.#feed(peer, message as PeerEvent);
    if (isSnapshotOrder(message)) orderSnapshots(this.#hooks, peer, message);
    if (message.type === "write") orderText(peer, message.order);
    if (message.type === "probe") answerProbe(this.#hooks, peer, message.peer);
    // Whoever asked to leave may go; at the run's end all stay, to be looked at.
    if (message.type === "done" && this.coordinator.state.status !== "finished") return this.#end(peer);
    if (message.type !== "kicked") return;
    if (message.mayReturn) this.#rejoin(peer);
    else this.#end(peer);
  }

  #wake(id: string, run: () => void | Promise<void>): void | Promise<void> {
    return wake(this.peers.get(id), run);
  }

  #feed(peer: SimPeer, event: PeerEvent): boolean {
    if (peer.dead) return false;
    let effects: PeerEffect[] = [];
    try {
      effects = peer.core.step(event);
    } catch (error) {
      this.#refuse(peer, error as Error);
    }
    for (const effect of effects) this.#perform(peer, effect);
    this.fenced = Math.max(this.fenced, peer.core.state.fenced);
    for (const observer of this.observers) observer.peer?.(peer, event);
    return effects.some((effect) => effect.do === "keep");
  }

  #perform(peer: SimPeer, effect: PeerEffect): void {
    if (effect.do === "say") this.#say(peer.id, effect.message);
    else if (effect.do === "begin") peer.holder.begin(effect.stage, effect.pass, effect.step);
    else if (effect.do === "release") peer.holder.release(effect.stage);
    else if (effect.do === "fetch") this.#fetch(peer, effect);
    else if (effect.do === "disconnect") {
      for (const other of effect.peers) disconnect(this.#hooks, peer, other);
    } else if (effect.do === "unload") peer.holder.unload();
    else if (effect.do === "connect") { for (const it of effect.peers) this.links.connect(peer.id, it.peer); }
    else if (effect.do === "send") this.#send(peer, effect.frame);
    else if (effect.do === "job") this.#start(peer, effect.job, 1 + this.random() * 9);
  }

  #start(peer: SimPeer, job: Job, ms: number): void {
    this.clock.after(ms, () => this.#wake(peer.id, () => this.#work(peer, job)));
  }

  async #work(peer: SimPeer, job: Job): Promise<void> {
    // A request that a killed coordinator cut off is made again.
    if (job.job === "load" && job.source && !this.process.up) return this.#start(peer, job, KNOCK_MS);
    try {
      const result = await peer.holder.run(job);
      await settleTexts(peer);
      if (!peer.dead) this.#onFinished(peer, job, result);
    } catch (error) {
      this.#refuse(peer, error as Error);
    }
  }

  /** A peer whose order or file cannot be right leaves rather than compute on; where none is expected it is our mistake. */
  #refuse(peer: SimPeer, error: Error): void {
    if (!this.mayRefuse || !(error instanceof ShoalError)) throw error;
    this.refusals.push(error.message);
    this.crash(peer.id);
    this.join();
  }

  #onFinished(peer: SimPeer, job: Job, result: JobResult): void {
    for (const observer of this.observers) observer.finished?.(peer, job, result);
    if (result.file !== undefined && job.job === "export") {
      handOver(this.#hooks, peer, { job, file: result.file });
    }
    this.#feed(peer, { type: "finished", job, result });
  }

  #fetch(peer: SimPeer, effect: PeerEffect & { do: "fetch" }): void {
    const { do: _, ...which } = effect;
    this.clock.after(20 + this.random() * 200, () =>
      this.#wake(peer.id, () => {
        const bytes = this.process.file(effect.step, effect.file);
        if (bytes !== null) peer.holder.offer(effect.stage, bytes);
        this.#feed(peer, { type: "fetched", ...which, problem: bytes ? null : "it is not there" });
      }));
  }

  #onLink(id: string, other: string, open: boolean): void {
    const event = { type: "link" as const, peer: other, open, reason: open ? "" : "closed" };
    const peer = this.peers.get(id)!;
    this.#wake(id, () => {
      this.#feed(peer, event);
      for (const side of [peer.snapshots, peer.writer]) side.link(other, open);
    });
  }

  #send(peer: SimPeer, out: Parameters<Holder["frame"]>[0]): void {
    const { header, payload } = peer.holder.frame(out);
    const wrong = header.kind === "total" && this.wrongTotals-- > 0;
    const sent = { ...header, incarnation: 1 };
    const frame = {
      ...{ from: peer.id, to: out.to, header: sent, wrong },
      payload: wrong ? changed(payload, header.codec) : payload,
    };
    if (out.to === peer.id) return this.clock.after(0, () => this.#arrive(frame));
    for (const observer of this.observers) observer.sent?.(frame);
    if (!this.links.carries(peer.id, out.to)) return;
    this.network.send(peer.id, out.to, "frames", () => this.#arrive(frame));
  }

  #arrive(sent: Sent): void {
    this.#wake(sent.to, () => {
      const to = this.peers.get(sent.to)!;
      const { header, payload: right } = this.options.bytes === false ? sent : asBytes(sent);
      const misleads = to.id === this.misled && isSumOfLogged(this.coordinator.state, header);
      if (misleads) this.misled = "";
      const payload = misleads ? changed(right, header.codec) : right;
      const expected = to.core.expects(sent.from, header);
      const problem = expected ? to.holder.check(header, payload) : null;
      if (problem !== null && sent.forged) return;
      if (problem !== null && this.mayRefuse) return this.cut(sent.from, sent.to);
      if (problem !== null) throw new Error(`payload refused: ${problem}`);
      const kept = this.#feed(to, { type: "frame", from: sent.from, header });
      if (!kept) return;
      to.holder.keep(header, payload, sent.from);
      for (const observer of this.observers) observer.kept?.(to, sent);
    });
  }

  #every(ms: number, run: () => void, ended = () => false): void {
    this.clock.after(ms * this.timerScale, () => {
      if (ended()) return;
      run();
      this.#every(ms, run, ended);
    });
  }
}
