// A Link over anything like an RTCDataChannel (reliable, ordered, with a buffered amount): queue, priorities,
// back-pressure, round-trip time, goodbye. It does not connect: its transport calls opened() and receive().
// A frame of priority 0 never waits for more than one chunk of a frame of lower rank.
import { type ErrorCode, ShoalError } from "../wire/errors.ts";
import { FRAME_BYTES_MAX } from "../wire/frame.ts";
import {
  type Chunk,
  ChunkQueue,
  type ChunkType,
  controlChunk,
  decodeChunk,
  encodeChunk,
  GOODBYE_BYTES_MAX,
  Reassembler,
} from "./chunks.ts";
import { type Clock, systemClock } from "./clock.ts";
import { Goodput } from "./goodput.ts";
import type { Link, LinkPath, LinkState, LinkStats, Priority } from "./link.ts";
import type { Pacer } from "./pacer.ts";
import { PING_INTERVAL_MS, Pulse } from "./pulse.ts";

/**
 * Memory that one link's queue may hold: two frames of the largest kind. Without it a slow remote fills the
 * tab.
 */
export const LINK_QUEUE_BYTES_MAX = 2 * FRAME_BYTES_MAX;
/** Frames in one link's queue; bounds the overhead of many tiny frames. */
export const LINK_QUEUE_FRAMES_MAX = 4096;
/** Priority 0 may fill the channel up to this: enough to keep a fast path busy between two events. */
export const CHANNEL_URGENT_BYTES_MAX = 256 * 1024;
/** Lower priorities enter an empty channel only, so that an urgent frame waits for one chunk at most. */
export const CHANNEL_BULK_BYTES_MAX = 0;
/** Pings that wait for their answer; more would only be kept for a link that drains and never answers. */
const PINGS_KEPT = 32;
/** Time a goodbye gets to leave before the channel is torn down. */
export const GOODBYE_FLUSH_MS = 300;
/** Pause between two looks at whether the goodbye has left. */
const GOODBYE_POLL_MS = 20;

/**
 * What the link needs of a channel. The link owns `onbufferedamountlow`; messages come in through receive().
 */
export interface Channel {
  readonly bufferedAmount: number;
  /** What waits in the transport itself, where `bufferedAmount` holds more than that. */
  readonly wireAmount?: number;
  bufferedAmountLowThreshold: number;
  onbufferedamountlow: ((event: never) => void) | null;
  send(bytes: Uint8Array<ArrayBuffer>): void;
}

export interface ChannelLinkOptions {
  remote: string;
  path: LinkPath;
  /** Frees the transport; called once, after the goodbye had its chance to leave. */
  teardown: () => void;
  /**
   * This end made the channel: the other one may not listen yet when it opens here, and what comes before is lost to it. So
   * nothing but pings is sent until something has come. Default false.
   */
  waitsForOther?: boolean;
  /** Default: the system's clock. */
  clock?: Clock;
  /** Default: LINK_QUEUE_BYTES_MAX. */
  queueBytesMax?: number;
  /** Default: CHANNEL_BULK_BYTES_MAX. */
  bulkBytesMax?: number;
  /** Holds all links of a peer below a rate; default: nothing does. */
  pacer?: Pacer | undefined;
}

/** The text that onstate gives for a coded end: the code comes first, so that a program can read it. */
export function coded(code: ErrorCode, text: string): string {
  return `${code}: ${text}`;
}

export class ChannelLink implements Link {
  readonly remote: string;
  onframe: ((frame: Uint8Array) => void) | null = null;
  onstate: ((state: LinkState, reason: string) => void) | null = null;
  #state: LinkState = "connecting";
  #path: LinkPath;
  #reason = "";
  #channel: Channel | null = null;
  #clock: Clock;
  #teardown: () => void;
  #otherListens: boolean;
  #queueBytesMax: number;
  #bulkBytesMax: number;
  #pacer: Pacer | null;
  #queue = new ChunkQueue();
  #reassembler = new Reassembler();
  #stopTimer: () => void = () => {};
  #pulse: Pulse | null = null;
  #pingToken = 0;
  #pingSentAt = new Map<number, number>();
  #rttMs = 0;
  #goodput = new Goodput();
  /** The ping behind a measured frame; its answer is no round trip. */
  #goodputToken: number | null = null;
  #bytesUp = 0;
  #bytesDown = 0;
  #framesUp = 0;
  #framesDown = 0;

  constructor(options: ChannelLinkOptions) {
    this.remote = options.remote;
    this.#path = options.path;
    this.#teardown = options.teardown;
    this.#clock = options.clock ?? systemClock;
    this.#otherListens = options.waitsForOther !== true;
    this.#queueBytesMax = options.queueBytesMax ?? LINK_QUEUE_BYTES_MAX;
    this.#bulkBytesMax = options.bulkBytesMax ?? CHANNEL_BULK_BYTES_MAX;
    this.#pacer = options.pacer ?? null;
  }

  get state(): LinkState {
    return this.#state;
  }

  /** Why the link closed; empty before. */
  get reason(): string {
    return this.#reason;
  }

  /** The open channel, for what only a transport or a test does with it. */
  get channel(): Channel | null {
    return this.#channel;
  }

  get bufferedBytes(): number {
    return this.#queue.bytes + (this.#channel?.bufferedAmount ?? 0);
  }

  send(frame: Uint8Array, priority: Priority): void {
    if (this.#state === "closed") {
      throw new ShoalError(
        "link-closed",
        `link to ${this.remote} is closed (${this.#reason}); connect again`,
      );
    }
    if (frame.length > FRAME_BYTES_MAX) {
      throw new ShoalError(
        "link-overflow",
        `frame of ${frame.length} bytes, the limit is ${FRAME_BYTES_MAX}; send it in parts`,
      );
    }
    const full = this.#queue.bytes + frame.length > this.#queueBytesMax;
    if (full || this.#queue.frames >= LINK_QUEUE_FRAMES_MAX) {
      const held = `${this.#queue.frames} frames, ${this.#queue.bytes} bytes`;
      throw new ShoalError(
        "link-overflow",
        `queue to ${this.remote} is full (${held}); wait until it drains`,
      );
    }
    this.#queue.push(frame, priority);
    this.#framesUp++;
    this.#pump();
  }

  /**
   * Says goodbye with the reason, drops what still waits, and frees the transport. Repeating it does nothing.
   */
  close(reason: string): void {
    if (this.#state === "closed") return;
    const channel = this.#channel;
    if (channel !== null) this.#control("goodbye", { payload: goodbyeText(reason) });
    this.#end(reason, channel);
  }

  /** The transport is gone or failed: no goodbye is possible. */
  failed(code: ErrorCode, text: string): void {
    this.#end(coded(code, text), null);
  }

  stats(): LinkStats {
    return {
      path: this.#path,
      rttMs: this.#rttMs,
      upBytesPerS: this.#goodput.bytesPerS,
      timed: this.#goodput.count,
      bytesUp: this.#bytesUp,
      bytesDown: this.#bytesDown,
      framesUp: this.#framesUp,
      framesDown: this.#framesDown,
    };
  }

  /** Called by the transport when it learns which way the bytes go. */
  setPath(path: LinkPath): void {
    this.#path = path;
  }

  /** Called by the transport when it can carry messages. */
  opened(transport: Channel): void {
    if (this.#state !== "connecting") return;
    const channel = this.#pacer?.wrap(transport) ?? transport;
    this.#channel = channel;
    this.#state = "open";
    this.#pulse = new Pulse(this.#clock.now());
    channel.onbufferedamountlow = () => this.#pump();
    this.onstate?.("open", "");
    this.#ping();
    this.#pump();
  }

  /**
   * Called by the transport with each message. Anything that is not a chunk closes the link with bad-frame.
   */
  receive(bytes: Uint8Array): void {
    if (this.#state === "closed") return;
    this.#bytesDown += bytes.length;
    this.#pacer?.received(bytes.length);
    this.#pulse?.heard(this.#clock.now());
    if (!this.#otherListens) {
      this.#otherListens = true;
      this.#pump();
    }
    const chunk = decodeChunk(bytes);
    if (!chunk.ok) return this.close(coded(chunk.code, chunk.reason));
    if (chunk.value.type !== "data") return this.#onControl(chunk.value);
    const frame = this.#reassembler.accept(chunk.value);
    if (!frame.ok) return this.close(coded(frame.code, frame.reason));
    if (frame.value === null) return;
    this.#framesDown++;
    this.onframe?.(frame.value);
  }

  #onControl(chunk: Chunk): void {
    if (chunk.type === "ping") this.#control("pong", { id: chunk.id });
    else if (chunk.type === "pong") this.#onPong(chunk.id);
    else if (chunk.type === "goodbye") {
      const text = new TextDecoder().decode(chunk.payload);
      this.#end(`the other end closed: ${text}`, null);
    } else this.close(coded("bad-frame", `a ${chunk.type} chunk has no place in an open link`));
  }

  #onPong(token: number): void {
    if (token === this.#goodputToken) return this.#goodput.answered(this.#clock.now());
    const sentAt = this.#pingSentAt.get(token);
    if (sentAt === undefined) return;
    this.#rttMs = this.#clock.now() - sentAt;
    this.#goodput.roundTrip(this.#rttMs);
    // The channel keeps the order: an earlier ping that has no answer by now will get none.
    for (const other of this.#pingSentAt.keys()) {
      this.#pingSentAt.delete(other);
      if (other === token) return;
    }
  }

  #ping(): void {
    if (this.#state !== "open" || this.#channel === null || this.#pulse === null) return;
    const now = this.#clock.now();
    const waiting = this.#channel.wireAmount ?? this.#channel.bufferedAmount;
    const silence = this.#pulse.look(now, this.#bytesUp, waiting);
    if (silence !== null) {
      return this.close(
        coded("link-timeout", `nothing came from ${this.remote} for ${Math.round(silence)} ms`),
      );
    }
    this.#pingToken = (this.#pingToken + 1) >>> 0;
    this.#pingSentAt.set(this.#pingToken, now);
    for (const oldest of this.#pingSentAt.keys()) {
      if (this.#pingSentAt.size <= PINGS_KEPT) break;
      this.#pingSentAt.delete(oldest);
    }
    this.#control("ping", { id: this.#pingToken });
    this.#stopTimer = this.#clock.after(PING_INTERVAL_MS, () => this.#ping());
  }

  /** Control chunks are tiny and go past the queue. */
  #control(type: ChunkType, fields: Partial<Chunk>): void {
    this.#handOver(encodeChunk(controlChunk(type, fields.id ?? 0, fields)));
  }

  #pump(): void {
    while (this.#state === "open" && this.#channel !== null && this.#otherListens) {
      const head = this.#queue.head;
      if (head === null) return;
      const limit = head === 0 ? CHANNEL_URGENT_BYTES_MAX : this.#bulkBytesMax;
      if (this.#channel.bufferedAmount > limit) {
        this.#channel.bufferedAmountLowThreshold = limit;
        return;
      }
      this.#sendChunk(this.#queue.next()!, this.#channel);
    }
  }

  #sendChunk(chunk: Chunk, { bufferedAmount: buffered }: Channel): void {
    const now = this.#clock.now();
    const measured = this.#goodput.leaves(chunk, { now, sent: this.#bytesUp, buffered });
    this.#handOver(encodeChunk(chunk));
    if (!measured) return;
    this.#goodputToken = this.#pingToken = (this.#pingToken + 1) >>> 0;
    this.#control("ping", { id: this.#goodputToken });
  }

  #handOver(bytes: Uint8Array<ArrayBuffer>): void {
    try {
      this.#channel?.send(bytes);
      this.#bytesUp += bytes.length;
    } catch (error) {
      this.failed("link-closed", `the channel to ${this.remote} took no more: ${String(error)}`);
    }
  }

  #end(reason: string, flush: Channel | null): void {
    if (this.#state === "closed") return;
    this.#state = "closed";
    this.#reason = reason;
    this.#stopTimer();
    this.#queue.clear();
    this.#channel = null;
    if (flush === null) this.#teardown();
    else this.#tearDownWhenSent(flush, this.#clock.now() + GOODBYE_FLUSH_MS);
    this.onstate?.("closed", reason);
  }

  /**
   * At least one look later even if nothing is buffered: some stacks report bytes as gone before they left.
   */
  #tearDownWhenSent(channel: Channel, deadline: number): void {
    channel.onbufferedamountlow = null;
    this.#clock.after(GOODBYE_POLL_MS, () => {
      const left = channel.bufferedAmount === 0 || this.#clock.now() >= deadline;
      if (left) this.#teardown();
      else this.#tearDownWhenSent(channel, deadline);
    });
  }
}

/** The reason in UTF-8, cut so that it fits; a cut character decodes as a replacement mark. */
function goodbyeText(reason: string): Uint8Array {
  return new TextEncoder().encode(reason).subarray(0, GOODBYE_BYTES_MAX);
}
