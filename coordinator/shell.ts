// Binds the run's pure core to the clock, the sockets and the disk: it carries out effects and feeds events back, and decides
// nothing about the protocol itself. State files live in memory here until a checkpoint writes them.
import { RunCore } from "./core/run_core.ts";
import type { CoordinatorEventLine, RunEffect, RunEvent } from "./core/run_state.ts";
import { groupStatus, statusOf } from "./core/status.ts";
import type { LoadedCorpus } from "./store/corpus.ts";
import type { EventLog } from "./store/event_log.ts";
import { type CheckpointContent, recoveryDir, stageFileName, writeCheckpoint } from "./store/checkpoints.ts";
import {
  type CoordinatorMessage,
  type StateFile,
  type StateSource,
  tagControl,
} from "../peer/wire/control.ts";
import { assert, messageOf } from "../peer/wire/errors.ts";
import type { ModelSpec, RunConfig } from "../peer/wire/run.ts";
import type { CheckpointInfo } from "../peer/wire/status.ts";

/** How often deadlines are looked at. */
const TICK_MS = 250;
/** How often peers hear the group's state for their pages. */
const STATUS_MS = 500;

/** What the shell needs of one connected peer. */
export interface Connection {
  send(bytes: Uint8Array<ArrayBuffer>): void;
  close(reason: string): void;
}

export interface ShellOptions {
  config: RunConfig;
  spec: ModelSpec;
  corpus: LoadedCorpus;
  log: EventLog;
  outDir: string;
  resume?: { step: number; files: { info: StateFile; bytes: Uint8Array }[] };
  onEvent(line: CoordinatorEventLine): void;
  /** Writes a sample with the model assembled from a snapshot's files. */
  sample(files: Uint8Array[], signal: AbortSignal): Promise<string>;
}

export class Shell {
  readonly core: RunCore;
  readonly connections = new Map<string, Connection>();
  readonly checkpoints: CheckpointInfo[] = [];
  readonly options: ShellOptions;
  #files = new Map<string, { step: number; bytes: Uint8Array }>();
  #timers: ReturnType<typeof setInterval>[];
  #queue: RunEvent[] = [];
  #running = false;
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
    for (const file of resume?.files ?? []) this.putFile(resume!.step, file.info.stage, file.bytes);
    const start = resume === undefined
      ? undefined
      : { step: resume.step, files: resume.files.map((it) => it.info) };
    this.core = new RunCore(config, spec, start);
    this.#timers = [
      setInterval(() => this.feed({ type: "tick" }), TICK_MS),
      setInterval(() => this.#shareStatus(), STATUS_MS),
    ];
  }

  now(): number {
    return Date.now();
  }

  /** Events are taken one after the other, also those that effects cause. */
  feed(event: RunEvent): void {
    if (this.#closing.signal.aborted) return;
    this.#queue.push(event);
    if (this.#running) return;
    this.#running = true;
    try {
      for (let next = this.#queue.shift(); next !== undefined; next = this.#queue.shift()) {
        for (const effect of this.core.step(next, this.now())) this.#carryOut(effect);
      }
    } finally {
      this.#running = false;
    }
  }

  status() {
    return statusOf(this.core.state, this.now());
  }

  putFile(step: number, stage: number, bytes: Uint8Array): void {
    this.#files.set(`${step}/${stage}`, { step, bytes });
  }

  file(step: number, stage: number): Uint8Array | null {
    return this.#files.get(`${step}/${stage}`)?.bytes ?? null;
  }

  /** Ends timers and sockets after what is being written is on disk. */
  async close(reason: string): Promise<void> {
    for (const timer of this.#timers) clearInterval(timer);
    this.#closing.abort();
    await Promise.all([this.#writing, this.#sampling]);
    for (const id of this.connections.keys()) this.#send(id, { type: "done", reason });
    for (const connection of this.connections.values()) connection.close(reason);
    this.connections.clear();
    this.options.log.close();
  }

  #send(id: string, message: CoordinatorMessage): void {
    this.connections.get(id)?.send(tagControl(message) as Uint8Array<ArrayBuffer>);
  }

  #shareStatus(): void {
    const message = groupStatus(this.core.state);
    for (const id of this.connections.keys()) this.#send(id, message);
  }

  #carryOut(effect: RunEffect): void {
    switch (effect.do) {
      case "send":
        return this.#send(effect.peer, effect.message);
      case "drop": {
        const connection = this.connections.get(effect.peer);
        this.connections.delete(effect.peer);
        return connection?.close(effect.reason);
      }
      case "log":
        return this.options.log.append(this.now(), effect);
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
      case "sample":
        this.#sampling = this.#sampling.then(() => this.#sample(effect.source));
        return;
      case "forget":
        for (const [key, file] of this.#files) if (file.step < effect.before) this.#files.delete(key);
    }
  }

  #report(line: CoordinatorEventLine): void {
    this.options.log.metric({ at_ms: this.now(), gen: this.core.state.gen, ...line });
    this.options.onEvent(line);
    const { status } = this.core.state;
    if (line.event === "done" || status === "finished" || status === "failed") this.#ended();
  }

  #bytesOf(source: StateSource): Uint8Array[] {
    return source.files.map((info) => {
      const bytes = this.file(source.step, info.stage);
      assert(bytes !== null, `state of step ${source.step}, stage ${info.stage} is gone`);
      return bytes;
    });
  }

  /** What writeCheckpoint takes, out of a snapshot. */
  #contentOf(source: StateSource): CheckpointContent {
    const { config, spec, corpus } = this.options;
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
    return { step, files: named, manifest };
  }

  async #checkpoint(source: StateSource): Promise<void> {
    const { step } = source;
    try {
      const content = this.#contentOf(source);
      const path = await writeCheckpoint(this.options.outDir, content);
      const bytes = content.files.reduce((sum, file) => sum + file.bytes.length, 0);
      await this.#noteCheckpoint(path, { step, bytes, valLoss: content.manifest.valLoss });
      this.feed({ type: "checkpointed", step, path, bytes });
    } catch (error) {
      this.feed({ type: "checkpoint-failed", step, reason: messageOf(error) });
    }
  }

  async #save(source: StateSource): Promise<void> {
    try {
      await writeCheckpoint(recoveryDir(this.options.outDir), this.#contentOf(source), { keep: 1 });
    } catch (error) {
      const text = `the snapshot of step ${source.step} was not saved: ${messageOf(error)}`;
      this.options.log.append(this.now(), { kind: "warning", text });
    } finally {
      this.#saving = false;
    }
  }

  async #noteCheckpoint(
    path: string,
    info: { step: number; bytes: number; valLoss: number | null },
  ): Promise<void> {
    const files: string[] = [];
    for await (const entry of Deno.readDir(path)) files.push(entry.name);
    this.checkpoints.push({ ...info, name: path.split("/").at(-1) ?? path, files: files.sort() });
  }

  async #sample(source: StateSource): Promise<void> {
    const { step } = source;
    let text = "";
    try {
      text = await this.options.sample(this.#bytesOf(source), this.#closing.signal);
    } catch (error) {
      if (this.#closing.signal.aborted) return;
      this.options.log.append(this.now(), { kind: "warning", text: `no sample: ${messageOf(error)}` });
    }
    this.feed({ type: "sampled", step, text });
  }
}
