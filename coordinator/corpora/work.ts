// One preparing job from beginning to end: cut a file into tokens, or see whether a tokenizer can be used. Runs wherever it is called,
// which is a worker where there are runs to serve. It never throws: whatever happens is a report.
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";
import type { CutJob, JobReport, PrepareJob } from "./jobs.ts";
import { makingWith, prepare } from "./make.ts";
import type { PrepareProgress } from "./prepare.ts";
import { corpusId, describeCorpus, isPrepared, PreparedWriter } from "./prepared.ts";
import { readParts } from "./sources.ts";
import { newTokenizer } from "./tokenizer.ts";

/** Progress is told at most so often. */
const TELL_MS = 250;

/** Tells progress, and at last what became of it. */
export async function doJob(job: PrepareJob, tell: (report: JobReport) => void): Promise<void> {
  tell(await (job.type === "cut" ? cut(job, tell) : check(job.choice)).catch(failure));
}

async function check({ label, json }: PrepareJob["choice"]): Promise<JobReport> {
  const vocabulary = json === null ? 0 : newTokenizer({ label, json }, 1).tokenizer.vocab.length;
  return await Promise.resolve({ type: "done", id: null, vocabulary });
}

async function cut(
  { source, choice, multiple, hash, folder }: CutJob,
  tell: (report: JobReport) => void,
): Promise<JobReport> {
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
    tell({ type: "progress", progress });
  };
  await using writer = await PreparedWriter.begin(folder, making);
  const { json, ...prepared } = await prepare(() => readParts(source), wish, {
    ...{ name: source.name, bytesTotal: size, onProgress, take: (block) => writer.take(block) },
  });
  await writer.finish(prepared, { name: source.name, making, label: choice.label, sourceBytes: size, json });
  return { type: "done", id, vocabulary: prepared.vocab.length };
}

function failure(error: unknown): JobReport {
  if (error instanceof ShoalError) return { type: "failed", code: error.code, message: error.message };
  return { type: "failed", code: "internal", message: messageOf(error) };
}
