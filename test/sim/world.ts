// A whole swarm in one thread: the coordinator's core, peers' cores with real CPU kernels and the real exact core, and a
// network of random delays, under a virtual clock. Not a test itself. Everything drawn at random comes from one seed.
import { RunCore } from "../../coordinator/core/run_core.ts";
import type { RunEffect, RunEvent } from "../../coordinator/core/run_state.ts";
import { PeerCore } from "../../peer/core/peer_core.ts";
import type { PeerEffect, PeerEvent } from "../../peer/core/peer_state.ts";
import { createCpuEngine } from "../../peer/engine/cpu.ts";
import type { StageBuild, StageEngine } from "../../peer/engine/engine.ts";
import { Holder } from "../../peer/holder.ts";
import type { Corpus } from "../../peer/model/data.ts";
import type { CoordinatorMessage, PeerMessage } from "../../peer/wire/control.ts";
import { decodeFrame, encodeFrame } from "../../peer/wire/frame.ts";
import type { ModelSpec, RunConfig } from "../../peer/wire/run.ts";
import { type Random, seededRandom } from "../support/random.ts";

/** Virtual milliseconds after which a run that has not finished counts as stuck. */
const TIME_MAX = 600_000;
/** Heartbeat and tick of the virtual shells, ms. */
const BEAT_MS = 500;

export interface WorldOptions {
  config: RunConfig;
  spec: ModelSpec;
  corpus: Corpus;
  seed: number;
  peers: number;
  /** Default: the CPU engine. */
  createEngine?: (build: StageBuild) => Promise<StageEngine>;
}

interface SimPeer {
  id: string;
  core: PeerCore;
  holder: Holder;
  dead: boolean;
  mute: boolean;
  links: Set<string>;
}

function pairOf(a: string, b: string): string {
  return a < b ? `${a}/${b}` : `${b}/${a}`;
}

function createCpu(build: StageBuild): Promise<StageEngine> {
  return Promise.resolve(createCpuEngine(build));
}

export class World {
  readonly coordinator: RunCore;
  readonly peers = new Map<string, SimPeer>();
  readonly random: Random;
  readonly reports: RunEffect[] = [];
  now = 0;
  /** Highest number of frames any core refused. */
  fenced = 0;
  #queue: { at: number; order: number; run: () => void | Promise<void> }[] = [];
  #order = 0;
  #fifo = new Map<string, number>();
  #files = new Map<string, { bytes: Uint8Array; step: number }>();
  #joined = 0;
  /** When the link of a pair was last cut: frames sent before and not yet there never arrive. */
  #cuts = new Map<string, number>();
  readonly #o: WorldOptions;

  constructor(options: WorldOptions) {
    this.#o = options;
    this.random = seededRandom(options.seed);
    this.coordinator = new RunCore(options.config, options.spec);
    for (let i = 0; i < options.peers; i++) this.join();
    this.#every(BEAT_MS, () => this.#toCoordinator({ type: "tick" }));
  }

  /** Runs until the run is finished (true) or nothing more can happen (false). */
  async run(): Promise<boolean> {
    while (this.#queue.length > 0 && this.now < TIME_MAX) {
      const next = this.#pop();
      this.now = next.at;
      await next.run();
      if (this.coordinator.state.status === "finished") return true;
    }
    return false;
  }

  at(ms: number, run: () => void): void {
    this.#after(ms - this.now, run);
  }

  /** A new peer says hello; it is measured a little later. */
  join(): string {
    const id = `p${this.#joined++}`;
    const { config, spec, corpus } = this.#o;
    const fetchState = (step: number, file: { stage: number }) => {
      const found = this.#files.get(`${step}/${file.stage}`);
      return found
        ? Promise.resolve(found.bytes)
        : Promise.reject(new Error(`no state ${step}/${file.stage}`));
    };
    const createEngine = this.#o.createEngine ?? createCpu;
    const holder = new Holder({ self: id, config, spec, corpus, createEngine, fetchState });
    const core = new PeerCore(id, config, spec);
    this.peers.set(id, { id, core, holder, dead: false, mute: false, links: new Set() });
    this.#after(this.random() * 50, () => {
      const info = { id, runtime: "deno" as const, adapter: "simulated", engine: "cpu", name: id };
      this.#toCoordinator({ type: "join", peer: info });
      this.#say(id, { type: "measured", blockMs: 5 + this.random() * 20, memoryBytes: 1e9 });
      this.#every(BEAT_MS, () => this.#beat(id));
    });
    return id;
  }

  /** The process is gone; its socket and links close a little later, at each end separately. */
  crash(id: string): void {
    const peer = this.peers.get(id);
    if (peer === undefined || peer.dead) return;
    peer.dead = true;
    this.#after(
      5 + this.random() * 200,
      () => this.#toCoordinator({ type: "gone", peer: id, reason: "closed" }),
    );
    for (const other of peer.links) {
      this.#after(5 + this.random() * 300, () => this.#link(other, id, false));
    }
  }

  /** The link between two living peers breaks; each end notices in its own time, frames under way are lost. */
  cut(a: string, b: string): void {
    this.#cuts.set(pairOf(a, b), this.now);
    for (const [id, other] of [[a, b], [b, a]] as const) {
      this.#after(5 + this.random() * 200, () => this.#link(id, other, false));
    }
  }

  /** What the organizer presses on the admin page. */
  press(action: "pause" | "resume" | "stop"): void {
    this.#toCoordinator({ type: "admin", action });
  }

  /** Heartbeats are lost but the peer goes on computing and sending: a throttled tab, a one-way partition. */
  mute(id: string): void {
    const peer = this.peers.get(id);
    if (peer !== undefined) peer.mute = true;
  }

  /** What the contributor of a peer asks for. */
  wish(id: string, message: PeerMessage & { type: "leave" | "pause" }): void {
    if (!this.peers.get(id)?.dead) this.#say(id, message);
  }

  /** Training loss of every step, the last value where a step was done again. */
  losses(): number[] {
    const losses: number[] = [];
    for (const effect of this.reports) {
      if (effect.do === "report" && effect.line.event === "step") {
        losses[effect.line.step - 1] = effect.line["train/loss"];
      }
    }
    return losses;
  }

  alive(): SimPeer[] {
    return [...this.peers.values()].filter((peer) => !peer.dead && this.coordinator.state.peers[peer.id]);
  }

  #beat(id: string): void {
    const peer = this.peers.get(id)!;
    if (peer.dead || peer.mute) return;
    const zeros = { stepMs: 0, bytesUp: 0, bytesDown: 0, direct: 0, relayed: 0, hidden: false };
    this.#say(id, { type: "heartbeat", ...zeros });
  }

  #say(id: string, message: PeerMessage): void {
    const peer = this.peers.get(id)!;
    if (peer.mute && message.type !== "heartbeat" && this.coordinator.state.peers[id] === undefined) return;
    this.#deliver(`${id}>C`, () => this.#toCoordinator({ type: "message", peer: id, message }));
  }

  #toCoordinator(event: RunEvent): void {
    for (const effect of this.coordinator.step(event, this.now)) this.#carryOut(effect);
  }

  #carryOut(effect: RunEffect): void {
    this.reports.push(effect);
    if (effect.do === "send") {
      const { peer, message } = effect;
      this.#deliver(`C>${peer}`, () => this.#fromCoordinator(peer, message));
    } else if (effect.do === "checkpoint" && effect.final) {
      const { step } = effect.source;
      this.#after(1, () => this.#toCoordinator({ type: "checkpointed", step, path: "memory", bytes: 0 }));
    } else if (effect.do === "sample") {
      this.#after(1, () => this.#toCoordinator({ type: "sampled", step: effect.source.step, text: "" }));
    } else if (effect.do === "forget") {
      for (const [key, file] of this.#files) if (file.step < effect.before) this.#files.delete(key);
    }
  }

  #fromCoordinator(id: string, message: CoordinatorMessage): void {
    const known = ["view", "open", "commit", "snapshot"];
    if (known.includes(message.type)) this.#feed(id, message as PeerEvent);
    if (message.type === "kicked") this.peers.get(id)!.holder.unload();
  }

  #feed(id: string, event: PeerEvent): boolean {
    const peer = this.peers.get(id)!;
    if (peer.dead) return false;
    const effects = peer.core.step(event);
    for (const effect of effects) this.#perform(peer, effect);
    this.fenced = Math.max(this.fenced, peer.core.state.fenced);
    return effects.some((effect) => effect.do === "keep");
  }

  #perform(peer: SimPeer, effect: PeerEffect): void {
    if (effect.do === "say") this.#say(peer.id, effect.message);
    else if (effect.do === "round") peer.holder.round(effect.pass, effect.step);
    else if (effect.do === "unload") peer.holder.unload();
    else if (effect.do === "connect") { for (const it of effect.peers) this.#connect(peer, it.peer); }
    else if (effect.do === "send") this.#send(peer, effect.frame);
    else if (effect.do === "job") this.#after(1 + this.random() * 9, () => this.#work(peer, effect.job));
  }

  async #work(peer: SimPeer, job: Parameters<Holder["run"]>[0]): Promise<void> {
    if (peer.dead) return;
    const result = await peer.holder.run(job);
    if (result.file !== undefined && job.job === "export") this.#store(peer, job, result.file);
    this.#feed(peer.id, { type: "finished", job, result });
  }

  #store(
    peer: SimPeer,
    job: { gen: number; step: number; stage: number },
    file: { bytes: Uint8Array; hash: string },
  ) {
    const plan = peer.core.state.instances.find((it) => it.plan.index === job.stage)?.plan;
    if (plan === undefined) return;
    const { firstLayer, endLayer, embed, head } = plan;
    const info = {
      stage: job.stage,
      firstLayer,
      endLayer,
      embed,
      head,
      bytes: file.bytes.length,
      hash: file.hash,
    };
    this.#deliver(`${peer.id}>store`, () => {
      this.#files.set(`${job.step}/${job.stage}`, { bytes: file.bytes, step: job.step });
      this.#toCoordinator({ type: "stored", gen: job.gen, step: job.step, file: info });
    });
  }

  #connect(peer: SimPeer, other: string): void {
    if (peer.links.has(other)) return this.#link(peer.id, other, true);
    this.#after(10 + this.random() * 100, () => {
      if (peer.dead || this.peers.get(other)?.dead) return this.#link(peer.id, other, false);
      peer.links.add(other);
      this.#link(peer.id, other, true);
    });
  }

  #link(id: string, other: string, open: boolean): void {
    if (!open) this.peers.get(id)?.links.delete(other);
    this.#after(
      0,
      () => void this.#feed(id, { type: "link", peer: other, open, reason: open ? "" : "closed" }),
    );
  }

  #send(peer: SimPeer, out: Parameters<Holder["frame"]>[0]): void {
    const { header, payload } = peer.holder.frame(out);
    const bytes = encodeFrame({ ...header, incarnation: 1 }, payload);
    const to = this.peers.get(out.to)!;
    const sent = this.now;
    const arrive = () => {
      if ((this.#cuts.get(pairOf(peer.id, to.id)) ?? -1) >= sent) return;
      const frame = decodeFrame(bytes);
      if (!frame.ok) throw new Error(`own frame refused: ${frame.reason}`);
      const expected = to.core.expects(peer.id, frame.value.header);
      const problem = expected ? to.holder.check(frame.value.header, frame.value.payload) : null;
      if (problem !== null) throw new Error(`own payload refused: ${problem}`);
      const kept = this.#feed(to.id, { type: "frame", from: peer.id, header: frame.value.header });
      if (kept) to.holder.keep(frame.value.header, frame.value.payload, peer.id);
    };
    if (out.to === peer.id) this.#after(0, arrive);
    else this.#deliver(`${peer.id}>${out.to}`, arrive);
  }

  /** Random delay, first in first out per directed pair. */
  #deliver(pair: string, run: () => void): void {
    const at = Math.max(this.now + 2 + this.random() * 40, (this.#fifo.get(pair) ?? 0) + 0.001);
    this.#fifo.set(pair, at);
    this.#after(at - this.now, run);
  }

  #every(ms: number, run: () => void): void {
    this.#after(ms, () => {
      run();
      this.#every(ms, run);
    });
  }

  #after(ms: number, run: () => void | Promise<void>): void {
    this.#queue.push({ at: this.now + Math.max(0, ms), order: this.#order++, run });
  }

  #pop() {
    let best = 0;
    for (let i = 1; i < this.#queue.length; i++) {
      const a = this.#queue[i]!;
      const b = this.#queue[best]!;
      if (a.at < b.at || (a.at === b.at && a.order < b.order)) best = i;
    }
    return this.#queue.splice(best, 1)[0]!;
  }
}
