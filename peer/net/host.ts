// All links of one peer: connects on demand, falls back to the coordinator's relay, holds frames while
// connecting. It does not decide whom to connect to and never reconnects by itself: it reports "closed" and
// the core asks again. Of one remote there is at most one link at any time.
import { ShoalError } from "../wire/errors.ts";
import type { IceServer } from "../wire/run.ts";
import { coded, LINK_QUEUE_BYTES_MAX, LINK_QUEUE_FRAMES_MAX } from "./channel_link.ts";
import { type Clock, systemClock } from "./clock.ts";
import type { Link, LinkHost, LinkState, LinkStats, Priority } from "./link.ts";
import type { Pacer } from "./pacer.ts";
import { isRelayHello, RelayLink } from "./relay.ts";
import { EarlySignals, REQUEST, type Signal, unwrapSignal, wrapSignal } from "./signals.ts";

export interface LinkHostLimits {
  /**
   * Direct connections that this peer initiates at a time: many at once take longer than one after the other.
   */
  connectingMax: number;
  /** Links of one peer; native stacks use file descriptors faster than linearly. */
  linksMax: number;
  /**
   * How long a non-initiator waits for the offer before it tries the relay; the initiator may have a queue.
   */
  offerTimeoutMs: number;
  /**
   * The direct way gets so long after a link was lost, then the relay is tried: the run waits for what was sent.
   */
  repairMs: number;
  /** Bytes held per remote while its link is being made. */
  pendingBytesMax: number;
}

export const LINK_HOST_LIMITS: LinkHostLimits = {
  connectingMax: 4,
  linksMax: 64,
  offerTimeoutMs: 30_000,
  repairMs: 2_000,
  pendingBytesMax: LINK_QUEUE_BYTES_MAX,
};

/** Lost links that are remembered; a remote beyond them is connected to as if for the first time. */
const LOST_KEPT = 256;

/** A link that needs signals to come up. */
export interface DirectLink extends Link {
  signal(data: string): void;
}

export interface CreateLinkOptions {
  initiator: boolean;
  iceServers: IceServer[];
  onsignal: (data: string) => void;
}

export interface LinkHostOptions {
  selfId: string;
  /** Makes a direct link; may throw. Null: every link goes through the relay. */
  createLink: ((remote: string, options: CreateLinkOptions) => DirectLink) | null;
  /** Hands bytes to the coordinator for `remote`; may throw. Null: there is no fallback. */
  relay: ((remote: string, bytes: Uint8Array<ArrayBuffer>) => void) | null;
  /** Default: LINK_HOST_LIMITS. */
  limits?: Partial<LinkHostLimits>;
  /** Default: the system's clock. */
  clock?: Clock;
  /** Unsigned 32-bit numbers for attempts and nonces; default: the system's generator. */
  random32?: () => number;
  /** For links through the relay; direct ones get theirs from `createLink`. Default: no rate holds. */
  pacer?: Pacer;
}

/** A LinkHost that is also fed with what the coordinator relays. */
export interface RelayingLinkHost extends LinkHost {
  /** Bytes that `remote` sent through the coordinator. */
  receiveRelay(remote: string, bytes: Uint8Array): void;
}

/** What goes on between this peer and one remote. */
interface Entry {
  remote: string;
  initiator: boolean;
  iceServers: IceServer[];
  /** waiting: for a free slot (initiator) or for the offer. */
  phase: "waiting" | "direct" | "relay";
  attempt: number | null;
  /** It replaces a link that was lost: somebody waits for what was sent into that one. */
  repair: boolean;
  /** The present link has been open: its end is news for the owner and no reason to try the relay. */
  wasOpen: boolean;
  link: Link | null;
  pending: { frame: Uint8Array; priority: Priority }[];
  pendingBytes: number;
  /** What became of the direct way; empty while it has not failed. */
  why: string;
  stopTimer: () => void;
}

export function createLinkHost(options: LinkHostOptions): RelayingLinkHost {
  return new Host(options);
}

class Host implements RelayingLinkHost {
  onframe: ((remote: string, frame: Uint8Array) => void) | null = null;
  onstate: ((remote: string, state: LinkState, reason: string) => void) | null = null;
  onsignal: ((remote: string, data: string) => void) | null = null;
  #options: LinkHostOptions;
  #limits: LinkHostLimits;
  #clock: Clock;
  #random32: () => number;
  #entries = new Map<string, Entry>();
  #early = new EarlySignals();
  /** Attempt of the newest link to each remote that was open and is closed; 0 for one through the relay. */
  #lost = new Map<string, number>();

  constructor(options: LinkHostOptions) {
    this.#options = options;
    this.#limits = { ...LINK_HOST_LIMITS, ...options.limits };
    this.#clock = options.clock ?? systemClock;
    this.#random32 = options.random32 ?? systemRandom32;
  }

  connect(remote: string, { initiator, iceServers }: { initiator: boolean; iceServers: IceServer[] }): void {
    if (this.#entries.has(remote)) return;
    if (remote === this.#options.selfId || this.#entries.size >= this.#limits.linksMax) {
      const problem =
        `cannot link to ${remote}: it is this peer itself or one of more than ${this.#limits.linksMax}`;
      return this.onstate?.(remote, "closed", coded("link-overflow", problem));
    }
    const entry: Entry = {
      remote,
      initiator,
      iceServers,
      phase: "waiting",
      attempt: null,
      repair: this.#lost.has(remote),
      wasOpen: false,
      link: null,
      pending: [],
      pendingBytes: 0,
      why: "",
      stopTimer: () => {},
    };
    this.#entries.set(remote, entry);
    this.onstate?.(remote, "connecting", "");
    this.#start(entry);
  }

  signal(remote: string, data: string): void {
    const signal = unwrapSignal(data);
    if (signal === null) return;
    const entry = this.#entries.get(remote);
    if (entry === undefined) this.#early.add(remote, signal);
    else this.#onSignal(entry, signal);
  }

  send(remote: string, frame: Uint8Array, priority: Priority): void {
    const entry = this.#entries.get(remote);
    if (entry === undefined) {
      throw new ShoalError("link-closed", `there is no link to ${remote}; connect first`);
    }
    if (entry.link?.state === "open") return entry.link.send(frame, priority);
    const full = entry.pendingBytes + frame.length > this.#limits.pendingBytesMax;
    if (full || entry.pending.length >= LINK_QUEUE_FRAMES_MAX) {
      const held = `${entry.pending.length} frames, ${entry.pendingBytes} bytes`;
      throw new ShoalError(
        "link-overflow",
        `too much waits for the link to ${remote} (${held}); wait until it is open`,
      );
    }
    entry.pending.push({ frame, priority });
    entry.pendingBytes += frame.length;
  }

  close(remote: string, reason: string): void {
    const entry = this.#entries.get(remote);
    if (entry !== undefined) this.#finish(entry, reason);
  }

  closeAll(reason: string): void {
    for (const entry of [...this.#entries.values()]) this.#finish(entry, reason);
  }

  stats(): Promise<Record<string, LinkStats>> {
    const open = [...this.#entries.values()].filter((entry) => entry.link?.state === "open");
    const stats = open.map(({ remote, link, why }) => {
      const { path, ...rest } = link!.stats();
      return [remote, { ...rest, path, ...(path === "relay" && why !== "" ? { why } : {}) }];
    });
    return Promise.resolve(Object.fromEntries(stats));
  }

  receiveRelay(remote: string, bytes: Uint8Array): void {
    const entry = this.#entries.get(remote);
    // A greeting is repeated, so one that comes before connect() is not lost; anything else is of a link that
    // is gone.
    if (entry === undefined || this.#options.relay === null) return;
    if (entry.link instanceof RelayLink) {
      const relay = entry.link;
      relay.receiveRelay(bytes);
      if (relay.state === "closed" && isRelayHello(bytes)) this.#renew(entry, bytes);
    } else if (isRelayHello(bytes)) {
      if (entry.link?.state === "open") this.#renew(entry, bytes);
      else this.#toRelay(entry, bytes);
    }
  }

  /** The other end began again: one link ends here, visibly, and the next one begins. */
  #renew({ remote, initiator, iceServers }: Entry, hello: Uint8Array): void {
    const old = this.#entries.get(remote);
    if (old !== undefined) this.#finish(old, coded("link-closed", "the other end went over to the relay"));
    // The handler of "closed" may have asked to connect again already.
    this.connect(remote, { initiator, iceServers });
    const entry = this.#entries.get(remote);
    if (entry !== undefined) this.#toRelay(entry, hello);
  }

  #start(entry: Entry): void {
    const early = this.#early.take(entry.remote);
    if (this.#options.createLink === null) return this.#toRelay(entry, null);
    if (entry.initiator) return this.#fillSlots();
    const waitMs = entry.repair ? this.#limits.repairMs : this.#limits.offerTimeoutMs;
    entry.stopTimer = this.#clock.after(waitMs, () => this.#toRelay(entry, null));
    for (const signal of early) this.#onSignal(entry, signal);
    if (entry.attempt === null) {
      this.onsignal?.(entry.remote, wrapSignal(this.#lost.get(entry.remote) ?? 0, REQUEST));
    }
  }

  #onSignal(entry: Entry, signal: Signal): void {
    if (signal.data === REQUEST) return this.#onRequest(entry, signal.attempt);
    if (signal.attempt === entry.attempt) {
      if (entry.phase === "direct") (entry.link as DirectLink).signal(signal.data);
      return;
    }
    if (entry.initiator || !signal.offer || this.#options.createLink === null) return;
    if (entry.link !== null) {
      // A new attempt while a link stands: the initiator has lost it and begins again.
      this.#early.add(entry.remote, signal);
      const { remote, iceServers } = entry;
      this.#finish(entry, coded("link-closed", "the other end began a new connection"));
      return this.connect(remote, { initiator: false, iceServers });
    }
    entry.attempt = signal.attempt;
    this.#toDirect(entry);
    this.#onSignal(entry, signal);
  }

  /** The other end has lost the link that this one still believes in, and waits for an offer. */
  #onRequest(entry: Entry, lost: number): void {
    const { remote, initiator, iceServers } = entry;
    const meant = entry.phase === "relay" || lost === 0 || lost === entry.attempt;
    if (!initiator || entry.link?.state !== "open" || !meant) return;
    this.#finish(entry, coded("link-closed", "the other end has lost it and asks for another"));
    this.connect(remote, { initiator, iceServers });
  }

  /** Starts waiting initiators, oldest first, while slots are free. */
  #fillSlots(): void {
    for (const entry of [...this.#entries.values()]) {
      if (!entry.initiator || entry.phase !== "waiting") continue;
      if (this.#connecting() >= this.#limits.connectingMax) return;
      entry.attempt = this.#random32() >>> 0;
      this.#toDirect(entry);
    }
  }

  #connecting(): number {
    const entries = [...this.#entries.values()];
    return entries.filter((e) => e.initiator && e.phase === "direct" && e.link?.state === "connecting")
      .length;
  }

  #toDirect(entry: Entry): void {
    const { remote, initiator, iceServers, attempt } = entry;
    const onsignal = (data: string) => {
      const current = this.#entries.get(remote) === entry && entry.phase === "direct";
      if (current) this.onsignal?.(remote, wrapSignal(attempt ?? 0, data));
    };
    entry.stopTimer();
    entry.phase = "direct";
    if (entry.repair && this.#options.relay !== null) {
      entry.stopTimer = this.#clock.after(this.#limits.repairMs, () => {
        this.#toRelay(entry, null);
        this.#fillSlots();
      });
    }
    try {
      this.#adopt(entry, this.#options.createLink!(remote, { initiator, iceServers, onsignal }));
    } catch (error) {
      this.#directFailed(entry, coded("link-closed", `no direct link to ${remote}: ${String(error)}`));
    }
  }

  #directFailed(entry: Entry, reason: string): void {
    entry.link = null;
    entry.why = reason;
    if (this.#options.relay === null) this.#finish(entry, reason);
    else this.#toRelay(entry, null);
    this.#fillSlots();
  }

  /** Gives up on the direct way, if it was being tried, and talks through the coordinator. */
  #toRelay(entry: Entry, hello: Uint8Array | null): void {
    const { remote } = entry;
    const relay = this.#options.relay;
    if (relay === null) {
      return this.#finish(entry, coded("link-timeout", `no offer from ${remote}, and there is no relay`));
    }
    entry.stopTimer();
    this.#drop(entry, "the other way is tried");
    entry.phase = "relay";
    entry.why ||= this.#whyRelay(hello !== null);
    const nonce = this.#random32() >>> 0 || 1;
    const { pacer } = this.#options;
    const link = new RelayLink({ remote, sendRelay: relay, nonce, clock: this.#clock, pacer });
    this.#adopt(entry, link);
    if (hello !== null) link.receiveRelay(hello);
  }

  #whyRelay(asked: boolean): string {
    if (this.#options.createLink === null) return "this computer makes no direct connections";
    return asked ? "the other computer asked for it" : "no direct connection came about in time";
  }

  #adopt(entry: Entry, link: Link): void {
    entry.link = link;
    link.onframe = (frame) => this.onframe?.(entry.remote, frame);
    link.onstate = (state, reason) => {
      if (state === "open") this.#onOpen(entry, link);
      else if (state === "closed") this.#onClosed(entry, reason);
    };
    if (link.state === "open") this.#onOpen(entry, link);
  }

  #onOpen(entry: Entry, link: Link): void {
    entry.wasOpen = true;
    entry.stopTimer();
    for (const { frame, priority } of entry.pending.splice(0)) {
      // It may close under any of them, which is told by then; the rest is lost with it.
      if (link.state === "open") link.send(frame, priority);
    }
    if (this.#entries.get(entry.remote) !== entry) return;
    entry.pendingBytes = 0;
    this.onstate?.(entry.remote, "open", "");
    this.#fillSlots();
  }

  #onClosed(entry: Entry, reason: string): void {
    if (entry.phase === "direct" && !entry.wasOpen) this.#directFailed(entry, reason);
    else this.#finish(entry, reason);
  }

  /** Lets go of the entry's link without a word to the owner. */
  #drop(entry: Entry, reason: string): void {
    const link = entry.link;
    entry.link = null;
    if (link === null) return;
    link.onframe = null;
    link.onstate = null;
    link.close(reason);
  }

  #finish(entry: Entry, reason: string): void {
    if (this.#entries.get(entry.remote) !== entry) return;
    this.#entries.delete(entry.remote);
    entry.stopTimer();
    this.#drop(entry, reason);
    if (entry.wasOpen) this.#remember(entry);
    this.onstate?.(entry.remote, "closed", reason);
    this.#fillSlots();
  }

  #remember({ remote, phase, attempt }: Entry): void {
    this.#lost.delete(remote);
    this.#lost.set(remote, phase === "relay" ? 0 : attempt ?? 0);
    const [oldest] = this.#lost.keys();
    if (this.#lost.size > LOST_KEPT && oldest !== undefined) this.#lost.delete(oldest);
  }
}

function systemRandom32(): number {
  return crypto.getRandomValues(new Uint32Array(1))[0]!;
}
