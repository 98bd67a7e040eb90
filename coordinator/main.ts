// Starts a coordinator: corpus, store, core, HTTP server. Library entry for the command line, the demo and tests; prints
// nothing itself. The links it returns carry the tokens in the fragment, which browsers do not send.
import { join } from "node:path";
import type { SampleAnswer, SampleRequest } from "./cli/sample_worker.ts";
import { createApp } from "./http/app.ts";
import { baseList, type OpenBase } from "./http/base.ts";
import { Door } from "./http/door.ts";
import { linkBase } from "./http/links.ts";
import { Sockets } from "./http/sockets.ts";
import { LiveTexts } from "./http/live_texts.ts";
import { TextService } from "./http/text_service.ts";
import { Shell, type ShellOptions } from "./shell.ts";
import type { CoordinatorEventLine } from "./core/run_state.ts";
import { type LoadOptions, openCorpus, type ServedCorpus, vocabularyHash } from "./store/corpus.ts";
import type { PrepareProgress } from "./corpora/prepare.ts";
import type { OpenOptions } from "./corpora/prepared.ts";
import { type Access, readAccess, writeAccess } from "./store/access.ts";
import { EventLog } from "./store/event_log.ts";
import { checkpointStates, listCheckpoints } from "./store/checkpoint_list.ts";
import { readCheckpoint, readTokenizer } from "./store/checkpoints.ts";
import { BaseFile } from "./store/base.ts";
import { StartWeights } from "./store/start_weights.ts";
import { RunLog } from "./store/run_log.ts";
import { checkCorpus } from "../peer/model/config.ts";
import { specOf } from "../peer/model/layout.ts";
import { messageOf, ShoalError } from "../peer/wire/errors.ts";
import type { BaseList } from "../peer/wire/base.ts";
import type { StateFile } from "../peer/wire/control.ts";
import type { ModelSpec, RunConfig } from "../peer/wire/run.ts";

export type { CoordinatorEventLine } from "./core/run_state.ts";

export interface CoordinatorOptions {
  config: RunConfig;
  host: string;
  /** 0 = any free port. */
  port: number;
  outDir: string;
  operator: string;
  runName: string;
  /** Folder of the checkpoint to go on from; with `restore`, the one to fall back to. */
  resumeFrom?: string;
  /** Go on from the log in `outDir` with the peers that come back, under the log's configuration. */
  restore?: boolean;
  webRoot: string;
  /** Whoever has the join link may write text with the model; absent: only the organizer. */
  publicText?: boolean;
  /** Where others reach the coordinator, if not at its own address: a reverse proxy's https address. */
  publicUrl?: string;
  /** Where prepared texts are kept, and looked for; absent: in the run's folder. */
  corporaDir?: string;
  /** Where peers may fetch an imported model from, besides the coordinator: its file or folder. */
  baseUrl?: string;
  /** From which size on a text is served in pages, and how large they are; tests take less. */
  paging?: OpenOptions;
  /** While a text is cut into tokens. */
  onCorpus?(progress: PrepareProgress): void;
  onEvent(event: CoordinatorEventLine): void;
}

export interface Coordinator {
  joinLink: string;
  adminLink: string;
  /** Resolves when the run is finished or has failed. */
  done: Promise<void>;
  stop(reason: string): Promise<void>;
  /** The run as the pages see it; for tests and embedding programs. */
  shell: Shell;
}

/** Longest wait for a sample; it is a courtesy, not part of the run. */
const SAMPLE_MS = 60_000;

/** A run that is open and answers requests, but listens nowhere by itself. */
export interface OpenRun {
  fetch: Handler;
  shell: Shell;
  access: Access;
  /** With the public token, or another one. */
  joinLink(token?: string): string;
  adminLink(): string;
  /** Whether the public link lets anybody in. */
  isPublic(): boolean;
  /** Whether whoever may join may write text with the model. */
  isTextPublic(): boolean;
  close(reason: string): Promise<void>;
}

export interface Placement {
  /** Scheme, host, port and place of the run's addresses, without a slash at the end; asked for when a link is made. */
  base(): string;
  /** The place alone, such as "/r/name"; absent: the root. */
  mount?: string;
}

export type OpenRunOptions = Omit<CoordinatorOptions, "host" | "port" | "publicUrl"> & {
  /** A mistake of ours in this run, which then stands still; absent: it ends the process. */
  onFailure?(error: unknown): void;
};

export async function startCoordinator(options: CoordinatorOptions): Promise<Coordinator> {
  // A public URL that is none should be told before a corpus is read and a port opened.
  linkBase({ ...options, addresses: [] });
  let base = "";
  const run = await openRun(options, { base: () => base });
  const { access, shell } = run;
  const server = await serveOrClose(run, () => serve(options, access.port, run.fetch));
  const { port } = server.addr as Deno.NetAddr;
  writeAccess(options.outDir, { ...access, port });
  base = linkBase({ ...options, port, addresses: Deno.networkInterfaces() });
  options.onEvent({ event: "listening", join: run.joinLink(), admin: run.adminLink() });
  const stop = async (reason: string) => {
    await run.close(reason);
    await server.shutdown();
  };
  return { joinLink: run.joinLink(), adminLink: run.adminLink(), done: shell.ended, stop, shell };
}

/** Opens a run's folder and everything that answers for it. */
export async function openRun(options: OpenRunOptions, { base, mount }: Placement): Promise<OpenRun> {
  const start = await prepare(options);
  const access = readAccess(options.outDir);
  const { joinToken, adminToken } = access;
  const door = new Door({ runDir: options.outDir, joinToken, now: () => Date.now() });
  const { log, runLog } = openLogs(options, start);
  const shellOptions: ShellOptions = {
    ...start,
    config: options.config,
    ...{ log, runLog, restore: options.restore ?? false },
    outDir: options.outDir,
    onEvent: options.onEvent,
    ...(options.onFailure === undefined ? {} : { onFailure: options.onFailure }),
    sample: (files, signal) =>
      sampleText({ files, ...start, config: options.config, runDir: options.outDir, signal }),
  };
  const shell = new Shell(shellOptions);
  shell.checkpoints.push(...await listCheckpoints(options.outDir));
  if (runLog.tornBytes > 0) {
    shell.warn(
      `the run's log ended in ${runLog.tornBytes} bytes of an unfinished record, which were cut off`,
    );
  }
  const sockets = new Sockets(shell, door);
  const joinLink = (token = joinToken) => `${base()}/#${token}`;
  const adminLink = () => `${base()}/admin#${adminToken}`;
  const texts = new TextService(openTextWorker);
  const live = new LiveTexts(shell);
  const place = mount === undefined ? {} : { mount };
  const begun = openBase(start, (info) => shell.file(0, info));
  const frozen = begun === null ? {} : { base: begun };
  const app = createApp({
    ...options,
    ...place,
    ...frozen,
    shell,
    sockets,
    door,
    adminToken,
    joinLink,
    texts,
    live,
  });
  const close = async (reason: string) => {
    texts.close();
    live.close();
    await shell.close(reason);
  };
  const isPublic = () => door.invites.open;
  const isTextPublic = () => door.invites.text ?? options.publicText ?? false;
  return {
    fetch: (request) => app.fetch(request),
    shell,
    access,
    joinLink,
    adminLink,
    isPublic,
    isTextPublic,
    close,
  };
}

/** Computes texts beside the thread that serves. */
export function openTextWorker(): Worker {
  return new Worker(new URL("./cli/text_worker.ts", import.meta.url), { type: "module" });
}

/** A run that goes on from its log keeps its epoch; anything else is a history of its own. */
function openLogs(options: OpenRunOptions, start: Prepared): { log: EventLog; runLog: RunLog } {
  const { outDir, config, restore } = options;
  const { spec, corpus, resume } = start;
  const vocabHash = vocabularyHash(corpus);
  const begin = { config, spec, corpusHash: corpus.hash, vocabHash, committed: resume?.step ?? 0 };
  const runLog = restore ? RunLog.reopen(outDir) : RunLog.create(outDir, begin);
  try {
    const { run } = runLog;
    if (run.corpusHash !== corpus.hash || JSON.stringify(run.spec) !== JSON.stringify(spec)) {
      throw new ShoalError(
        "bad-corpus",
        `the text of ${config.dataset} is not the one that the run began with`,
      );
    }
    if (run.vocabHash !== undefined && run.vocabHash !== vocabHash) {
      throw new ShoalError(
        "bad-corpus",
        `the tokens of ${config.dataset} do not stand for what they did when the run began; put its file and tokenizer back`,
      );
    }
    return { log: new EventLog(outDir), runLog };
  } catch (error) {
    runLog.close();
    throw error;
  }
}

/** Timers and files of a run that cannot be reached must not outlive the attempt. */
async function serveOrClose<T>(run: OpenRun, start: () => T): Promise<T> {
  try {
    return start();
  } catch (error) {
    await run.close("it cannot be reached");
    throw error;
  }
}

export type Handler = (request: Request) => Response | Promise<Response>;

/** Without a wish for a port the one used last is taken, if it is free, so that a resumed run keeps its links. */
export function serve(options: { host: string; port: number }, lastPort: number, handler: Handler) {
  const { host: hostname, port } = options;
  if (port === 0 && lastPort !== 0) {
    try {
      return Deno.serve({ hostname, port: lastPort, onListen: () => {} }, handler);
    } catch {
      // Taken meanwhile: any other port will do, and the links are printed anyway.
    }
  }
  try {
    return Deno.serve({ hostname, port, onListen: () => {} }, handler);
  } catch (error) {
    throw new ShoalError(
      "usage",
      `cannot listen on ${hostname}:${port}: ${messageOf(error)}; choose another --port`,
    );
  }
}

interface Prepared {
  corpus: ServedCorpus;
  spec: ModelSpec;
  /** What adapters belong to; null where the model itself is trained. */
  base: OpenBase | null;
  /** What a run begins with whose model is trained itself. */
  begin?: { weights: StartWeights; list: BaseList };
  resume?: NonNullable<ShellOptions["resume"]>;
}

async function prepare(options: OpenRunOptions): Promise<Prepared> {
  const { config, resumeFrom } = options;
  if (resumeFrom === undefined) {
    const corpus = await openCorpus(config.dataset, undefined, null, corpusOptions(options));
    checkCorpus(config, corpus.tokens.length);
    const spec = specOf(config, corpus.vocab.length);
    return { corpus, spec, base: await baseOf(options, spec) };
  }
  const checkpoint = await readCheckpoint(resumeFrom);
  const { manifest } = checkpoint;
  const tokenizer = await readTokenizer(resumeFrom, manifest);
  const corpus = await openCorpus(config.dataset, manifest.vocab, tokenizer, corpusOptions(options));
  checkCorpus(config, corpus.tokens.length);
  const spec = specOf(config, manifest.vocab.length);
  if (JSON.stringify(spec) !== JSON.stringify(manifest.spec)) {
    throw new ShoalError(
      "bad-config",
      "the model's shape or adapters differ from the checkpoint's; leave out their flags, or begin a new run with --init_from",
    );
  }
  const base = await baseOf(options, spec);
  const files = checkpointStates(checkpoint);
  const weights = StartWeights.of(checkpoint, files);
  if (weights === null) return { corpus, spec, base, resume: { step: manifest.step, files } };
  const begin = { weights, list: baseList(weights, options.baseUrl) };
  return { corpus, spec, base, begin, resume: { step: 0, files: weights.named(files) } };
}

/** The model that peers fetch by tensors: frozen, or the one that the run begins with. */
function openBase(
  { base, begin }: Prepared,
  bytesOf: (info: StateFile) => Uint8Array | null,
): OpenBase | null {
  if (begin === undefined) return base;
  const { weights, list } = begin;
  return { list, trained: true, pieces: (from, to) => weights.pieces(from, to, bytesOf) };
}

/** @throws {ShoalError} bad-config if there is nothing that adapters could stand beside; bad-checkpoint */
async function baseOf({ outDir, baseUrl }: OpenRunOptions, spec: ModelSpec): Promise<OpenBase | null> {
  if (spec.lora === undefined) return null;
  if (spec.lora.base !== undefined) {
    const file = await BaseFile.open(outDir, spec);
    return { pieces: (begin, end) => file.pieces(begin, end), list: baseList(file, baseUrl), trained: false };
  }
  throw new ShoalError(
    "bad-config",
    'lora_rank trains adapters of a model that is there already: begin with "shoal import" and --lora_rank, or with --init_from',
  );
}

function corpusOptions({ config, corporaDir, onCorpus, outDir, paging }: OpenRunOptions): LoadOptions {
  const { tokenizer, column, vocab_multiple: multiple } = config;
  const folder = corporaDir ?? join(outDir, "corpora");
  const accept = (tokens: number) => checkCorpus(config, tokens);
  const progress = onCorpus === undefined ? {} : { onProgress: onCorpus };
  return { tokenizer, column, multiple, folder, accept, ...progress, ...paging };
}

interface SampleJob {
  files: Uint8Array[];
  spec: ModelSpec;
  corpus: ServedCorpus;
  config: RunConfig;
  /** Where adapters have their base. */
  runDir: string;
  signal: AbortSignal;
}

/** What tokenizers call the token of a line's end: characters, byte-level ones, SentencePiece's. */
const NEWLINES = ["\n", "\u010a", "<0x0A>"];

/** Writes a sample in a worker, so that heartbeats and commits never wait for it. */
async function sampleText({ files, spec, corpus, config, runDir, signal }: SampleJob): Promise<string> {
  const worker = new Worker(new URL("./cli/sample_worker.ts", import.meta.url), { type: "module" });
  const limit = AbortSignal.any([signal, AbortSignal.timeout(SAMPLE_MS)]);
  try {
    return await new Promise<string>((resolve, reject) => {
      limit.addEventListener("abort", () => reject(new Error("it took too long or was cancelled")), {
        once: true,
      });
      worker.onmessage = ({ data }: MessageEvent<SampleAnswer>) =>
        typeof data === "string" ? reject(new Error(data)) : resolve(corpus.decode(data));
      worker.onerror = (event) => {
        event.preventDefault();
        reject(new Error(event.message));
      };
      const newline = Math.max(0, ...NEWLINES.map((name) => corpus.vocab.indexOf(name)));
      const { sample_chars: count, seed } = config;
      const ends = [...corpus.endTokens ?? []];
      const request: SampleRequest = { files, spec, runDir, prompt: [newline], count, seed, ends };
      worker.postMessage(request);
    });
  } finally {
    worker.terminate();
  }
}
