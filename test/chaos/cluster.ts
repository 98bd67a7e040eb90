// A whole run in real processes: coordinator, Deno peers and tabs, on loopback or in namespaces of a test network. It can be
// hurt in every way that matters and it can be watched; it judges nothing. Whatever it starts ends with its guardian.
import { join } from "node:path";
import { Guardian } from "./guardian.ts";
import { type Member, Network } from "./network.ts";
import { type JsonLine, PATIENCE_MS, Proc, shoalProc } from "./process.ts";
import type { RunStatus } from "../../peer/wire/status.ts";
import { Tab, type TabEngineChoice, Tabs } from "./tabs.ts";

/**
 * A model whose steps take milliseconds on the CPU engine, exact on the wire, with everything that a run does: micro-batches,
 * two stages, evaluations, snapshots. The learning rate's schedule is fixed so that the run may stop anywhere.
 */
export const CHAOS_CONFIG: Readonly<Record<string, unknown>> = {
  ...{ n_layer: 2, n_head: 2, n_kv_head: 1, n_embd: 16, n_inner: 24, block_size: 8, batch_size: 2 },
  ...{ gradient_accumulation_steps: 4, warmup_iters: 5, lr_decay_iters: 500, max_iters: 1_000_000 },
  ...{ eval_interval: 200, eval_iters: 1, sample_chars: 0, n_stage: 2, min_peers: 2 },
  ...{ snapshot_interval: 50, checkpoint_interval: 1_000_000 },
  ...{ codec_forward: "raw32", codec_backward: "raw32" },
};

/** Steps in which a peer that has just come would be given a stage, if it is to have one. */
const STEPS_SETTLED = 40;
/** A coordinator that does not answer by then is part of the failure that is being explained. */
const STATUS_MS = 5_000;
/** Events of the run's log that a failure is told with. */
const STATUS_EVENTS = 20;

export interface ClusterOptions {
  /** Changes to CHAOS_CONFIG. */
  config?: Record<string, unknown>;
  engine?: TabEngineChoice;
  /** A network of its own, one namespace each for the coordinator, every peer and the browser; else all is on loopback. */
  network?: boolean;
}

/** One step as the coordinator committed it. */
export interface StepFact {
  step: number;
  loss: number;
  peers: number;
  /** When this process heard of it, performance.now(). */
  at: number;
}

export class Cluster implements AsyncDisposable {
  readonly guardian: Guardian;
  readonly folder: string;
  readonly steps: StepFact[] = [];
  /** Steps that were committed twice: what a departure cost. */
  stepsLost = 0;
  /** Everything else that any coordinator of the run said, in order. */
  readonly events: JsonLine[] = [];
  readonly peers: Proc[] = [];
  readonly tabs: Tab[] = [];
  /** Peer processes that ended otherwise than by a clean leave or our own SIGKILL, with what they had said. */
  readonly failures: string[] = [];
  /**
   * Peers that ended in a segmentation fault: the native WebRTC addon's, seen rarely when many links close at once. The run
   * takes it for a kill; it is told, and more than one is a failure.
   */
  readonly addonCrashes: string[] = [];
  coordinator!: Proc;
  joinLink = "";
  adminLink = "";
  /** Null on loopback. */
  readonly network: Network | null;
  readonly #options: ClusterOptions;
  readonly #members = new Map<Proc, Member>();
  /** Places in the network whose processes have ended. */
  readonly #free: Member[] = [];
  #home: Member | null = null;
  #highest = 0;
  #browser: Promise<Tabs> | null = null;
  readonly #waiting = new Set<() => void>();
  #count = 0;

  private constructor(
    parts: { guardian: Guardian; folder: string; network: Network | null },
    options: ClusterOptions,
  ) {
    this.guardian = parts.guardian;
    this.folder = parts.folder;
    this.network = parts.network;
    this.#options = options;
  }

  static async start(options: ClusterOptions = {}): Promise<Cluster> {
    const guardian = new Guardian();
    try {
      const network = options.network ? await Network.create(guardian) : null;
      const cluster = new Cluster(
        { guardian, network, folder: await guardian.folder("shoal-chaos-") },
        options,
      );
      await cluster.#begin();
      return cluster;
    } catch (error) {
      await guardian[Symbol.asyncDispose]();
      throw error;
    }
  }

  async #begin(): Promise<void> {
    this.#home = await this.network?.join() ?? null;
    const config = { ...CHAOS_CONFIG, ...this.#options.config };
    const flags = Object.entries(config).map(([key, value]) => `--${key}=${value}`);
    await this.#serve("coordinator", ["--out_dir", this.runFolder, ...flags]);
  }

  get runFolder(): string {
    return join(this.folder, "run");
  }

  get step(): number {
    return this.steps.at(-1)?.step ?? 0;
  }

  /** Places in the network for peers to come, so that what is between them holds from their first word on. */
  async reserve(count: number): Promise<Member[]> {
    for (let i = 0; i < count; i++) this.#free.push(await this.network!.join());
    return this.#free.slice(-count);
  }

  /** A peer process; resolves when the coordinator has let it in. */
  async addPeer(): Promise<Proc> {
    const name = `peer ${++this.#count}`;
    const member = this.#free.pop() ?? await this.network?.join();
    const joined = this.#joinOf("deno");
    const engine = this.#options.engine ?? "cpu";
    const proc = shoalProc("peer", ["--join", this.joinLink, "--name", name, "--engine", engine], {
      ...{ name, guardian: this.guardian },
      ...spaceOf(member),
    });
    this.peers.push(proc);
    if (member !== undefined) this.#members.set(proc, member);
    void proc.ended.then((status) => this.#peerEnded(proc, status));
    const died = proc.ended.then(() => {
      throw new Error(`${name} ended before it joined:\n${proc.said()}`);
    });
    await Promise.race([joined, died]);
    died.catch(() => {});
    return proc;
  }

  /** A tab that has pressed its button; resolves when the coordinator has let it in. */
  async addTab(): Promise<Tab> {
    this.#browser ??= this.#openBrowser();
    const joined = this.#joinOf("tab");
    const tab = await (await this.#browser).open();
    this.tabs.push(tab);
    await joined;
    return tab;
  }

  async #openBrowser(): Promise<Tabs> {
    return new Tabs({
      ...{ joinLink: this.joinLink, engine: this.#options.engine ?? "cpu", scratch: this.folder },
      ...spaceOf(await this.network?.join()),
    });
  }

  /** Where a peer process sits in the test network. */
  memberOf(peer: Proc): Member {
    const member = this.#members.get(peer);
    if (member === undefined) {
      throw new Error(`${peer.name} is on loopback; start the cluster with its own network`);
    }
    return member;
  }

  /** Takes a peer off the list, because it is about to go. */
  release<T extends Proc | Tab>(member: T): T {
    const list: (Proc | Tab)[] = member instanceof Tab ? this.tabs : this.peers;
    list.splice(list.indexOf(member), 1);
    return member;
  }

  #peerEnded(peer: Proc, { code, signal }: Deno.CommandStatus): void {
    const place = this.#members.get(peer);
    if (place !== undefined) this.#free.push(place);
    this.#members.delete(peer);
    if (code === 0 || signal === "SIGKILL") return;
    const list = signal === "SIGSEGV" ? this.addonCrashes : this.failures;
    list.push(`${peer.name} ended with ${signal ?? `exit code ${code}`}; it said:\n${peer.said()}`);
    if (this.peers.includes(peer)) this.release(peer);
  }

  /** Number of Deno peers and tabs that should be working. */
  get size(): number {
    return this.peers.length + this.tabs.length;
  }

  /**
   * Waits until a step has been committed by everybody who is here, or by all that the planner has a use for: a further peer may
   * make so small a step no shorter, and stays a spare.
   */
  async settled(): Promise<void> {
    const from = this.steps.length;
    await this.until(`a step of ${this.size} peers`, () => {
      const steps = this.steps.slice(from);
      if (steps.some((step) => step.peers === this.size)) return true;
      return this.#present().size === this.size && steps.slice(STEPS_SETTLED).some((step) => step.peers > 1);
    });
  }

  /** Peers that the newest coordinator has let in and not lost. */
  #present(): Set<string> {
    const present = new Set<string>();
    for (const line of this.events) {
      if (line.event === "listening") present.clear();
      if (line.event !== "peer") continue;
      if (line.what === "joined" || line.what === "back") present.add(String(line.id));
      else present.delete(String(line.id));
    }
    return present;
  }

  /** Waits for `count` more steps. */
  async more(count: number): Promise<void> {
    const goal = this.#highest + count;
    await this.until(`step ${goal}`, () => this.#highest >= goal);
  }

  /** An event of any coordinator of the run, after the first `from` of them. */
  async event(what: string, holds: (line: JsonLine) => boolean, from = 0): Promise<JsonLine> {
    let found: JsonLine | undefined;
    await this.until(what, () => (found = this.events.slice(from).find(holds)) !== undefined);
    return found!;
  }

  async until(what: string, holds: () => boolean): Promise<void> {
    const late = AbortSignal.timeout(PATIENCE_MS);
    while (!holds()) {
      if (late.aborted) throw new Error(`waited too long for ${what}; ${await this.#situation()}`);
      await new Promise<void>((resolve) => {
        const wake = () => {
          this.#waiting.delete(wake);
          late.removeEventListener("abort", wake);
          resolve();
        };
        this.#waiting.add(wake);
        late.addEventListener("abort", wake, { once: true });
      });
    }
  }

  /** The coordinator dies where it stands. */
  async killCoordinator(): Promise<void> {
    this.coordinator.signal("SIGKILL");
    await this.coordinator.ended;
  }

  /** `shoal resume` in the same folder; peers that wait find it again. */
  async resumeCoordinator(): Promise<void> {
    await this.#serve("resume", [this.runFolder]);
  }

  /** Times of all commits so far by the coordinators' own clock, ms, out of the run's metrics.jsonl. */
  async commitTimes(): Promise<number[]> {
    const text = await Deno.readTextFile(join(this.runFolder, "metrics.jsonl"));
    // A coordinator that was killed may have left half a line.
    const lines = text.split("\n").filter((line) => line.startsWith("{") && line.endsWith("}"));
    const steps = lines.map((line) => JSON.parse(line)).filter((line) => line.event === "step");
    return steps.map((line) => Number(line.at_ms));
  }

  /** Asks the coordinator to stop after the open step; resolves to its last checkpoint when the peers have ended too. */
  async finish(): Promise<{ checkpoint: string; step: number }> {
    this.coordinator.signal("SIGINT");
    const done = await this.coordinator.line("its last checkpoint", (line) => line.event === "done");
    const status = await this.coordinator.ended;
    await Promise.all(this.peers.map((peer) => peer.ended));
    if (status.code !== 0) {
      throw new Error(`the coordinator ended with ${status.code}:\n${this.coordinator.said()}`);
    }
    return { checkpoint: String(done.checkpoint), step: Number(done.step) };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    try {
      await (await this.#browser)?.[Symbol.asyncDispose]();
      await this.network?.[Symbol.asyncDispose]();
      for (const proc of [...this.peers, this.coordinator]) await proc?.[Symbol.asyncDispose]();
    } finally {
      await this.guardian[Symbol.asyncDispose]();
    }
  }

  async #serve(verb: "coordinator" | "resume", args: string[]): Promise<void> {
    const host = ["--host", this.#home?.address ?? "127.0.0.1"];
    this.coordinator = shoalProc(verb, [...args, ...host], {
      ...{ name: verb, guardian: this.guardian, onLine: (line) => this.#take(line) },
      ...spaceOf(this.#home ?? undefined),
    });
    const { join, admin } = await this.coordinator.line("its links", (line) => line.event === "listening");
    [this.joinLink, this.adminLink] = [String(join), String(admin)];
  }

  #take(line: JsonLine): void {
    if (line.event === "step") {
      const step = Number(line.step);
      if (step <= this.#highest) this.stepsLost++;
      this.#highest = Math.max(this.#highest, step);
      const facts = { step, loss: Number(line["train/loss"]), peers: Number(line.peers) };
      this.steps.push({ ...facts, at: performance.now() });
    } else this.events.push(line);
    for (const wake of [...this.#waiting]) wake();
  }

  #joinOf(runtime: "deno" | "tab"): Promise<JsonLine> {
    const isJoin = (line: JsonLine) =>
      line.event === "peer" && line.what === "joined" && String(line.id).startsWith(`${runtime}-`);
    return this.event(`a ${runtime} peer to join`, isJoin, this.events.length);
  }

  async #situation(): Promise<string> {
    const said = this.events.slice(-10).map((line) => JSON.stringify(line)).join("\n");
    const peers = this.peers.map((peer) => `${peer.name}:\n${peer.said()}`).join("\n");
    const shown = `step ${this.step}, ${this.size} peers expected; the coordinator said:\n${said}`;
    return `${shown}\n${peers}\n${await this.#status()}`;
  }

  /** What the admin page would show, for explaining a failure; namespaces are out of reach. */
  async #status(): Promise<string> {
    if (this.network !== null) return "";
    try {
      const headers = { authorization: `Bearer ${new URL(this.adminLink).hash.slice(1)}` };
      const signal = AbortSignal.timeout(STATUS_MS);
      const response = await fetch(new URL("/api/status", this.adminLink), { headers, signal });
      const { state, reason, gen, step, peers, events } = await response.json() as RunStatus;
      const roles = peers.map(({ id, role, silentMs }) => `${id}: ${role}, silent for ${silentMs} ms`);
      const log = events.slice(-STATUS_EVENTS).map(({ kind, text }) => `${kind}: ${text}`);
      return [`${state}: ${reason}; generation ${gen}, step ${step}`, ...roles, ...log].join("\n");
    } catch (error) {
      return `the coordinator does not answer: ${error}`;
    }
  }
}

function spaceOf(member: Member | undefined): { space?: string } {
  return member === undefined ? {} : { space: member.space };
}
