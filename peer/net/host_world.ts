// Peers and a coordinator made of timers, for the host's tests: what connects, what is blocked and what was
// said is in the test's hand. No network, no WebRTC, and nothing of a run.
import { type Channel, ChannelLink } from "./channel_link.ts";
import { ManualClock } from "./clock.ts";
import {
  createLinkHost,
  type CreateLinkOptions,
  type LinkHostLimits,
  type RelayingLinkHost,
} from "./host.ts";
import { DIRECT_CONNECT_TIMEOUT_MS } from "./simple_peer.ts";

/** One way, for signals, relayed bytes and direct messages alike. */
const DELAY_MS = 5;

/**
 * A direct link without WebRTC: an offer, an answer, then messages by timer. `blocked` networks answer
 * nothing.
 */
class FakeDirect extends ChannelLink {
  other: FakeDirect | null = null;
  #net: World;
  #key: string;
  #answer: () => void;

  constructor(net: World, names: [string, string], options: CreateLinkOptions) {
    super({ remote: names[1], path: "direct", clock: net.clock, teardown: () => this.#gone() });
    this.#net = net;
    this.#key = [...names].sort().join("-");
    this.#answer = () => options.onsignal('{"type":"answer"}');
    net.made++;
    net.clock.after(DIRECT_CONNECT_TIMEOUT_MS, () => {
      if (this.state === "connecting") this.failed("link-timeout", "no direct path");
    });
    if (options.initiator) {
      net.offers.set(this.#key, this);
      net.clock.after(0, () => options.onsignal('{"type":"offer"}'));
    }
  }

  signal(data: string): void {
    if (this.#net.blocked) return;
    if (data.includes("offer")) {
      this.other = this.#net.offers.get(this.#key)!;
      this.other.other = this;
      this.#answer();
    }
    this.opened(this.#channelToOther());
  }

  #channelToOther(): Channel {
    return {
      bufferedAmount: 0,
      bufferedAmountLowThreshold: 0,
      onbufferedamountlow: null,
      send: (bytes) => void this.#net.clock.after(DELAY_MS, () => this.other?.receive(bytes)),
    };
  }

  #gone(): void {
    this.#net.clock.after(DELAY_MS, () => this.other?.failed("link-closed", "the channel closed"));
  }
}

/** Peers and the coordinator between them. */
export class World {
  clock: ManualClock;
  blocked = false;
  relayed = 0;
  made = 0;
  offers = new Map<string, FakeDirect>();
  hosts = new Map<string, RelayingLinkHost>();
  log: string[] = [];
  #next = 1;

  constructor(clock = new ManualClock()) {
    this.clock = clock;
  }

  add(id: string, relay = true, limits: Partial<LinkHostLimits> = {}): RelayingLinkHost {
    const host = createLinkHost({
      selfId: id,
      clock: this.clock,
      limits,
      random32: () => this.#next++,
      createLink: (remote, options) => new FakeDirect(this, [id, remote], options),
      relay: relay ? (remote, bytes) => this.#relay(id, remote, bytes) : null,
    });
    host.onsignal = (remote, data) =>
      void this.clock.after(DELAY_MS, () => this.hosts.get(remote)?.signal(id, data));
    host.onframe = (remote, frame) => this.log.push(`${id}<${remote}: ${frame}`);
    host.onstate = (remote, state, reason) => this.log.push(`${id}-${remote} ${state} ${reason}`.trim());
    this.hosts.set(id, host);
    return host;
  }

  #relay(from: string, to: string, bytes: Uint8Array): void {
    this.relayed++;
    this.clock.after(DELAY_MS, () => this.hosts.get(to)?.receiveRelay(from, bytes));
  }

  states(id: string): string[] {
    return this.log.filter((line) => line.startsWith(`${id}-`));
  }
}
