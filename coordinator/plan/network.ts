// The link model of the simulators: when does a message arrive, given what the wire already carries.
// Not a protocol: no loss, no acknowledgement. Messages on one wire keep their order.

/** Seconds; a function where links differ. */
export type PerLink = number | ((from: number, to: number) => number);

/**
 * `duplex`: each direction of each link is its own queue, latency is pure propagation (WebRTC data channels).
 * `inbound-shared`: everything a device receives shares one queue. `stop-and-wait`: that, and the latency
 * occupies the queue too.
 */
export type LinkMode = "duplex" | "inbound-shared" | "stop-and-wait";

export interface Network {
  /** One-way propagation. */
  latency: PerLink;
  /** Serialisation of one message, that is bytes / rate. */
  transfer: PerLink;
  mode: LinkMode;
}

/** The wires of one run, with what they are reserved for. */
export interface Wires {
  /** Sends at `time` (not before earlier sends on the same wire); returns when the message has arrived. */
  send(from: number, to: number, time: number, stretch?: Stretch): number;
}

/** Factors on one message's times, for jitter. Default 1. */
export interface Stretch {
  latency: number;
  transfer: number;
}

/** Links that cost nothing; what the papers' formulas assume. */
export const NO_NETWORK: Network = { latency: 0, transfer: 0, mode: "duplex" };

/** Devices are numbered below this, or two wires would share one number. */
const DEVICES_MAX = 2 ** 20;

const NO_STRETCH: Stretch = { latency: 1, transfer: 1 };

export function createWires(network: Network): Wires {
  const freeAt = new Map<number, number>();
  const of = (value: PerLink, from: number, to: number) =>
    typeof value === "number" ? value : value(from, to);
  return {
    send(from, to, time, stretch = NO_STRETCH) {
      const wire = network.mode === "duplex" ? from * DEVICES_MAX + to : to;
      const latency = of(network.latency, from, to) * stretch.latency;
      const occupied = network.mode === "stop-and-wait" ? latency : 0;
      const transfer = of(network.transfer, from, to) * stretch.transfer;
      const sent = Math.max(time, freeAt.get(wire) ?? 0) + transfer + occupied;
      freeAt.set(wire, sent);
      return sent + latency - occupied;
    },
  };
}
