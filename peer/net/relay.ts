// A Link through the coordinator: chunks travel by callbacks, whoever carries them. Slower than a direct
// path, never silently lossy: both ends greet with a nonce before data flows, and a window of unacknowledged
// bytes bounds what is in flight.
import { type Channel, ChannelLink, coded } from "./channel_link.ts";
import { type Chunk, controlChunk, decodeChunk, encodeChunk } from "./chunks.ts";
import { type Clock, systemClock } from "./clock.ts";
import type { Pacer } from "./pacer.ts";

/**
 * Bytes in flight for frames of low rank; half of what priority 0 may have, so that an urgent frame finds
 * room.
 */
export const RELAY_BULK_BYTES_MAX = 128 * 1024;
/** The receiver acknowledges after so many bytes: often enough that the window never runs dry in between. */
export const RELAY_ACK_BYTES = 60 * 1024;
/** Pause between two greetings while the other end is silent. */
export const RELAY_HELLO_INTERVAL_MS = 500;
/** Time for the greeting; the coordinator is reachable by then or the link has failed. */
export const RELAY_CONNECT_TIMEOUT_MS = 10_000;

export interface RelayLinkOptions {
  remote: string;
  /** Hands bytes to whoever carries them to `remote`, in order; may throw when it cannot. */
  sendRelay: (remote: string, bytes: Uint8Array<ArrayBuffer>) => void;
  /** Nonzero 32-bit number that no earlier link of this pair had; default: random. */
  nonce?: number;
  /** Default: the system's clock. */
  clock?: Clock;
  /** Default: RELAY_CONNECT_TIMEOUT_MS. */
  connectTimeoutMs?: number;
  /** Default: no rate holds. */
  pacer?: Pacer | undefined;
}

/**
 * True for a greeting, which is how a peer learns that the other end wants to talk through the coordinator.
 */
export function isRelayHello(bytes: Uint8Array): boolean {
  const chunk = decodeChunk(bytes);
  return chunk.ok && chunk.value.type === "hello";
}

/** Greets until the other end answers, then is a link like any other; feed it with receiveRelay(). */
export class RelayLink extends ChannelLink {
  #window: WindowChannel;
  #nonce: number;
  #remoteNonce = 0;
  #told = 0;
  #clock: Clock;
  #deadline: number;
  #greet: () => void;
  #cancel: { stop: () => void };

  constructor(options: RelayLinkOptions) {
    const cancel = { stop: () => {} };
    super({
      remote: options.remote,
      path: "relay",
      teardown: () => cancel.stop(),
      bulkBytesMax: RELAY_BULK_BYTES_MAX,
      pacer: options.pacer,
      ...(options.clock ? { clock: options.clock } : {}),
    });
    const send = (bytes: Uint8Array<ArrayBuffer>) => options.sendRelay(options.remote, bytes);
    this.#cancel = cancel;
    this.#clock = options.clock ?? systemClock;
    this.#nonce = options.nonce ?? randomNonce();
    this.#window = new WindowChannel(send);
    this.#deadline = this.#clock.now() + (options.connectTimeoutMs ?? RELAY_CONNECT_TIMEOUT_MS);
    this.#greet = () => send(encodeChunk(controlChunk("hello", this.#nonce, { offset: this.#remoteNonce })));
    // After the constructor, so that the owner has set its handlers before anything can happen.
    this.#cancel.stop = this.#clock.after(0, () => this.#knock());
  }

  /** Called with everything that arrives from `remote` through the coordinator. */
  receiveRelay(bytes: Uint8Array): void {
    if (this.state === "closed") return;
    const chunk = decodeChunk(bytes);
    if (!chunk.ok) return this.close(coded(chunk.code, chunk.reason));
    if (chunk.value.type === "hello") return this.#onHello(chunk.value);
    // What arrives before the greeting belongs to an earlier link of this pair.
    if (this.state === "connecting") return;
    if (chunk.value.type === "ack") {
      if (!this.#window.acknowledged(chunk.value.id)) {
        this.close(coded("bad-frame", "more acknowledged than sent"));
      }
      return;
    }
    this.#window.received(bytes.length);
    this.receive(bytes);
  }

  #onHello({ id, offset }: Chunk): void {
    if (id === 0) return this.close(coded("bad-frame", "greeting without a nonce"));
    if (this.#remoteNonce !== 0 && id !== this.#remoteNonce) {
      return this.failed("link-closed", "the other end started anew");
    }
    this.#remoteNonce = id;
    if (this.#told !== id && !this.#tryGreet()) return;
    this.#told = id;
    if (offset === this.#nonce && this.state === "connecting") {
      this.#cancel.stop();
      this.opened(this.#window);
    }
  }

  #knock(): void {
    if (this.state !== "connecting") return;
    if (this.#clock.now() >= this.#deadline) {
      return this.failed("link-timeout", `no greeting from ${this.remote} through the coordinator`);
    }
    if (this.#tryGreet()) this.#cancel.stop = this.#clock.after(RELAY_HELLO_INTERVAL_MS, () => this.#knock());
  }

  #tryGreet(): boolean {
    try {
      this.#greet();
      return true;
    } catch (error) {
      this.failed("link-closed", `the relay to ${this.remote} took no more: ${String(error)}`);
      return false;
    }
  }
}

/** Counts what is in flight: bytes sent and not yet acknowledged are the buffered amount of this channel. */
class WindowChannel implements Channel {
  bufferedAmountLowThreshold = 0;
  onbufferedamountlow: ((event: never) => void) | null = null;
  #send: (bytes: Uint8Array<ArrayBuffer>) => void;
  /** Totals modulo 2^32: only their differences are used. */
  #sentTotal = 0;
  #ackedTotal = 0;
  #receivedTotal = 0;
  #reportedTotal = 0;

  constructor(send: (bytes: Uint8Array<ArrayBuffer>) => void) {
    this.#send = send;
  }

  get bufferedAmount(): number {
    return (this.#sentTotal - this.#ackedTotal) >>> 0;
  }

  send(bytes: Uint8Array<ArrayBuffer>): void {
    this.#sentTotal = (this.#sentTotal + bytes.length) >>> 0;
    this.#send(bytes);
  }

  received(bytes: number): void {
    this.#receivedTotal = (this.#receivedTotal + bytes) >>> 0;
    if (((this.#receivedTotal - this.#reportedTotal) >>> 0) < RELAY_ACK_BYTES) return;
    this.#reportedTotal = this.#receivedTotal;
    this.#send(encodeChunk(controlChunk("ack", this.#receivedTotal)));
  }

  /** False if `total` acknowledges bytes that were never sent. */
  acknowledged(total: number): boolean {
    const newly = (total - this.#ackedTotal) >>> 0;
    if (newly > this.bufferedAmount) return false;
    this.#ackedTotal = total;
    if (this.bufferedAmount <= this.bufferedAmountLowThreshold) {
      this.onbufferedamountlow?.(undefined as never);
    }
    return true;
  }
}

function randomNonce(): number {
  const [nonce = 0] = crypto.getRandomValues(new Uint32Array(1));
  return nonce === 0 ? 1 : nonce;
}
