// A LinkHost that tells a gate what goes and comes, so that a peer can rest while it owes. It holds nothing back itself: that is
// the pacer's part, where frames leave the computer.
import type { Gate } from "../limits.ts";
import type { IceServer } from "../wire/run.ts";
import type { RelayingLinkHost } from "./host.ts";
import type { LinkHost, LinkStats, Priority } from "./link.ts";

export class GatedHost implements RelayingLinkHost {
  onframe: LinkHost["onframe"] = null;
  readonly #host: RelayingLinkHost;
  readonly #gate: Gate;

  constructor(host: RelayingLinkHost, gate: Gate) {
    this.#host = host;
    this.#gate = gate;
    host.onframe = (remote, frame) => {
      gate.received(frame.length);
      this.onframe?.(remote, frame);
    };
  }

  set onstate(handler: LinkHost["onstate"]) {
    this.#host.onstate = handler;
  }

  get onstate(): LinkHost["onstate"] {
    return this.#host.onstate;
  }

  set onsignal(handler: LinkHost["onsignal"]) {
    this.#host.onsignal = handler;
  }

  get onsignal(): LinkHost["onsignal"] {
    return this.#host.onsignal;
  }

  connect(remote: string, options: { initiator: boolean; iceServers: IceServer[] }): void {
    this.#host.connect(remote, options);
  }

  signal(remote: string, data: string): void {
    this.#host.signal(remote, data);
  }

  /** Counted before it is handed over: the frame's memory may be taken. */
  send(remote: string, frame: Uint8Array, priority: Priority): void {
    this.#gate.sent(frame.length);
    this.#host.send(remote, frame, priority);
  }

  close(remote: string, reason: string): void {
    this.#host.close(remote, reason);
  }

  closeAll(reason: string): void {
    this.#host.closeAll(reason);
  }

  receiveRelay(remote: string, bytes: Uint8Array): void {
    this.#host.receiveRelay(remote, bytes);
  }

  stats(): Promise<Record<string, LinkStats>> {
    return this.#host.stats();
  }
}
