// Direct links between peers of one process, made as WebRTC's are: offer and answer travel through the coordinator, then the
// bytes go from peer to peer, with the delay and the rate that the bench wants. Chunks, priorities, back-pressure and pings are
// those of every link; only the wire itself is simulated.
import { ChannelLink } from "../peer/net/channel_link.ts";
import type { Clock } from "../peer/net/clock.ts";
import type { CreateLinkOptions, DirectLink } from "../peer/net/host.ts";
import { LoopbackWire } from "../peer/net/loopback.ts";
import { ShoalError } from "../peer/wire/errors.ts";

export interface WireOptions {
  /** One way. */
  delayMs: number;
  /** Of each direction of each link. Absent: no limit. */
  bytesPerS?: number;
}

/** All links of a run: who offers waits here for who answers. */
export class WanNetwork {
  readonly #options: WireOptions & { clock: Clock };
  readonly #offers = new Map<string, WanLink>();
  /** Delivered over all wires so far. */
  bytes = 0;

  constructor(options: WireOptions & { clock: Clock }) {
    this.#options = options;
  }

  /** The link that `self` makes to `remote`; for createLinkHost. */
  createLink(self: string, remote: string, options: CreateLinkOptions): DirectLink {
    const link: WanLink = new WanLink(remote, this.#options, {
      signal: (data) => this.#signal([self, remote], link, data),
      count: (bytes) => this.bytes += bytes,
    });
    if (options.initiator) {
      this.#offers.set(`${self}>${remote}`, link);
      queueMicrotask(() => options.onsignal('{"type":"offer"}'));
    } else link.answer = () => options.onsignal('{"type":"answer"}');
    return link;
  }

  #signal([self, remote]: readonly [string, string], link: WanLink, data: string): void {
    const { type } = JSON.parse(data) as { type: string };
    if (type !== "offer") return;
    const other = this.#offers.get(`${remote}>${self}`);
    this.#offers.delete(`${remote}>${self}`);
    if (other === undefined) throw new ShoalError("internal", `${remote} offered no link to ${self}`);
    link.joinTo(other);
    link.answer();
  }
}

class WanLink extends ChannelLink implements DirectLink {
  answer: () => void = () => {};
  readonly signal: (data: string) => void;
  readonly #options: WireOptions & { clock: Clock };
  readonly #count: (bytes: number) => void;
  #other: WanLink | null = null;

  constructor(
    remote: string,
    options: WireOptions & { clock: Clock },
    to: { signal(data: string): void; count(bytes: number): void },
  ) {
    super({ remote, path: "direct", clock: options.clock, teardown: () => this.#gone() });
    this.#options = options;
    this.#count = to.count;
    this.signal = to.signal;
  }

  joinTo(other: WanLink): void {
    this.#join(other);
    other.#join(this);
    this.#open();
    other.#open();
  }

  #join(other: WanLink): void {
    this.#other = other;
  }

  #open(): void {
    const { clock, ...wire } = this.#options;
    const deliver = (bytes: Uint8Array) => {
      this.#count(bytes.length);
      this.#other?.receive(bytes);
    };
    this.opened(new LoopbackWire(deliver, clock, wire));
  }

  /** An end that tears down tells the other one, as a closed data channel does. */
  #gone(): void {
    const { clock, delayMs } = this.#options;
    clock.after(delayMs, () => this.#other?.failed("link-closed", "the channel closed"));
  }
}
