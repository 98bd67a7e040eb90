// Texts of a runs folder that no coordinator serves, for the command line: prepares where the file lies, lists, deletes. Beside it,
// library.ts keeps those of a running coordinator. What must stay true: both give a text the same name, and one that a run uses stays.
import { join, resolve } from "node:path";
import { ShoalError } from "../../peer/wire/errors.ts";
import { lockFolder, lookAtRunLog } from "../store/run_log.ts";
import type { RunRecord } from "../core/run_record.ts";
import type { PrepareJob } from "./jobs.ts";
import { makingOf } from "./make.ts";
import type { PrepareProgress } from "./prepare.ts";
import { idsIn, infoOf } from "./kept.ts";
import { corpusId, describeCorpus } from "./prepared.ts";
import type { CorpusSource } from "./sources.ts";
import type { TokenizerChoice } from "./tokenizer.ts";
import { CORPUS_PREFIX, type CorpusInfo } from "./types.ts";
import { doJob } from "./work.ts";

/** A text that was being written so long ago is nobody's any more. */
const STALE_MS = 24 * 60 * 60 * 1000;
const WRITING = /^\.(writing|upload)-/;

export interface CorpusWish {
  source: CorpusSource;
  choice: TokenizerChoice;
  /** The vocabulary is filled up to a multiple of this. */
  multiple: number;
}

/** What the command line does with texts, wherever they are kept. */
export interface CorpusDesk {
  list(): Promise<CorpusInfo[]>;
  /** Resolves once it is ready. @throws {ShoalError} bad-corpus with the line or row where there is one */
  add(wish: CorpusWish, onProgress: (progress: PrepareProgress) => void): Promise<CorpusInfo>;
  /** @throws {ShoalError} usage if it is unknown or used */
  remove(id: string): Promise<void>;
}

/** The name under which a file with that wish is kept, here as at a coordinator; reads the file once. */
export async function idOf({ source, choice, multiple }: CorpusWish): Promise<string> {
  return corpusId(await makingOf(source, { choice, given: null, multiple }));
}

/** The texts in `<runsDir>/corpora`. */
export class FolderDesk implements CorpusDesk {
  readonly #runsDir: string;
  readonly #folder: string;

  constructor(runsDir: string) {
    this.#runsDir = resolve(runsDir);
    this.#folder = join(this.#runsDir, "corpora");
  }

  async list(): Promise<CorpusInfo[]> {
    const readers = readersIn(this.#runsDir);
    return await Promise.all((await idsIn(this.#folder)).map((id) => this.#info(id, readers)));
  }

  async add(wish: CorpusWish, onProgress: (progress: PrepareProgress) => void): Promise<CorpusInfo> {
    using _ = this.#alone();
    await removeStale(this.#folder);
    const { source, choice, multiple } = wish;
    const { source: hash } = await makingOf(source, { choice, given: null, multiple });
    const id = await cut({ type: "cut", source, choice, multiple, hash, folder: this.#folder }, onProgress);
    return await this.#info(id);
  }

  async #info(id: string, readers = readersIn(this.#runsDir)): Promise<CorpusInfo> {
    const described = await describeCorpus(this.#folder, id).catch(() => null);
    const usedBy = usersOf(id, described?.hash ?? null, readers);
    return { ...await infoOf(this.#folder, id), usedBy };
  }

  async remove(id: string): Promise<void> {
    using _ = this.#alone();
    if (!(await idsIn(this.#folder)).includes(id)) {
      throw new ShoalError(
        "usage",
        `there is no text ${id.slice(0, 40)} in ${this.#folder}; list them first`,
      );
    }
    const { usedBy } = await this.#info(id);
    if (usedBy.length > 0) {
      const names = usedBy.slice(0, 4).map((run) => `"${run}"`).join(", ");
      throw new ShoalError("usage", `the text is used by ${names}; delete what uses it first`);
    }
    await Deno.remove(join(this.#folder, id), { recursive: true });
  }

  /** A coordinator that serves the folder has a list of its own, and must be asked. */
  #alone(): Deno.FsFile {
    try {
      return lockFolder(this.#runsDir);
    } catch (error) {
      if (!(error instanceof ShoalError)) throw error;
      const remedy = "give its organizer's link with --hub";
      throw new ShoalError("usage", `a coordinator serves ${this.#runsDir}; ${remedy}`, { cause: error });
    }
  }
}

/** On this thread: whoever asked waits for nothing else. */
async function cut(job: PrepareJob, onProgress: (progress: PrepareProgress) => void): Promise<string> {
  const { promise, resolve, reject } = Promise.withResolvers<string>();
  await doJob(job, (report) => {
    if (report.type === "progress") onProgress(report.progress);
    else if (report.type === "done") resolve(report.id!);
    else reject(new ShoalError(report.code, report.message));
  });
  return await promise;
}

interface Reader {
  name: string;
  dataset: string;
  /** Of its tokens, while it has not ended: a file's are read where they were prepared. */
  hash: string | null;
}

/** The runs of the folder. A log that cannot be read says nothing. */
function readersIn(runsDir: string): Reader[] {
  return entriesOf(runsDir).flatMap(({ name, isDirectory }) => {
    const run = isDirectory ? runIn(join(runsDir, name)) : null;
    if (run === null) return [];
    return [{ name, dataset: run.config.dataset, hash: run.ended === null ? run.corpusHash : null }];
  });
}

/** Those that learn the text, by its name or as the file that it was made of. */
function usersOf(id: string, hash: string | null, readers: readonly Reader[]): string[] {
  return readers.filter((it) => it.dataset === CORPUS_PREFIX + id || (hash !== null && it.hash === hash))
    .map(({ name }) => name);
}

function entriesOf(folder: string): Deno.DirEntry[] {
  try {
    return [...Deno.readDirSync(folder)];
  } catch (error) {
    if (error instanceof Deno.errors.NotFound) return [];
    throw error;
  }
}

function runIn(folder: string): RunRecord | null {
  try {
    return lookAtRunLog(folder)?.run ?? null;
  } catch {
    return null;
  }
}

/** What a process left behind that was killed; another one may be writing just now. */
async function removeStale(folder: string): Promise<void> {
  for (const { name } of entriesOf(folder)) {
    if (!WRITING.test(name)) continue;
    const path = join(folder, name), { mtime } = await Deno.stat(path);
    if (mtime !== null && Date.now() - mtime.getTime() > STALE_MS) {
      await Deno.remove(path, { recursive: true });
    }
  }
}
