// Preparing jobs one after the other, each in a worker of its own. It knows nothing of texts. What must stay true: a job ends, by its
// result, an error, its caller's signal, or by telling nothing for too long.
import { ShoalError } from "../../peer/wire/errors.ts";
import type { JobReport, PrepareJob, PreparePort } from "./jobs.ts";
import type { PrepareProgress } from "./prepare.ts";

/** A worker that says nothing for so long is stuck, in a tokenizer's pattern for instance. */
const SILENCE_MS = 120_000;

export interface JobOptions {
  signal: AbortSignal;
  /** It is this job's turn. */
  onBegin?(): void;
  onProgress?(progress: PrepareProgress): void;
}

export type JobResult = Omit<Extract<JobReport, { type: "done" }>, "type">;

export function openPrepareWorker(): PreparePort {
  return new Worker(new URL("./prepare_worker.ts", import.meta.url), { type: "module" });
}

export class Preparer {
  readonly #spawn: () => PreparePort;
  readonly #silenceMs: number;
  #last: Promise<unknown> = Promise.resolve();

  /** @param silenceMs Longest time without a word; tests take less. */
  constructor(spawn: () => PreparePort = openPrepareWorker, silenceMs = SILENCE_MS) {
    this.#spawn = spawn;
    this.#silenceMs = silenceMs;
  }

  /** Waits for its turn and does the job. @throws {ShoalError} what went wrong. @throws the signal's reason. */
  async run(job: PrepareJob, options: JobOptions): Promise<JobResult> {
    const turn = this.#last.then(() => {
      options.signal.throwIfAborted();
      options.onBegin?.();
      return this.#work(job, options);
    });
    this.#last = turn.catch(() => {});
    return await turn;
  }

  async #work(job: PrepareJob, { signal, onProgress }: JobOptions): Promise<JobResult> {
    const worker = this.#spawn();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let abort = () => {};
    try {
      return await new Promise((resolve, reject) => {
        const watch = () => {
          clearTimeout(timer);
          timer = setTimeout(() => reject(stuck(this.#silenceMs)), this.#silenceMs);
        };
        abort = () => reject(signal.reason);
        signal.addEventListener("abort", abort, { once: true });
        worker.onerror = (event) => {
          event.preventDefault();
          reject(new ShoalError("internal", `preparing the text failed: ${event.message}`));
        };
        worker.onmessage = ({ data }) => {
          watch();
          if (data.type === "progress") onProgress?.(data.progress);
          else if (data.type === "failed") reject(new ShoalError(data.code, data.message));
          else resolve({ id: data.id, vocabulary: data.vocabulary });
        };
        watch();
        worker.postMessage(job);
      });
    } finally {
      clearTimeout(timer);
      signal.removeEventListener("abort", abort);
      worker.terminate();
    }
  }
}

function stuck(ms: number): ShoalError {
  const remedy = "try a smaller part of the text, or another tokenizer";
  return new ShoalError(
    "bad-corpus",
    `cutting the text into tokens made no progress for ${ms / 1000} s; ${remedy}`,
  );
}
