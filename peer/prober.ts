// Measures a link when the coordinator asks for it: connects, waits for a round trip, sends a few frames behind everything else,
// and tells how quickly they went. It decides nothing about the run, and what it cannot find out within its bounds it leaves
// out. What must stay true: few bytes, little time, and no probe of a peer whose owner paused it.
import { type Clock, systemClock } from "./net/clock.ts";
import type { LinkHost, LinkStats } from "./net/link.ts";
import type { PeerMessage } from "./wire/control.ts";
import { ShoalError } from "./wire/errors.ts";
import { encodeFrame, PROBE_PAYLOAD_BYTES_MAX } from "./wire/frame.ts";
import type { IceServer } from "./wire/run.ts";

/** The first tells a slow line without filling it, the last outlasts a line's slow start; 240 KiB in all. */
export const PROBE_BYTES: readonly number[] = [16 * 1024, 64 * 1024, PROBE_PAYLOAD_BYTES_MAX];
/** From the moment the link is open; what is under way by then still arrives, but is not waited for. */
export const PROBE_MS = 1_000;
/** For the link to open. What takes longer goes a way that would be no use to a pipeline either. */
export const OPEN_MS = 8_000;
/** Pause between two looks at what the link counts. It also parts two frames, so that each is timed by itself. */
const LOOK_MS = 25;
/** Links measured at a time; a coordinator asks for one. */
const PROBES_MAX = 4;
/** Behind boundary tensors and partial sums. */
const PRIORITY = 2;

export interface ProberOptions {
  self: string;
  incarnation: number;
  iceServers: IceServer[];
  host: Pick<LinkHost, "connect" | "send" | "stats">;
  say(message: PeerMessage): void;
  /** False while its owner wants it to do nothing. */
  mayProbe(): boolean;
  /** Default: the system's clock. */
  clock?: Clock;
}

interface Probe {
  peer: string;
  askedAt: number;
  openAt: number | null;
  /** The shortest so far, ms; 0 before the first. */
  rttMs: number;
  /** Frames that were sent, and how many the link had timed when the newest one left. */
  sent: number;
  timed: number;
  /** Something is under way, or its answer came with the last look only. */
  waits: boolean;
}

export class Prober {
  readonly #options: ProberOptions;
  readonly #clock: Clock;
  readonly #probes = new Map<string, Probe>();
  #stopTimer: (() => void) | null = null;
  #over = false;

  constructor(options: ProberOptions) {
    this.#options = options;
    this.#clock = options.clock ?? systemClock;
  }

  /** Always answered by one `probed`, unless the session ends. */
  order(peer: string): void {
    const { self, host, iceServers, mayProbe, say } = this.#options;
    if (this.#over || this.#probes.has(peer)) return;
    if (peer === self || this.#probes.size >= PROBES_MAX || !mayProbe()) return say({ type: "probed", peer });
    const nothing = { openAt: null, rttMs: 0, sent: 0, timed: 0, waits: false };
    this.#probes.set(peer, { peer, askedAt: this.#clock.now(), ...nothing });
    host.connect(peer, { initiator: self < peer, iceServers });
    this.#lookSoon();
  }

  close(): void {
    this.#over = true;
    this.#stopTimer?.();
    this.#probes.clear();
  }

  #lookSoon(): void {
    this.#stopTimer ??= this.#clock.after(LOOK_MS, () => void this.#look());
  }

  async #look(): Promise<void> {
    const links = await this.#options.host.stats();
    this.#stopTimer = null;
    if (this.#over) return;
    for (const probe of [...this.#probes.values()]) this.#advance(probe, links[probe.peer]);
    if (this.#probes.size > 0) this.#lookSoon();
  }

  #advance(probe: Probe, link: LinkStats | undefined): void {
    const now = this.#clock.now();
    if (link === undefined) {
      if (probe.openAt !== null || now - probe.askedAt >= OPEN_MS) this.#end(probe, undefined);
      return;
    }
    probe.openAt ??= now;
    if (link.rttMs > 0) probe.rttMs = probe.rttMs === 0 ? link.rttMs : Math.min(probe.rttMs, link.rttMs);
    if (now - probe.openAt >= PROBE_MS || !this.#options.mayProbe()) return this.#end(probe, link);
    // Without a round trip the time of a frame cannot be told from it.
    if (probe.rttMs === 0) return;
    if (probe.waits) {
      if ((link.timed ?? 0) > probe.timed) probe.waits = false;
      return;
    }
    const bytes = PROBE_BYTES[probe.sent];
    const leftMs = probe.openAt + PROBE_MS - now;
    if (bytes === undefined || !arrivesWithin(leftMs, bytes, link)) return this.#end(probe, link);
    this.#send(probe, bytes, link);
  }

  #send(probe: Probe, bytes: number, { timed = 0 }: LinkStats): void {
    Object.assign(probe, { sent: probe.sent + 1, timed, waits: true });
    try {
      const frame = encodeFrame(probeHeader(bytes, this.#options.incarnation), new Uint8Array(bytes));
      this.#options.host.send(probe.peer, frame, PRIORITY);
    } catch (error) {
      // A closed link shows itself at the next look, and a full one has better things to carry.
      if (!(error instanceof ShoalError)) throw error;
    }
  }

  #end({ peer, rttMs }: Probe, link: LinkStats | undefined): void {
    this.#probes.delete(peer);
    const known = link !== undefined && rttMs > 0;
    const figures = known ? { link: { peer, rttMs, upBytesPerS: link.upBytesPerS, path: link.path } } : {};
    this.#options.say({ type: "probed", peer, ...figures });
  }
}

/** A link that has carried nothing yet is tried. */
function arrivesWithin(ms: number, bytes: number, { upBytesPerS, rttMs }: LinkStats): boolean {
  return upBytesPerS === 0 || bytes / upBytesPerS * 1000 + rttMs < ms;
}

/** All that matters is how long it takes. */
function probeHeader(bytes: number, incarnation: number) {
  return {
    ...{ kind: "probe" as const, codec: "bytes" as const, pass: "train" as const, gen: 0, cut: 0, step: 0 },
    ...{ incarnation, fromStage: 0, toStage: 0, microBatch: 0, exponent: 0, rows: 1, cols: bytes, set: [] },
  };
}
