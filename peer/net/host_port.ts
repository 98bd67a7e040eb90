// A LinkHost across a MessagePort: in a tab the links live on the page's thread (RTCPeerConnection does not exist in workers)
// while core and engine live in the worker. Frames are transferred, not copied. Both halves are here so that they cannot
// disagree; neither decides anything.
import type { IceServer } from "../wire/run.ts";
import type { RelayingLinkHost } from "./host.ts";
import type { LinkHost, LinkState, LinkStats, Priority } from "./link.ts";

type Bytes = Uint8Array<ArrayBuffer>;

type ToPage =
  | { call: "connect"; remote: string; initiator: boolean; iceServers: IceServer[] }
  | { call: "signal"; remote: string; data: string }
  | { call: "send"; remote: string; frame: Bytes; priority: Priority }
  | { call: "close"; remote: string; reason: string }
  | { call: "closeAll"; reason: string }
  | { call: "relayed"; remote: string; bytes: Bytes }
  | { call: "stats"; id: number };

type ToWorker =
  | { tell: "frame"; remote: string; frame: Bytes }
  | { tell: "state"; remote: string; state: LinkState; reason: string }
  | { tell: "signal"; remote: string; data: string }
  | { tell: "relay"; remote: string; bytes: Bytes }
  | { tell: "stats"; id: number; stats: Record<string, LinkStats> };

/** A page that does not answer within this time is busy or gone; the old figures stay. */
const STATS_MS = 5_000;

/** The worker's half: looks like a host, speaks to the page. */
export class PortHost implements RelayingLinkHost {
  onframe: LinkHost["onframe"] = null;
  onstate: LinkHost["onstate"] = null;
  onsignal: LinkHost["onsignal"] = null;
  readonly #port: MessagePort;
  readonly #relay: (remote: string, bytes: Bytes) => void;
  #asked = new Map<number, (stats: Record<string, LinkStats>) => void>();
  #nextId = 1;

  constructor(port: MessagePort, relay: (remote: string, bytes: Bytes) => void) {
    this.#port = port;
    this.#relay = relay;
    port.onmessage = (event: MessageEvent<ToWorker>) => this.#hear(event.data);
  }

  connect(remote: string, options: { initiator: boolean; iceServers: IceServer[] }): void {
    this.#call({ call: "connect", remote, ...options });
  }

  signal(remote: string, data: string): void {
    this.#call({ call: "signal", remote, data });
  }

  /** Takes the frame's memory over. A failure shows as the link's closing. */
  send(remote: string, frame: Uint8Array, priority: Priority): void {
    const own = owned(frame);
    this.#call({ call: "send", remote, frame: own, priority }, own);
  }

  close(remote: string, reason: string): void {
    this.#call({ call: "close", remote, reason });
  }

  closeAll(reason: string): void {
    this.#call({ call: "closeAll", reason });
  }

  receiveRelay(remote: string, bytes: Uint8Array): void {
    const own = owned(bytes);
    this.#call({ call: "relayed", remote, bytes: own }, own);
  }

  stats(): Promise<Record<string, LinkStats>> {
    const id = this.#nextId++;
    return new Promise((resolve) => {
      const timer = setTimeout(() => this.#answer(id, {}), STATS_MS);
      this.#asked.set(id, (stats) => {
        clearTimeout(timer);
        resolve(stats);
      });
      this.#call({ call: "stats", id });
    });
  }

  #call(message: ToPage, moved?: Bytes): void {
    this.#port.postMessage(message, moved === undefined ? [] : [moved.buffer]);
  }

  #answer(id: number, stats: Record<string, LinkStats>): void {
    this.#asked.get(id)?.(stats);
    this.#asked.delete(id);
  }

  #hear(message: ToWorker): void {
    if (message.tell === "frame") this.onframe?.(message.remote, message.frame);
    else if (message.tell === "state") this.onstate?.(message.remote, message.state, message.reason);
    else if (message.tell === "signal") this.onsignal?.(message.remote, message.data);
    else if (message.tell === "relay") this.#relay(message.remote, message.bytes);
    else this.#answer(message.id, message.stats);
  }
}

/** The page's half: serves a real host to the worker at the other end of the port. */
export function serveHost(
  port: MessagePort,
  createHost: (relay: (remote: string, bytes: Bytes) => void) => RelayingLinkHost,
): { close(reason: string): void } {
  const tell = (message: ToWorker, moved?: Bytes) => port.postMessage(message, moved ? [moved.buffer] : []);
  const host = createHost((remote, bytes) => {
    const own = owned(bytes);
    tell({ tell: "relay", remote, bytes: own }, own);
  });
  host.onframe = (remote, frame) => {
    const own = owned(frame);
    tell({ tell: "frame", remote, frame: own }, own);
  };
  host.onstate = (remote, state, reason) => tell({ tell: "state", remote, state, reason });
  host.onsignal = (remote, data) => tell({ tell: "signal", remote, data });
  port.onmessage = (event: MessageEvent<ToPage>) => serve(host, event.data, tell);
  return { close: (reason) => host.closeAll(reason) };
}

function serve(host: RelayingLinkHost, message: ToPage, tell: (message: ToWorker) => void): void {
  switch (message.call) {
    case "connect":
      return host.connect(message.remote, message);
    case "signal":
      return host.signal(message.remote, message.data);
    case "send":
      try {
        return host.send(message.remote, message.frame, message.priority);
      } catch (error) {
        // Overflow or a closed link: closing tells both ends; the core re-plans.
        return host.close(message.remote, String(error));
      }
    case "close":
      return host.close(message.remote, message.reason);
    case "closeAll":
      return host.closeAll(message.reason);
    case "relayed":
      return host.receiveRelay(message.remote, message.bytes);
    case "stats":
      void host.stats().then((stats) => tell({ tell: "stats", id: message.id, stats }));
  }
}

/** A buffer of its own may be transferred as it is; a view into a larger one is copied first. */
function owned(bytes: Uint8Array): Bytes {
  const whole = bytes.byteOffset === 0 && bytes.byteLength === bytes.buffer.byteLength;
  return (whole && bytes.buffer instanceof ArrayBuffer ? bytes : bytes.slice()) as Bytes;
}
