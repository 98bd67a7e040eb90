// The coordinator's process in a simulation: its core, its log on a disk that may be full or torn, the states that peers have
// uploaded, and its death and return. With world.ts the files that call the cores. What must stay true, as in the real shell:
// no effect is carried out before the record it depends on is synced.
import { RunCore } from "../../coordinator/core/run_core.ts";
import type { RestoredPeer } from "../../coordinator/core/run_record.ts";
import type { RunEffect, RunEvent } from "../../coordinator/core/run_state.ts";
import { LOG_FORMAT, type LogRecord } from "../../coordinator/store/run_log_format.ts";
import type { Have, StateFile } from "../../peer/wire/control.ts";
import type { ModelSpec, RunConfig, View } from "../../peer/wire/run.ts";
import { peersOf } from "../../peer/wire/view.ts";
import type { Random } from "../support/random.ts";
import type { Clock } from "./clock.ts";
import { Disk } from "./disk.ts";
import { changedFile } from "./forgery.ts";
import type { CoordinatorCrash, Observer } from "./types.ts";

/** A full disk is tried again after so long. */
const STALL_MS = 250;

export interface CoordinatorOptions {
  config: RunConfig;
  spec: ModelSpec;
  clock: Clock;
  random: Random;
  observers: readonly Observer[];
  /** Everything but the disk is the world's business. */
  onEffect(effect: RunEffect): void;
  onDown(lose: boolean): void;
}

type StateName = Pick<StateFile, "stage" | "hash">;

export class CoordinatorProcess {
  core: RunCore;
  readonly disk = new Disk();
  up = true;
  /** How far its clock is off. */
  clockOffMs = 0;
  /** So many of the next state files are handed out with a wrong bit. */
  corruptFetches = 0;
  /** The run's history; another one after a rollback. */
  epoch = "epoch 0";
  readonly #o: CoordinatorOptions;
  #doom: CoordinatorCrash | null = null;
  #files = new Map<string, { bytes: Uint8Array; step: number }>();
  #events: RunEvent[] = [];
  #effects: RunEffect[] = [];
  /** Members of the view that the log ended with. */
  #members: RestoredPeer[] = [];
  #stalled = false;
  #running = false;

  constructor(options: CoordinatorOptions) {
    this.#o = options;
    const { config, spec } = options;
    this.core = new RunCore(config, spec);
    const begin = { config, spec, corpusHash: "", epoch: this.epoch, gen: 0, view: null, committed: 0 };
    const run = { ...begin, commit: null, peers: [], idsUpTo: 0, ended: null };
    this.#append({ kind: "run", format: LOG_FORMAT, run });
  }

  /** Events are taken one after the other, also those that effects cause; while the disk is full they wait. */
  take(event: RunEvent): void {
    if (!this.up) return;
    this.#events.push(event);
    this.#work();
  }

  /** kill -9, now or at a chosen effect; it comes back with what its disk holds. */
  crash(crash: CoordinatorCrash): void {
    if (crash.before !== undefined) this.#doom = crash;
    else if (this.up) this.#fall(crash);
  }

  heal(): void {
    this.clockOffMs = 0;
    this.corruptFetches = 0;
    this.disk.full = false;
    this.#doom = null;
  }

  putFile(step: number, { stage, hash }: StateName, bytes: Uint8Array): void {
    this.#files.set(`${step}/${stage}/${hash}`, { bytes, step });
  }

  file(step: number, { stage, hash }: StateName): Uint8Array | null {
    const found = this.#files.get(`${step}/${stage}/${hash}`);
    if (!this.up || found === undefined) return null;
    if (this.corruptFetches === 0) return found.bytes;
    this.corruptFetches--;
    return changedFile(found.bytes);
  }

  /** A peer asks to go on as who it was; false if it is not known any more. */
  takesBack(id: string, epoch: string): boolean {
    const { view, phase } = this.core.state;
    return this.up && phase === "regathering" && epoch === this.epoch && view !== null &&
      peersOf(view).includes(id) && this.core.state.peers[id] === undefined;
  }

  takeBack(id: string, have: Have | null): void {
    const member = this.#members.find((peer) => peer.id === id);
    if (member === undefined) return;
    const { ticket: _, incarnation: __, ...peer } = member;
    this.take({ type: "return", peer, have });
  }

  #work(): void {
    if (this.#running || this.#stalled) return;
    this.#running = true;
    try {
      this.#finishEffects();
      while (this.up && this.#effects.length === 0 && this.#events.length > 0) {
        const now = this.#o.clock.now + this.clockOffMs;
        const event = this.#events.shift()!;
        for (const observer of this.#o.observers) observer.heard?.(event, this.core);
        this.#effects = this.core.step(event, now);
        this.#finishEffects();
      }
    } finally {
      this.#running = false;
    }
  }

  #finishEffects(): void {
    for (let next = this.#effects[0]; next !== undefined; next = this.#effects[0]) {
      if (this.#doom?.before?.(next)) return this.#fall(this.#doom);
      if (!this.#record(next)) return this.#stall();
      this.#effects.shift();
      for (const observer of this.#o.observers) observer.coordinator?.(next);
      this.#carryOut(next);
    }
  }

  #stall(): void {
    this.#stalled = true;
    this.#o.clock.after(STALL_MS, () => {
      this.#stalled = false;
      if (this.up) this.#work();
    });
  }

  /** What must outlive the process before the effect may be carried out. */
  #record(effect: RunEffect): boolean {
    if (effect.do === "persist") {
      const { record } = effect;
      if (record.kind !== "view") return this.#append(record);
      return this.#append({ ...record, peers: this.#membersOf(record.view) });
    }
    if (effect.do !== "report" || effect.line.event !== "rollback") return true;
    const epoch = `epoch at ${this.#o.clock.now}`;
    const written = this.#append({ kind: "rewind", epoch, committed: effect.line.step });
    if (written) this.epoch = epoch;
    return written;
  }

  #append(record: LogRecord): boolean {
    const written = this.disk.append(record);
    if (written) this.disk.sync();
    return written;
  }

  #membersOf(view: View): RestoredPeer[] {
    return peersOf(view).flatMap((id) => {
      const peer = this.core.state.peers[id];
      if (peer === undefined) return [];
      const { runtime, adapter, engine, name, blockMs, fixedMs, memoryBytes, gpuOptimizer = false } = peer;
      const fixed = fixedMs === undefined ? {} : { fixedMs };
      const basics = { id, runtime, adapter, engine, name, blockMs, ...fixed, memoryBytes, gpuOptimizer };
      return [{ ...basics, ticket: id, incarnation: 1 }];
    });
  }

  #carryOut(effect: RunEffect): void {
    if (effect.do === "save") this.disk.save(effect.source);
    else if (effect.do === "checkpoint") {
      const { step } = effect.source;
      const done: RunEvent = this.disk.save(effect.source)
        ? { type: "checkpointed", step, path: "memory", bytes: 0 }
        : { type: "checkpoint-failed", step, reason: "disk full" };
      this.#later(done);
    } else if (effect.do === "sample") {
      this.#later({ type: "sampled", step: effect.source.step, text: "" });
    } else if (effect.do === "forget") {
      for (const [key, { step }] of this.#files) {
        if (step < effect.before && step !== this.disk.saved?.step) this.#files.delete(key);
      }
    }
    this.#o.onEffect(effect);
  }

  #later(event: RunEvent): void {
    const { core } = this;
    this.#o.clock.after(1, () => {
      if (core === this.core) this.take(event);
    });
  }

  #fall({ downMs, tear, lose }: CoordinatorCrash): void {
    this.up = false;
    this.#doom = null;
    this.#effects = [];
    this.#events = [];
    this.disk.crash(this.#o.random, tear);
    this.#o.onDown(lose);
    this.#o.clock.after(downMs, () => this.#restart());
  }

  /** States in memory are gone, but for the saved snapshot's. */
  #restart(): void {
    const before = this.core;
    const record = this.disk.load();
    const saved: { step: number; files: StateFile[] } | null = this.disk.saved;
    for (const [key, { step }] of this.#files) if (step !== saved?.step) this.#files.delete(key);
    this.epoch = record.epoch;
    this.#members = record.peers;
    this.core = RunCore.restored(record, saved ?? undefined);
    this.up = true;
    for (const observer of this.#o.observers) observer.restarted?.(before, this.core);
  }
}
