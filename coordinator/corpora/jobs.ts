// What a library asks of the worker that prepares texts, and what it hears back. Types only. Plain values, since they cross threads.
import type { ErrorCode } from "../../peer/wire/errors.ts";
import type { PrepareProgress } from "./prepare.ts";
import type { CorpusSource } from "./sources.ts";
import type { TokenizerChoice } from "./tokenizer.ts";

/** Cut a file that has arrived. */
export interface CutJob {
  type: "cut";
  source: CorpusSource;
  choice: TokenizerChoice;
  multiple: number;
  /** SHA-256 of the file, hex. */
  hash: string;
  /** Where prepared texts lie. */
  folder: string;
}

/** See whether a tokenizer.json can be used. */
export interface CheckJob {
  type: "check";
  choice: TokenizerChoice;
}

export type PrepareJob = CutJob | CheckJob;

export type JobReport =
  | { type: "progress"; progress: PrepareProgress }
  | { type: "done"; id: string | null; vocabulary: number }
  | { type: "failed"; code: ErrorCode; message: string };

/** What a library needs of a Worker; tests may bring their own. */
export interface PreparePort {
  postMessage(job: PrepareJob): void;
  terminate(): void;
  onmessage: ((event: MessageEvent<JobReport>) => void) | null;
  onerror: ((event: ErrorEvent) => void) | null;
}
