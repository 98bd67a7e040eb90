// Texts on request: a queue before one worker that computes them one after the other. The thread that serves never computes.
// It knows neither HTTP nor the model. What must stay true: the queue is bounded, and every request ends, by its text, an error
// or its caller's signal.
import { ShoalError } from "../../peer/wire/errors.ts";
import type { TextOrder, TextResult } from "./completions_answer.ts";
import type { FromWriter, ToWriter } from "./text_protocol.ts";

/** Texts that may wait; whoever comes later would wait for minutes, and is told so at once. */
export const QUEUE_MAX = 8;
/** Longest that one text may take once it has begun, loading the model included; else one request holds up all others. */
const TEXT_MS = 300_000;
/** A worker that does not hear within this time is ended, and the next text gets a new one. */
const CANCEL_MS = 10_000;
/** A model that nobody asks stays in memory for so long. */
const IDLE_MS = 120_000;
/** First guess of a text's duration, until one has been measured. */
const TEXT_GUESS_MS = 5_000;
const RETRY_SECONDS_MAX = 120;

/** What a service needs of a Worker; tests may bring their own. */
export interface WriterPort {
  postMessage(message: ToWriter): void;
  terminate(): void;
  onmessage: ((event: MessageEvent<FromWriter>) => void) | null;
  onerror: ((event: ErrorEvent) => void) | null;
}

/** The queue is full; `retrySeconds` is when it may have room again. */
export class BusyError extends Error {
  readonly retrySeconds: number;
  constructor(retrySeconds: number, waiting = QUEUE_MAX) {
    super(`${waiting} texts are waiting already; try again in ${retrySeconds} s`);
    this.retrySeconds = retrySeconds;
  }
}

export interface TextJob extends TextOrder {
  /** Folder of the checkpoint to write with. */
  path: string;
}

interface Entry extends TextJob {
  id: number;
  resolve(result: TextResult): void;
  reject(error: unknown): void;
}

export class TextService {
  readonly #spawn: () => WriterPort;
  #worker: WriterPort | null = null;
  #queue: Entry[] = [];
  #now: Entry | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #nextId = 1;
  /** Moving average of a text's duration, ms. */
  #textMs = TEXT_GUESS_MS;
  #begunAt = 0;
  #closed = false;

  constructor(spawn: () => WriterPort) {
    this.#spawn = spawn;
  }

  /** @throws {BusyError} at once if too many wait. @throws {ShoalError} of the model or the prompt. */
  write(job: TextJob): Promise<TextResult> {
    if (this.#closed) throw new ShoalError("offline", "the server is being stopped; try another one");
    if (this.#queue.length >= QUEUE_MAX && !job.patient) throw new BusyError(this.#retrySeconds());
    job.signal.throwIfAborted();
    return new Promise((resolve, reject) => {
      const entry = { ...job, id: this.#nextId++, resolve, reject };
      job.signal.addEventListener("abort", () => this.#abandon(entry), { once: true });
      this.#queue.push(entry);
      this.#next();
    });
  }

  /** Ends the worker; texts under way are refused. */
  close(): void {
    this.#closed = true;
    for (const entry of [this.#now, ...this.#queue.splice(0)]) {
      entry?.reject(new ShoalError("offline", "the server is being stopped"));
    }
    this.#now = null;
    this.#endWorker();
  }

  #retrySeconds(): number {
    const seconds = Math.ceil(this.#textMs * (this.#queue.length + 1) / 1000);
    return Math.min(RETRY_SECONDS_MAX, Math.max(1, seconds));
  }

  #next(): void {
    if (this.#now !== null || this.#closed) return;
    const entry = this.#queue.shift();
    clearTimeout(this.#timer);
    if (entry === undefined) {
      this.#timer = setTimeout(() => this.#endWorker(), IDLE_MS);
      return;
    }
    this.#now = entry;
    this.#begunAt = performance.now();
    this.#timer = setTimeout(() => this.#tooLate(entry), TEXT_MS);
    this.#worker ??= this.#open();
    this.#worker.postMessage({ type: "write", id: entry.id, path: entry.path, request: entry.request });
  }

  #open(): WriterPort {
    const worker = this.#spawn();
    worker.onmessage = ({ data }) => this.#hear(data);
    worker.onerror = (event) => {
      event.preventDefault();
      this.#endWorker();
      this.#finish((entry) =>
        entry.reject(new ShoalError("internal", `the writer failed: ${event.message}`))
      );
    };
    return worker;
  }

  #hear(message: FromWriter): void {
    if (message.id !== this.#now?.id) return;
    switch (message.type) {
      case "text":
        return this.#now.signal.aborted ? undefined : this.#now.onText(message.text, message.chances);
      case "end":
        this.#textMs += (performance.now() - this.#begunAt - this.#textMs) / 4;
        return this.#finish((entry) => entry.resolve({ step: message.step, end: message.end }));
      case "failed":
        return this.#finish((entry) => entry.reject(new ShoalError(message.code, message.message)));
    }
  }

  /** The text that is under way is over, one way or another. */
  #finish(settle: (entry: Entry) => void): void {
    const entry = this.#now;
    this.#now = null;
    if (entry !== null) settle(entry);
    this.#next();
  }

  /** Nobody waits for it any more: out of the queue, or cancelled where it is. */
  #abandon(entry: Entry): void {
    entry.reject(entry.signal.reason);
    this.#queue = this.#queue.filter((it) => it !== entry);
    if (this.#now !== entry) return;
    this.#worker?.postMessage({ type: "cancel", id: entry.id });
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#replaceWorker(), CANCEL_MS);
  }

  #tooLate(entry: Entry): void {
    const seconds = TEXT_MS / 1000;
    entry.reject(new ShoalError("usage", `the text was not done after ${seconds} s; ask for fewer tokens`));
    this.#replaceWorker();
  }

  #replaceWorker(): void {
    this.#endWorker();
    this.#finish(() => {});
  }

  #endWorker(): void {
    clearTimeout(this.#timer);
    this.#worker?.terminate();
    this.#worker = null;
  }
}
