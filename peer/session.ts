// One incarnation of a peer: from hello to the end of its socket. Binds the pure core to the socket, the links, the holder and
// the clock; contains no protocol decisions. A session never comes back: after its end a new one joins as a new peer.
import { PeerCore } from "./core/peer_core.ts";
import type { Job, JobResult, PeerEffect, PeerEvent } from "./core/peer_state.ts";
import type { StageBuild, StageEngine } from "./engine/engine.ts";
import { Holder } from "./holder.ts";
import { measureBlock } from "./measure.ts";
import type { Corpus } from "./model/data.ts";
import type { RelayingLinkHost } from "./net/host.ts";
import type { LinkStats } from "./net/link.ts";
import {
  type CoordinatorMessage,
  decodeCoordinatorMessage,
  type GroupStatus,
  type PeerMessage,
  PROTOCOL_VERSION,
  readTagged,
  type StateFile,
  tagControl,
  tagRelay,
  type Welcome,
} from "./wire/control.ts";
import { assert, messageOf, ShoalError } from "./wire/errors.ts";
import { decodeFrame, encodeFrame } from "./wire/frame.ts";

/** The socket to the coordinator opens within this time or the coordinator counts as offline. */
const CONNECT_MS = 15_000;
/** Uploads of a snapshot are tried again this often; a departure meanwhile costs steps, not correctness. */
const UPLOAD_TRIES = 3;

export type EndKind = "done" | "left" | "kicked" | "offline" | "refused" | "failed" | "device-lost";
export interface SessionEnd {
  kind: EndKind;
  code: string;
  reason: string;
}

export interface SessionOptions {
  /** http(s)://host:port of the coordinator. */
  origin: string;
  token: string;
  runtime: "tab" | "deno";
  name?: string;
  adapter: string;
  engine: string;
  memoryBytes: number;
  createEngine(build: StageBuild): Promise<StageEngine>;
  createHost(
    selfId: string,
    relay: (remote: string, bytes: Uint8Array<ArrayBuffer>) => void,
  ): RelayingLinkHost;
  /** Something that a page shows has changed. */
  onChange(): void;
}

/** What a page or a status line reads of a session. */
export interface SessionFacts {
  step: "joining" | "measuring" | "joined";
  peer: string | null;
  welcome: Welcome | null;
  group: GroupStatus | null;
  hidden: boolean;
  paused: boolean;
  leaving: boolean;
  ownStepMs: number;
  links: Record<string, LinkStats>;
}

export class Session {
  readonly facts: SessionFacts = {
    ...{ step: "joining", peer: null, welcome: null, group: null, hidden: false, paused: false },
    ...{ leaving: false, ownStepMs: 0, links: {} },
  };
  core: PeerCore | null = null;
  holder: Holder | null = null;
  readonly ended: Promise<SessionEnd>;
  readonly #options: SessionOptions;
  readonly #socket: WebSocket;
  #end: (end: SessionEnd) => void = () => {};
  #over = false;
  #host: RelayingLinkHost | null = null;
  #early: CoordinatorMessage[] = [];
  #timers: ReturnType<typeof setInterval>[] = [];
  #stepBusyMs = 0;
  #working: Promise<void> = Promise.resolve();

  constructor(options: SessionOptions) {
    this.#options = options;
    this.ended = new Promise((resolve) => this.#end = resolve);
    this.#socket = new WebSocket(`${options.origin.replace(/^http/, "ws")}/api/peer`);
    this.#socket.binaryType = "arraybuffer";
    const timer = setTimeout(
      () => this.close("offline", "offline", "the coordinator does not answer"),
      CONNECT_MS,
    );
    this.#timers.push(timer);
    this.#socket.onopen = () => {
      clearTimeout(timer);
      this.#hello();
    };
    this.#socket.onmessage = (event: MessageEvent<ArrayBuffer>) => this.#receive(new Uint8Array(event.data));
    this.#socket.onclose = () => this.close("offline", "offline", "the connection to the coordinator closed");
    this.#socket.onerror = () => {};
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

  /** Ends the session at once and lets go of everything. */
  close(kind: EndKind, code: string, reason: string): void {
    if (this.#over) return;
    this.#over = true;
    for (const timer of this.#timers) clearInterval(timer);
    this.#host?.closeAll(reason);
    const { readyState } = this.#socket;
    if (readyState === WebSocket.OPEN || readyState === WebSocket.CONNECTING) this.#socket.close(1000);
    const holder = this.holder;
    // The engine is destroyed only after the operation that may be using it.
    void this.#working.finally(() => holder?.unload()).finally(() => this.#end({ kind, code, reason }));
  }

  say(message: PeerMessage): void {
    if (this.#socket.readyState === WebSocket.OPEN) this.#socket.send(bytesOf(tagControl(message)));
  }

  #hello(): void {
    const { token, runtime, adapter, engine, name } = this.#options;
    const base = { type: "hello" as const, version: PROTOCOL_VERSION, token, runtime };
    const about = { adapter: adapter.slice(0, 500), engine: engine.slice(0, 500) };
    this.say({ ...base, ...about, ...(name === undefined ? {} : { name: name.slice(0, 100) }) });
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
        void this.#setUp(message).catch((error) => this.#fail(error));
        return;
      case "refused":
        return this.close("refused", message.code, message.reason);
      case "kicked":
        return this.close(message.mayReturn ? "offline" : "kicked", "kicked", message.reason);
      case "done":
        return this.close(this.facts.leaving ? "left" : "done", "done", message.reason);
      case "status":
        this.facts.group = message;
        return this.#options.onChange();
      default:
        if (this.core === null) this.#early.push(message);
        else if (message.type === "signal") this.#host?.signal(message.peer, message.data);
        else this.#feed(message);
    }
  }

  async #setUp(welcome: Welcome): Promise<void> {
    Object.assign(this.facts, { welcome, peer: welcome.peer, step: "measuring" });
    const beat = setInterval(() => void this.#heartbeat(), welcome.heartbeatMs);
    this.#timers.push(beat);
    this.#options.onChange();
    const { config, spec } = welcome;
    const corpus = await this.#fetchCorpus(welcome);
    const { createEngine } = this.#options;
    const blockMs = await measureBlock(createEngine, config, spec);
    if (this.#over) return;
    const fetchState = (step: number, file: StateFile) => this.#fetchState(step, file);
    this.holder = new Holder({ self: welcome.peer, config, spec, corpus, createEngine, fetchState });
    this.core = new PeerCore(welcome.peer, config, spec);
    this.#host = this.#openHost(welcome.peer);
    this.facts.step = "joined";
    if (this.facts.paused) this.say({ type: "pause", paused: true });
    this.say({ type: "measured", blockMs, memoryBytes: this.#options.memoryBytes });
    for (const message of this.#early.splice(0)) this.#hear(message);
    this.#options.onChange();
  }

  #openHost(selfId: string): RelayingLinkHost {
    const host = this.#options.createHost(selfId, (remote, bytes) => {
      if (this.#socket.readyState === WebSocket.OPEN) this.#socket.send(bytesOf(tagRelay(remote, bytes)));
    });
    host.onsignal = (peer, data) => this.say({ type: "signal", peer, data });
    host.onframe = (remote, frame) => this.#onFrame(remote, frame);
    host.onstate = (peer, state, reason) => {
      if (state !== "connecting") this.#feed({ type: "link", peer, open: state === "open", reason });
    };
    return host;
  }

  async #fetchCorpus(welcome: Welcome): Promise<Corpus> {
    const { hash, bytesPerToken, tokens } = welcome.corpus;
    const response = await this.#fetch("/api/corpus", {});
    const bytes = await response.arrayBuffer();
    const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
    const found = [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
    if (found !== hash || bytes.byteLength !== tokens * bytesPerToken) {
      throw new ShoalError("bad-corpus", "the corpus arrived damaged; reload to try again");
    }
    return bytesPerToken === 2 ? new Uint16Array(bytes) : new Uint8Array(bytes);
  }

  async #fetchState(step: number, file: StateFile): Promise<Uint8Array> {
    const response = await this.#fetch(`/api/state/${step}/${file.stage}`, {});
    return new Uint8Array(await response.arrayBuffer());
  }

  async #fetch(path: string, init: RequestInit): Promise<Response> {
    const { origin, token } = this.#options;
    const headers = new Headers(init.headers);
    headers.set("authorization", `Bearer ${token}`);
    headers.set("x-shoal-peer", this.facts.peer ?? "");
    headers.set("x-shoal-ticket", this.facts.welcome?.ticket ?? "");
    const response = await fetch(origin + path, { ...init, headers });
    if (response.ok) return response;
    const problem = await response.text();
    throw new ShoalError("bad-state", `${path} answered ${response.status}: ${problem.slice(0, 200)}`);
  }

  #onFrame(remote: string, bytes: Uint8Array): void {
    if (this.core === null || this.holder === null) return;
    const frame = decodeFrame(bytes);
    if (!frame.ok) return this.#host?.close(remote, `bad-frame: ${frame.reason}`);
    const { header, payload } = frame.value;
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
      case "round":
        this.facts.ownStepMs = this.#stepBusyMs || this.facts.ownStepMs;
        this.#stepBusyMs = 0;
        return this.holder!.round(effect.pass, effect.step);
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

  #connect(peers: { peer: string; initiator: boolean }[]): void {
    const { iceServers } = this.facts.welcome!.config;
    for (const { peer, initiator } of peers) this.#host!.connect(peer, { initiator, iceServers });
  }

  #send(out: Parameters<Holder["frame"]>[0]): void {
    const { header, payload } = this.holder!.frame(out);
    const incarnation = this.facts.welcome!.incarnation;
    const bytes = encodeFrame({ ...header, incarnation }, payload);
    if (out.to === this.facts.peer) return queueMicrotask(() => this.#onFrame(out.to, bytes));
    try {
      this.#host!.send(out.to, bytes, out.kind === "part" || out.kind === "tied" ? 1 : 0);
    } catch (error) {
      // A closed link reports itself; an overflowing one must be ended so that both sides notice.
      if (error instanceof ShoalError && error.code === "link-overflow") {
        this.#host!.close(out.to, error.message);
      } else if (!(error instanceof ShoalError)) throw error;
    }
  }

  async #work(job: Job): Promise<void> {
    if (this.#over) return;
    const begun = performance.now();
    try {
      const result = await this.holder!.run(job);
      this.#stepBusyMs += performance.now() - begun;
      if (result.file !== undefined && job.job === "export") void this.#upload(job, result.file);
      this.#feed({ type: "finished", job, result: withoutFile(result) });
    } catch (error) {
      this.#fail(error);
    }
  }

  async #upload(job: Job & { job: "export" }, file: { bytes: Uint8Array; hash: string }): Promise<void> {
    const headers = { "x-shoal-gen": String(job.gen), "x-shoal-hash": file.hash };
    for (let attempt = 1; attempt <= UPLOAD_TRIES && !this.#over; attempt++) {
      try {
        const body = bytesOf(file.bytes);
        await this.#fetch(`/api/state/${job.step}/${job.stage}`, { method: "PUT", body, headers });
        return;
      } catch {
        // A snapshot that is no longer asked for is refused, which is fine; a lost connection is tried again.
      }
    }
  }

  async #heartbeat(): Promise<void> {
    const links = await this.#host?.stats() ?? {};
    this.facts.links = links;
    const all = Object.values(links);
    const sum = (pick: (link: LinkStats) => number) => all.reduce((total, link) => total + pick(link), 0);
    const relayed = all.filter((link) => link.path === "relay").length;
    this.say({
      type: "heartbeat",
      stepMs: this.facts.ownStepMs,
      bytesUp: sum((link) => link.bytesUp),
      bytesDown: sum((link) => link.bytesDown),
      direct: all.length - relayed,
      relayed,
      hidden: this.facts.hidden,
    });
    this.#options.onChange();
  }

  #fail(error: unknown): void {
    const code = error instanceof ShoalError ? error.code : "internal";
    this.close(code === "device-lost" ? "device-lost" : "failed", code, messageOf(error));
  }
}

function withoutFile(result: JobResult): JobResult {
  const { file: _, ...rest } = result;
  return rest;
}

/** Our encoders always make plain ArrayBuffers; the types of some of them do not say so. */
function bytesOf(bytes: Uint8Array): Uint8Array<ArrayBuffer> {
  assert(bytes.buffer instanceof ArrayBuffer, "bytes in a shared buffer");
  return bytes as Uint8Array<ArrayBuffer>;
}
