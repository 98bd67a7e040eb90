// Binds a peer's part in snapshots to its links, its timers, its uploads and its disk. Decides nothing: what is kept, sent and
// restored is peer/core/snapshots.ts. What must stay true: nothing here may end the session; a snapshot is a second line of
// defence, and training goes on without it.
import { UPLINK_PRIOR_BYTES_PER_S } from "./core/keeper_sender.ts";
import { type DeskEffect, type OwnCopy, SnapshotDesk } from "./core/snapshots.ts";
import { UplinkMeter } from "./core/uplink.ts";
import { hashBytes } from "./exact/chunk_hashes.ts";
import { type Clock, systemClock } from "./net/clock.ts";
import type { LinkHost, LinkStats } from "./net/link.ts";
import type { SavedStates } from "./store/saved_states.ts";
import type { PeerMessage, Welcome } from "./wire/control.ts";
import { ShoalError } from "./wire/errors.ts";
import { encodeFrame, type FrameHeader } from "./wire/frame.ts";
import { SNAPSHOT_MEMORY_SHARE, type SnapshotOrder } from "./wire/snapshots.ts";
import type { StagePlan } from "./wire/run.ts";

/** Behind boundary tensors and partial sums. */
const PRIORITY = 2;

interface Place {
  cut: number;
  step: number;
  stage: number;
}

export interface PeerSnapshotsOptions {
  welcome: Welcome;
  memoryBytes: number;
  host: Pick<LinkHost, "connect" | "send">;
  say(message: PeerMessage): void;
  /** False if the coordinator has not taken it. */
  upload(place: Place, file: { bytes: Uint8Array; hash: string }): Promise<boolean>;
  /** Where states outlive the peer; null: nowhere. */
  states: SavedStates | null;
  clock?: Clock;
}

/** Which run a saved state is of: the same configuration over the same text makes the same states. */
export function runKey({ config, corpus }: Pick<Welcome, "config" | "corpus">): string {
  return hashBytes(new TextEncoder().encode(JSON.stringify([config, corpus.hash])));
}

/** The header of a frame that carries a snapshot message; all that matters is in the message. */
export function snapshotHeader(payload: Uint8Array, incarnation: number): FrameHeader {
  return {
    ...{
      kind: "snapshot",
      codec: "bytes",
      pass: "train",
      gen: 0,
      cut: 0,
      step: 0,
      incarnation,
      fromStage: 0,
    },
    ...{ toStage: 0, microBatch: 0, exponent: 0, rows: 1, cols: payload.length, set: [] },
  };
}

export class PeerSnapshots {
  readonly desk: SnapshotDesk;
  readonly #options: PeerSnapshotsOptions;
  readonly #clock: Clock;
  readonly #uplink = new UplinkMeter(UPLINK_PRIOR_BYTES_PER_S);
  #stopTimer: () => void = () => {};
  #saving: Promise<unknown> = Promise.resolve();
  #over = false;

  constructor(options: PeerSnapshotsOptions) {
    this.#options = options;
    this.#clock = options.clock ?? systemClock;
    const bytesMax = Math.floor(options.memoryBytes * SNAPSHOT_MEMORY_SHARE);
    this.desk = new SnapshotDesk({ self: options.welcome.peer, bytesMax });
  }

  /** What an earlier peer on this computer has left on disk is offered; whether it is of use the coordinator knows. */
  async offerSaved(): Promise<void> {
    const { states, welcome, say } = this.#options;
    const found = await states?.load(runKey(welcome)) ?? [];
    const kept = found.filter(({ stateHash: hash, run: _, ...state }) => this.desk.adopt({ ...state, hash }));
    if (kept.length === 0 || this.#over) return;
    const offered = kept.map(({ firstLayer, endLayer, step, stateHash: hash }) => ({
      ...{ firstLayer, endLayer, step, hash },
    }));
    say({ type: "offer", states: offered });
  }

  order(message: SnapshotOrder): void {
    this.#perform(this.desk.order(message, this.#clock.now()));
  }

  /** True if an export was for a snapshot; it is dealt with then. */
  take(
    job: Place,
    result: { file: { bytes: Uint8Array; hash: string }; plan: StagePlan | undefined },
  ): boolean {
    if (!this.desk.wants(job)) return false;
    const { file: { bytes, hash }, plan } = result;
    const now = this.#clock.now();
    if (plan !== undefined) this.#perform(this.desk.exported(job, { plan, hash, file: bytes, now }));
    return true;
  }

  receive(from: string, payload: Uint8Array): void {
    this.#perform(this.desk.receive(from, payload, this.#clock.now()));
  }

  link(peer: string, open: boolean): void {
    this.#perform(this.desk.link(peer, open, this.#clock.now()));
  }

  /** The newest counters of all links. */
  measure(links: Record<string, LinkStats>): void {
    this.#uplink.observe(links, this.#clock.now());
    this.desk.core.sender.setUplink(this.#uplink.bytesPerS);
  }

  close(): void {
    this.#over = true;
    this.#stopTimer();
  }

  #perform(effects: DeskEffect[]): void {
    for (const effect of effects) if (!this.#over) this.#do(effect);
    this.#wait();
  }

  #do(effect: DeskEffect): void {
    const { welcome, host, say } = this.#options;
    switch (effect.do) {
      case "say":
        return say(effect.message);
      case "connect": {
        const initiator = welcome.peer < effect.peer;
        return host.connect(effect.peer, { initiator, iceServers: welcome.config.iceServers });
      }
      case "send":
        return this.#send(effect.to, effect.bytes);
      case "upload":
        void this.#upload(effect);
        return;
      case "save":
        this.#saving = this.#saving.then(() => this.#save(effect.copy));
        return;
    }
  }

  #send(to: string, payload: Uint8Array): void {
    const frame = encodeFrame(snapshotHeader(payload, this.#options.welcome.incarnation), payload);
    try {
      this.#options.host.send(to, frame, PRIORITY);
    } catch (error) {
      // A closed link reports itself, and what is not confirmed is offered again.
      if (!(error instanceof ShoalError)) throw error;
    }
  }

  async #upload({ cut, step, stage, hash, file }: DeskEffect & { do: "upload" }): Promise<void> {
    const place = { cut, step, stage };
    if (await this.#options.upload(place, { bytes: file, hash }) || this.#over) return;
    const reason = "the coordinator did not take the state";
    this.#options.say({ type: "restore-failed", ...place, reason });
  }

  async #save({ hash: stateHash, ...copy }: OwnCopy): Promise<void> {
    const { states, welcome } = this.#options;
    await states?.save({ ...copy, stateHash, run: runKey(welcome) });
  }

  #wait(): void {
    this.#stopTimer();
    const now = this.#clock.now();
    const ms = this.#over ? null : this.desk.waitMs(now);
    if (ms === null) return;
    this.#stopTimer = this.#clock.after(ms, () => this.#perform(this.desk.tick(this.#clock.now())));
  }
}
