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
  /** Nothing that this end sends arrives any more, not even that it closes. */
  mute = false;
  readonly names: [string, string];
  #net: World;
  #key: string;
  #answer: () => void;

  constructor(net: World, names: [string, string], options: CreateLinkOptions) {
    super({ remote: names[1], path: "direct", clock: net.clock, teardown: () => this.#gone() });
    this.names = names;
    this.#net = net;
    this.#key = [...names].sort().join("-");
    this.#answer = () => options.onsignal('{"type":"answer"}');
    net.made++;
    net.links.push(this);
    net.clock.after(DIRECT_CONNECT_TIMEOUT_MS, () => {
      if (this.state === "connecting") this.failed("link-timeout", "no direct path");
    });
    if (options.initiator) {
      net.offers.set(this.#key, this);
      net.clock.after(0, () => options.onsignal('{"type":"offer"}'));
    }
  }

  signal(data: string): void {
    const [self, remote] = this.names;
    if (this.#net.blocked || !this.#net.carries(self, remote) || !this.#net.carries(remote, self)) return;
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
      send: (bytes) => this.#toOther((other) => other.receive(bytes)),
    };
  }

  #gone(): void {
    this.#toOther((other) => other.failed("link-closed", "the channel closed"));
  }

  #toOther(deliver: (other: FakeDirect) => void): void {
    if (this.mute || !this.#net.carries(...this.names)) return;
    this.#net.clock.after(DELAY_MS, () => this.other !== null && deliver(this.other));
  }
}

/** Peers and the coordinator between them. */
export class World {
  clock: ManualClock;
  blocked = false;
  /** Directions, as "a>b", in which direct messages vanish without a sign. */
  cuts = new Set<string>();
  links: FakeDirect[] = [];
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

  /** The link is over at `id` alone: what it says of that to `remote` is lost. */
  loseAt(id: string, remote: string): void {
    for (const link of this.links) if (link.names.join() === `${id},${remote}`) link.mute = true;
    this.hosts.get(id)!.close(remote, "link-timeout: the test says so");
  }

  carries(from: string, to: string): boolean {
    return !this.cuts.has(`${from}>${to}`);
  }

  /** Reconnects as a core does that needs the link: whenever it hears "closed". */
  keepLinked(id: string, remote: string, initiator: boolean): void {
    const host = this.hosts.get(id)!;
    const log = host.onstate!;
    host.onstate = (peer, state, reason) => {
      log(peer, state, reason);
      if (peer === remote && state === "closed") host.connect(remote, { initiator, iceServers: [] });
    };
    host.connect(remote, { initiator, iceServers: [] });
  }

  #relay(from: string, to: string, bytes: Uint8Array): void {
    this.relayed++;
    this.clock.after(DELAY_MS, () => this.hosts.get(to)?.receiveRelay(from, bytes));
  }

  states(id: string): string[] {
    return this.log.filter((line) => line.startsWith(`${id}-`));
  }
}
