// The contract of a link between two peers, and of the host that owns all links of one peer. One acceptance suite
// (link_suite.ts) runs against every implementation: simple-peer, relay, loopback. Frames arrive whole, in order per
// priority, at most once; a link that cannot keep that promise closes.
import type { IceServer } from "../wire/run.ts";

/** Lower goes first: boundary tensors, then partial sums, then bulk state. */
export type Priority = 0 | 1 | 2;
export type LinkState = "connecting" | "open" | "closed";
export type LinkPath = "direct" | "turn" | "relay" | "loopback";

export interface LinkStats {
  path: LinkPath;
  rttMs: number;
  /** The rate of large frames under way to the other end, bytes per second; 0 while none was sent. */
  upBytesPerS: number;
  /** Large frames whose time was taken so far; absent where a link takes none. */
  timed?: number;
  bytesUp: number;
  bytesDown: number;
  framesUp: number;
  framesDown: number;
  /** Of a link through the coordinator: what became of the direct way. */
  why?: string;
}

export interface Link {
  readonly remote: string;
  readonly state: LinkState;
  /** Bytes accepted by send() and not yet handed to the network. */
  readonly bufferedBytes: number;
  onframe: ((frame: Uint8Array) => void) | null;
  onstate: ((state: LinkState, reason: string) => void) | null;
  /** Queues a frame of any size up to FRAME_BYTES_MAX; throws ShoalError link-closed or link-overflow. */
  send(frame: Uint8Array, priority: Priority): void;
  close(reason: string): void;
  stats(): LinkStats;
}

/** All links of one peer. In a tab it lives on the page's thread while core and engine live in the worker. */
export interface LinkHost {
  onframe: ((remote: string, frame: Uint8Array) => void) | null;
  onstate: ((remote: string, state: LinkState, reason: string) => void) | null;
  /** Opaque text (SDP, ICE candidates) to carry to `remote` through the coordinator. */
  onsignal: ((remote: string, data: string) => void) | null;
  /** Opens a link; of two peers exactly one is the initiator. Repeating it for an open remote does nothing. */
  connect(remote: string, options: { initiator: boolean; iceServers: IceServer[] }): void;
  signal(remote: string, data: string): void;
  send(remote: string, frame: Uint8Array, priority: Priority): void;
  close(remote: string, reason: string): void;
  closeAll(reason: string): void;
  stats(): Promise<Record<string, LinkStats>>;
}
