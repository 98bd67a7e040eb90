// Binds the run's pure core to the clock, the sockets and the disk: it carries out effects and feeds events back, and decides
// nothing about the protocol itself. State files live in memory here until a checkpoint writes them.
import { RunCore } from "./core/run_core.ts";
import type { CoordinatorEventLine } from "./core/run_state.ts";
import type { TextTold } from "./core/text_state.ts";
import { groupStatus, statusOf } from "./core/status.ts";
import { type Identity, membersOf, recordEffect, type ShellEffect } from "./durable.ts";
import { EventQueue, type ShellEvent, type TimedEvent } from "./event_queue.ts";
import type { ServedCorpus } from "./store/corpus.ts";
import { listCheckpoints } from "./store/checkpoint_list.ts";
import type { EventLog } from "./store/event_log.ts";
import {
  type CheckpointContent,
  recoveryDir,
  stageFileName,
  withTokenizer,
  writeCheckpoint,
} from "./store/checkpoints.ts";
import { DiskWatch } from "./store/disk.ts";
import type { RunLog } from "./store/run_log.ts";
import {
  type CoordinatorMessage,
  type StateFile,
  type StateSource,
  tagControl,
} from "../peer/wire/control.ts";
import { assert, messageOf, ShoalError } from "../peer/wire/errors.ts";
import type { ModelSpec, RunConfig } from "../peer/wire/run.ts";
import type { CheckpointInfo } from "../peer/wire/status.ts";

/** How often deadlines are looked at. */
const TICK_MS = 250;
/** How often peers hear the group's state for their pages. */
const STATUS_MS = 500;
/** How often a log that could not be written is tried again: the run stands still until then. */
const STALL_MS = 1_000;
/** How often the log gets a mark of life; a resume takes the peers for gone a while after the last one. */
const ALIVE_MS = 10_000;

/** Epoch of a run that is not kept. */
const NO_EPOCH = "none";

/** What the shell needs of one connected peer. */
export interface Connection {
  send(bytes: Uint8Array<ArrayBuffer>): void;
  close(reason: string): void;
  /** Lets the peer close it, for a moment: it has been told why. */
  part(reason: string): void;
}

export interface ShellOptions {
  config: RunConfig;
  spec: ModelSpec;
  corpus: ServedCorpus;
  log: EventLog;
  /** Without one the run is not kept: a restarted coordinator then knows nothing of it. */
  runLog?: RunLog;
  /** Go on from what the log holds, with the peers that come back. */
  restore?: boolean;
  outDir: string;
  resume?: { step: number; files: { info: StateFile; bytes: Uint8Array }[] };
  onEvent(line: CoordinatorEventLine): void;
  /** Writes a sample with the model assembled from a snapshot's files. */
  sample(files: Uint8Array[], signal: AbortSignal): Promise<string>;
  /** A mistake of ours, after which this run stands still and others go on; absent: it ends the process. */
  onFailure?(error: unknown): void;
}

export class Shell {
  readonly core: RunCore;
  readonly connections = new Map<string, Connection>();
  readonly checkpoints: CheckpointInfo[] = [];
  readonly options: ShellOptions;
  #files = new Map<string, { step: number; bytes: Uint8Array }>();
  #timers: ReturnType<typeof setInterval>[];
  /** Of every peer that was welcomed and is not gone. */
  readonly identities = new Map<string, Identity>();
  readonly disk: DiskWatch;
  /** Hears what comes of texts that peers write. */
  onText: (id: number, told: TextTold) => void = () => {};
  #queue = new EventQueue();
  #effects: ShellEffect[] = [];
  #running = false;
  /** Why the next effect has to wait; null while the log can be written. */
  #stall: string | null = null;
  #stallTimer: ReturnType<typeof setTimeout> | undefined;
  /** The reason that was told last, so that one full disk is one line. */
  #stalledFor: string | null = null;
  #nextId = 1;
  /** Lines of the event log that found no room since the last that did. */
  #unlogged = 0;
  #writing: Promise<void> = Promise.resolve();
  /** A slow disk skips snapshots rather than pile them up. */
  #saving = false;
  #sampling: Promise<void> = Promise.resolve();
  readonly #closing = new AbortController();
  #ended: () => void = () => {};
  readonly ended = new Promise<void>((resolve) => this.#ended = resolve);

  constructor(options: ShellOptions) {
    this.options = options;
    const { config, spec, resume } = options;
    for (const file of resume?.files ?? []) this.putFile(resume!.step, file.info, file.bytes);
    const start = resume === undefined
      ? undefined
      : { step: resume.step, files: resume.files.map((it) => it.info) };
    const { restore = false, runLog } = options;
    this.core = restore && runLog !== undefined
      ? RunCore.restored(runLog.run, start)
      : new RunCore(config, spec, start);
    this.#noteRewind();
    this.disk = new DiskWatch({
      folder: options.outDir,
      checkpointBytes: () => this.checkpoints.at(-1)?.bytes ?? 0,
      say: (text) => this.feed({ type: "noted", text }),
    });
    this.#timers = [
      setInterval(() => this.feed({ type: "tick" }), TICK_MS),
      setInterval(() => this.#shareStatus(), STATUS_MS),
      setInterval(() => options.runLog?.markAlive(new Date(this.now())), ALIVE_MS),
    ];
  }

  now(): number {
    return Date.now();
  }

  /** A run that starts behind its own log is another history; peers that have seen more must be able to tell. */
  #noteRewind(): void {
    const { runLog } = this.options;
    const { committed } = this.core.state;
    if (runLog !== undefined && committed < runLog.run.committed) runLog.appendRewind(committed);
  }

  /** Events are taken one after the other, also those that effects cause. */
  feed(event: ShellEvent): void {
    if (this.#closing.signal.aborted) return;
    const taken = this.#queue.push({ event, at: this.now() }, this.#stall !== null);
    if (!taken && event.type === "message") this.connections.get(event.peer)?.close("it says too much");
    this.#work();
  }

  #work(): void {
    if (this.#running || this.#stall !== null) return;
    this.#running = true;
    try {
      this.#finishEffects();
      for (let next = this.#next(); next !== null; next = this.#next()) {
        this.#effects = this.#step(next);
        this.#finishEffects();
      }
    } catch (error) {
      const { onFailure } = this.options;
      if (onFailure === undefined) throw error;
      // Its state may be half of a step's: nothing is done with it any more.
      this.#closing.abort();
      onFailure(error);
    } finally {
      this.#running = false;
    }
  }

  /** Effects that are left over wait for the disk, and so does every event. */
  #next(): TimedEvent | null {
    return this.#effects.length > 0 ? null : this.#queue.shift() ?? null;
  }

  #step({ event, at }: TimedEvent): ShellEffect[] {
    return this.core.step(event as Parameters<RunCore["step"]>[0], at);
  }

  /** In order, and none whose record is not on disk. */
  #finishEffects(): void {
    for (let next = this.#effects[0]; next !== undefined; next = this.#effects[0]) {
      if (!this.#recorded(next)) return;
      this.#effects.shift();
      this.#carryOut(next);
    }
  }

  #recorded(effect: ShellEffect): boolean {
    const { runLog } = this.options;
    if (runLog === undefined) return true;
    try {
      recordEffect(runLog, effect, (view) => membersOf(view, this.core.state.peers, this.identities));
      return true;
    } catch (error) {
      if (!(error instanceof ShoalError) || error.code !== "storage-full") throw error;
      this.#stallFor(error.message);
      return false;
    }
  }

  /** A commit that is not durable may be told to nobody, so the run stands still and the write is tried again. */
  #stallFor(reason: string): void {
    if (this.#stalledFor !== reason) this.options.onEvent({ event: "state", state: "paused", reason });
    this.#stalledFor = this.#stall = reason;
    this.#stallTimer = setTimeout(() => this.#tryAgain(), STALL_MS);
  }

  #tryAgain(): void {
    this.#stall = null;
    this.#work();
    if (this.#stall !== null) return;
    this.#stalledFor = null;
    const { status: state, reason } = this.core.state;
    this.options.onEvent({ event: "state", state, reason });
  }

  status() {
    const status = statusOf(this.core.state, this.now());
    return this.#stall === null ? status : { ...status, state: "paused" as const, reason: this.#stall };
  }

  /** True while members of a restored view may come back under their own ids. */
  get regathering(): boolean {
    return String(this.core.state.phase) === "regathering";
  }

  get epoch(): string {
    return this.options.runLog?.run.epoch ?? NO_EPOCH;
  }

  /** @throws {ShoalError} storage-full */
  takeId(): number {
    return this.options.runLog?.takeId() ?? this.#nextId++;
  }

  putFile(step: number, state: StateName, bytes: Uint8Array): void {
    this.#files.set(fileKey(step, state), { step, bytes });
  }

  file(step: number, state: StateName): Uint8Array | null {
    return this.#files.get(fileKey(step, state))?.bytes ?? null;
  }

  /** A line for the event log. */
  warn(text: string): void {
    this.#note((log) => log.append(this.now(), { kind: "warning", text }));
  }

  /** Ends timers and sockets after what is being written is on disk. */
  async close(reason: string): Promise<void> {
    for (const timer of this.#timers) clearInterval(timer);
    clearTimeout(this.#stallTimer);
    this.disk.close();
    this.#closing.abort();
    await Promise.all([this.#writing, this.#sampling]);
    for (const id of this.connections.keys()) this.#send(id, { type: "done", reason });
    for (const connection of this.connections.values()) connection.part(reason);
    this.connections.clear();
    this.options.log.close();
    this.options.runLog?.close();
  }

  #send(id: string, message: CoordinatorMessage): void {
    // A peer that follows a run set back must not take it for one that has forgotten.
    const whole = message.type === "view" ? { ...message, epoch: this.epoch } : message;
    this.connections.get(id)?.send(tagControl(whole) as Uint8Array<ArrayBuffer>);
  }

  #shareStatus(): void {
    if (this.#closing.signal.aborted) return;
    const status = groupStatus(this.core.state);
    const message = this.#stall === null
      ? status
      : { ...status, state: "paused" as const, reason: this.#stall };
    for (const id of this.connections.keys()) this.#send(id, message);
  }

  #carryOut(effect: ShellEffect): void {
    switch (effect.do) {
      case "persist":
        return;
      case "send":
        return this.#send(effect.peer, effect.message);
      case "drop": {
        const connection = this.connections.get(effect.peer);
        this.connections.delete(effect.peer);
        return connection?.close(effect.reason);
      }
      case "log":
        return this.#note((log) => log.append(this.now(), effect));
      case "report":
        return this.#report(effect.line);
      case "checkpoint":
        this.#writing = this.#writing.then(() => this.#checkpoint(effect.source));
        return;
      case "save":
        if (this.#saving) return;
        this.#saving = true;
        this.#writing = this.#writing.then(() => this.#save(effect.source));
        return;
      case "text":
        return this.onText(effect.id, effect.told);
      case "sample":
        this.#sampling = this.#sampling.then(() => this.#sample(effect.source));
        return;
      case "forget":
        for (const [key, file] of this.#files) if (file.step < effect.before) this.#files.delete(key);
    }
  }

  /** What happened is worth a line, but a disk that has no room for it must not end the run. */
  #note(write: (log: EventLog) => void): void {
    const { log } = this.options;
    try {
      write(log);
      const lines = this.#unlogged;
      this.#unlogged = 0;
      if (lines > 0) log.append(this.now(), { kind: "warning", text: `${lines} lines could not be written` });
    } catch {
      this.#unlogged++;
    }
  }

  #report(line: CoordinatorEventLine): void {
    this.#note((log) => log.metric({ at_ms: this.now(), gen: this.core.state.gen, ...line }));
    this.options.onEvent(line);
    const { status } = this.core.state;
    if (line.event === "done" || status === "finished" || status === "failed") this.#ended();
  }

  #bytesOf(source: StateSource): Uint8Array[] {
    return source.files.map((info) => {
      const bytes = this.file(source.step, info);
      assert(bytes !== null, `state of step ${source.step}, stage ${info.stage} is gone`);
      return bytes;
    });
  }

  /** What writeCheckpoint takes, out of a snapshot. */
  #contentOf(source: StateSource): CheckpointContent {
    const { spec, corpus } = this.options;
    const { config } = this.core.state;
    const { step, files } = source;
    const bytes = this.#bytesOf(source);
    const named = files.map((_, i) => ({ name: stageFileName(i, files.length), bytes: bytes[i]! }));
    const stages = files.map(({ stage, firstLayer, endLayer, embed, head }) => ({
      ...{ index: stage, firstLayer, endLayer, embed, head },
    }));
    const { valLoss } = this.core.state;
    const manifest = {
      config,
      spec,
      vocab: corpus.vocab,
      stages,
      valLoss,
      dataCursor: step,
      seed: config.seed,
    };
    return withTokenizer({ step, files: named, manifest }, corpus.tokenizer);
  }

  async #checkpoint(source: StateSource): Promise<void> {
    const { step } = source;
    try {
      const content = this.#contentOf(source);
      const path = await writeCheckpoint(this.options.outDir, content);
      const bytes = content.files.reduce((sum, file) => sum + file.bytes.length, 0);
      // Older ones may have made room for it.
      this.checkpoints.splice(0, Infinity, ...await listCheckpoints(this.options.outDir));
      this.feed({ type: "checkpointed", step, path, bytes });
    } catch (error) {
      this.feed({ type: "checkpoint-failed", step, reason: messageOf(error) });
    }
  }

  async #save(source: StateSource): Promise<void> {
    try {
      await writeCheckpoint(recoveryDir(this.options.outDir), this.#contentOf(source), { keep: 1 });
    } catch (error) {
      this.warn(`the snapshot of step ${source.step} was not saved: ${messageOf(error)}`);
    } finally {
      this.#saving = false;
    }
  }

  async #sample(source: StateSource): Promise<void> {
    const { step } = source;
    let text = "";
    try {
      text = await this.options.sample(this.#bytesOf(source), this.#closing.signal);
    } catch (error) {
      if (this.#closing.signal.aborted) return;
      this.warn(`no sample: ${messageOf(error)}`);
    }
    this.feed({ type: "sampled", step, text });
  }
}

type StateName = Pick<StateFile, "stage" | "hash">;

/** After a rollback the same step is reached with another cut of the layers, so a number of a stage is no name for a state. */
function fileKey(step: number, { stage, hash }: StateName): string {
  return `${step}/${stage}/${hash}`;
}
