// A worker that cuts one text into tokens, or tries one tokenizer, so that whoever serves runs never waits for either, and a tokenizer
// that hangs can be ended. One job, one report at the end.
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";
import type { CutJob, JobReport, PrepareJob } from "./jobs.ts";
import { makingWith, prepare } from "./make.ts";
import type { PrepareProgress } from "./prepare.ts";
import { corpusId, describeCorpus, isPrepared, writePrepared } from "./prepared.ts";
import { readParts } from "./sources.ts";
import { newTokenizer } from "./tokenizer.ts";

/** Progress is told at most so often. */
const TELL_MS = 250;

// Deno types a worker's global like a window's; the worker's own has postMessage(value) alone.
const scope = self as unknown as {
  onmessage: ((event: MessageEvent<PrepareJob>) => void) | null;
  postMessage(value: JobReport): void;
};

scope.onmessage = ({ data }) => {
  void work(data).then((report) => scope.postMessage(report), (error) => scope.postMessage(failure(error)));
};

async function work(job: PrepareJob): Promise<JobReport> {
  if (job.type === "cut") return await cut(job);
  const { label, json } = job.choice;
  if (json === null) return { type: "done", id: null, vocabulary: 0 };
  return { type: "done", id: null, vocabulary: newTokenizer({ label, json }, 1).tokenizer.vocab.length };
}

async function cut({ source, choice, multiple, hash, folder }: CutJob): Promise<JobReport> {
  const wish = { choice, given: null, multiple };
  const making = makingWith(hash, source, wish);
  const id = corpusId(making);
  if (await isPrepared(folder, id)) {
    return { type: "done", id, vocabulary: (await describeCorpus(folder, id)).vocab.length };
  }
  const { size } = await Deno.stat(source.path);
  let told = 0;
  const onProgress = (progress: PrepareProgress) => {
    const now = performance.now();
    if (now - told < TELL_MS) return;
    told = now;
    scope.postMessage({ type: "progress", progress });
  };
  const { json, ...prepared } = await prepare(() => readParts(source), wish, {
    ...{ name: source.name, bytesTotal: size, onProgress },
  });
  const described = { name: source.name, making, label: choice.label, sourceBytes: size, json };
  await writePrepared(folder, prepared, described);
  return { type: "done", id, vocabulary: prepared.vocab.length };
}

function failure(error: unknown): JobReport {
  if (error instanceof ShoalError) return { type: "failed", code: error.code, message: error.message };
  return { type: "failed", code: "internal", message: messageOf(error) };
}
