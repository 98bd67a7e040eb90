// A Link straight between two peers over WebRTC, by simple-peer. The WebRTC stack is a parameter
// (webrtc_browser.ts or wrtc_deno.ts), so that no bundle reaches the other's code. Every failure path ends in
// one close with a coded reason.
import type { IceServer } from "../wire/run.ts";
import { type Channel, ChannelLink, coded } from "./channel_link.ts";
import { type Clock, systemClock } from "./clock.ts";
import type { Pacer } from "./pacer.ts";

/**
 * From creation to an open channel. ICE alone would take 15 to 30 s to admit failure; then the relay takes
 * over.
 */
export const DIRECT_CONNECT_TIMEOUT_MS = 10_000;
/** Longest signal taken from a stranger, in characters: a session description has about 1,500. */
export const SIGNAL_CHARS_MAX = 16 * 1024;
/**
 * Pause between two looks at the buffered amount where the stack has no event for it; 60 KiB per look is 30
 * MB/s.
 */
const BUFFER_POLL_MS = 2;

/** The three classes that simple-peer takes where the runtime has none of its own. */
export interface WebRtc {
  RTCPeerConnection: unknown;
  RTCSessionDescription: unknown;
  RTCIceCandidate: unknown;
}

/** A runtime's simple-peer build and, where the runtime has no WebRTC itself, the classes for it. */
export interface WebRtcStack {
  SimplePeer: unknown;
  wrtc?: WebRtc;
}

/** What is used of simple-peer 9.11, whose own types need Node's. */
interface Peer {
  on(event: "signal", listener: (data: unknown) => void): void;
  on(event: "connect" | "close", listener: () => void): void;
  on(event: "data", listener: (data: Uint8Array) => void): void;
  on(event: "error", listener: (error: Error) => void): void;
  signal(data: string): void;
  destroy(): void;
  /**
   * The data channel. Not public: the public stream interface holds 64 KiB back, too much for two priorities.
   */
  _channel: DataChannel | null;
  _pc: { getStats(): Promise<Map<string, StatsEntry>> } | null;
}

interface PeerOptions {
  initiator: boolean;
  config: { iceServers: IceServer[] };
  channelConfig: { ordered: boolean };
  wrtc?: WebRtc;
}

interface DataChannel {
  readonly bufferedAmount: number;
  readonly readyState: string;
  /** Absent in @roamhq/wrtc. */
  bufferedAmountLowThreshold?: number;
  onbufferedamountlow: ((event: never) => void) | null;
  send(bytes: Uint8Array<ArrayBuffer>): void;
}

interface StatsEntry {
  type: string;
  state?: string;
  nominated?: boolean;
  localCandidateId?: string;
  candidateType?: string;
}

export interface SimplePeerLinkOptions {
  remote: string;
  initiator: boolean;
  /** Always ours, [] for none: simple-peer's own default would call third parties. */
  iceServers: IceServer[];
  stack: WebRtcStack;
  /** Opaque text for the other end's signal(). */
  onsignal: (data: string) => void;
  /** Default: the system's clock. */
  clock?: Clock;
  /** Default: DIRECT_CONNECT_TIMEOUT_MS. */
  connectTimeoutMs?: number;
  /** Default: no rate holds. */
  pacer?: Pacer | undefined;
}

/** Connects at once; one reliable ordered channel. */
export class SimplePeerLink extends ChannelLink {
  #peer: Peer;
  #clock: Clock;
  #stopTimeout: () => void;

  constructor(options: SimplePeerLinkOptions) {
    const owned: { free: () => void } = { free: () => {} };
    const clock = options.clock ?? systemClock;
    const { remote, pacer, initiator: waitsForOther } = options;
    super({ remote, path: "direct", clock, teardown: () => owned.free(), pacer, waitsForOther });
    const peer = createPeer(options);
    const timeoutMs = options.connectTimeoutMs ?? DIRECT_CONNECT_TIMEOUT_MS;
    this.#stopTimeout = clock.after(timeoutMs, () => {
      if (this.state === "connecting") {
        this.failed("link-timeout", `no direct path to ${this.remote} in ${timeoutMs} ms`);
      }
    });
    this.#peer = peer;
    this.#clock = clock;
    owned.free = () => {
      this.#stopTimeout();
      peer.destroy();
    };
    peer.on("signal", (data) => options.onsignal(JSON.stringify(data)));
    peer.on("connect", () => this.#ready());
    peer.on("data", (data) => this.#onData(data));
    peer.on(
      "error",
      (error) => this.failed("link-closed", `WebRTC to ${this.remote} failed: ${error.message}`),
    );
    peer.on("close", () => this.failed("link-closed", "the channel closed without a goodbye"));
  }

  /** Takes what the other end's onsignal gave. A malformed signal closes the link with bad-message. */
  signal(data: string): void {
    if (this.state !== "connecting") return;
    const problem = signalProblem(data);
    if (problem !== null) return this.close(coded("bad-message", problem));
    try {
      this.#peer.signal(data);
    } catch (error) {
      this.failed("bad-message", `a signal from ${this.remote} was refused: ${String(error)}`);
    }
  }

  #onData(data: Uint8Array): void {
    // The other end may be ready a moment earlier, while simple-peer still looks up the candidate pair here.
    this.#ready();
    this.receive(data);
  }

  #ready(): void {
    const channel = this.#peer._channel;
    if (this.state !== "connecting" || channel === null || channel.readyState !== "open") return;
    this.#stopTimeout();
    this.opened(hasLowEvent(channel) ? channel : new PolledChannel(channel, this.#clock));
    void this.#lookUpPath();
  }

  /** Bytes through a TURN server are somebody's bill: the page tells direct and turn apart. */
  async #lookUpPath(): Promise<void> {
    try {
      const report = await this.#peer._pc?.getStats();
      if (report !== undefined && usesTurn([...report.values()], report)) this.setPath("turn");
    } catch {
      // Only a label is lost: the link works without it.
    }
  }
}

function createPeer({ initiator, iceServers, stack }: SimplePeerLinkOptions): Peer {
  const SimplePeer = stack.SimplePeer as new (options: PeerOptions) => Peer;
  const options: PeerOptions = { initiator, config: { iceServers }, channelConfig: { ordered: true } };
  return new SimplePeer(stack.wrtc ? { ...options, wrtc: stack.wrtc } : options);
}

/**
 * Only descriptions and candidates: simple-peer would also act on requests for media, which Shoal never
 * makes.
 */
function signalProblem(data: string): string | null {
  if (data.length > SIGNAL_CHARS_MAX) {
    return `signal of ${data.length} characters, the limit is ${SIGNAL_CHARS_MAX}`;
  }
  let parsed: unknown;
  try {
    parsed = JSON.parse(data);
  } catch {
    return "signal is not JSON";
  }
  if (typeof parsed !== "object" || parsed === null) return "signal is not an object";
  const { type, sdp, candidate } = parsed as Record<string, unknown>;
  if ((type === "offer" || type === "answer") && typeof sdp === "string") return null;
  return type === "candidate" && typeof candidate === "object" && candidate !== null
    ? null
    : "signal is neither a description nor a candidate";
}

function usesTurn(entries: StatsEntry[], report: Map<string, StatsEntry>): boolean {
  const pair = entries.find((e) =>
    e.type === "candidate-pair" && e.state === "succeeded" && e.nominated !== false
  );
  const local = pair?.localCandidateId === undefined ? undefined : report.get(pair.localCandidateId);
  return local?.candidateType === "relay";
}

function hasLowEvent(channel: DataChannel): channel is DataChannel & Channel {
  return typeof channel.bufferedAmountLowThreshold === "number";
}

/** Gives a channel without the buffered-amount-low event one, by looking while somebody waits for it. */
class PolledChannel implements Channel {
  onbufferedamountlow: ((event: never) => void) | null = null;
  #channel: DataChannel;
  #clock: Clock;
  #threshold = 0;
  #waiting = false;

  constructor(channel: DataChannel, clock: Clock) {
    this.#channel = channel;
    this.#clock = clock;
  }

  get bufferedAmount(): number {
    return this.#channel.bufferedAmount;
  }

  get bufferedAmountLowThreshold(): number {
    return this.#threshold;
  }

  /** Setting it is how the link says that it waits. */
  set bufferedAmountLowThreshold(bytes: number) {
    this.#threshold = bytes;
    if (this.#waiting) return;
    this.#waiting = true;
    this.#look();
  }

  send(bytes: Uint8Array<ArrayBuffer>): void {
    this.#channel.send(bytes);
  }

  #look(): void {
    this.#clock.after(BUFFER_POLL_MS, () => {
      const open = this.#channel.readyState === "open";
      if (open && this.#channel.bufferedAmount > this.#threshold) return this.#look();
      this.#waiting = false;
      if (open) this.onbufferedamountlow?.(undefined as never);
    });
  }
}

/** The createLink of a LinkHost over the runtime's WebRTC stack. */
export function simplePeerLinks(
  stack: WebRtcStack,
  limits?: Pick<SimplePeerLinkOptions, "connectTimeoutMs" | "pacer">,
) {
  return (
    remote: string,
    options: Pick<SimplePeerLinkOptions, "initiator" | "iceServers" | "onsignal">,
  ): SimplePeerLink => new SimplePeerLink({ remote, ...options, stack, ...limits });
}
