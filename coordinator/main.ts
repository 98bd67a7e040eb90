// Starts a coordinator: corpus, store, core, HTTP server. Library entry for the command line, the demo and tests; prints
// nothing itself. The links it returns carry the tokens in the fragment, which browsers do not send.
import { createApp } from "./http/app.ts";
import { Door } from "./http/door.ts";
import { linkBase } from "./http/links.ts";
import { Sockets } from "./http/sockets.ts";
import { TextService } from "./http/text_service.ts";
import { Shell, type ShellOptions } from "./shell.ts";
import type { CoordinatorEventLine } from "./core/run_state.ts";
import { loadCorpus, type LoadedCorpus } from "./store/corpus.ts";
import { readAccess, writeAccess } from "./store/access.ts";
import { EventLog } from "./store/event_log.ts";
import { checkpointStates, listCheckpoints } from "./store/checkpoint_list.ts";
import { readCheckpoint, readTokenizer } from "./store/checkpoints.ts";
import { RunLog } from "./store/run_log.ts";
import { checkCorpus } from "../peer/model/config.ts";
import { specOf } from "../peer/model/layout.ts";
import { messageOf, ShoalError } from "../peer/wire/errors.ts";
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
  /** Where others reach the coordinator, if not at its own address: a reverse proxy's https address. */
  publicUrl?: string;
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

export async function startCoordinator(options: CoordinatorOptions): Promise<Coordinator> {
  // A public URL that is none should be told before a corpus is read and a port opened.
  linkBase({ ...options, addresses: [] });
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
    sample: (files, signal) => sampleText({ files, ...start, config: options.config, signal }),
  };
  const shell = new Shell(shellOptions);
  shell.checkpoints.push(...await listCheckpoints(options.outDir));
  if (runLog.tornBytes > 0) {
    shell.warn(
      `the run's log ended in ${runLog.tornBytes} bytes of an unfinished record, which were cut off`,
    );
  }
  const sockets = new Sockets(shell, door);
  let base = "";
  const joinLink = (token = joinToken) => `${base}/#${token}`;
  const texts = new TextService(openTextWorker);
  const app = createApp({ ...options, shell, sockets, door, adminToken, joinLink, texts });
  const server = await serveOrClose(shell, () => serve(options, access.port, app.fetch));
  const { port } = server.addr as Deno.NetAddr;
  writeAccess(options.outDir, { joinToken, adminToken, port });
  base = linkBase({ ...options, port, addresses: Deno.networkInterfaces() });
  const adminLink = `${base}/admin#${adminToken}`;
  options.onEvent({ event: "listening", join: joinLink(), admin: adminLink });
  const stop = async (reason: string) => {
    texts.close();
    await shell.close(reason);
    await server.shutdown();
  };
  return { joinLink: joinLink(), adminLink, done: shell.ended, stop, shell };
}

/** Computes texts beside the thread that serves. */
export function openTextWorker(): Worker {
  return new Worker(new URL("./cli/text_worker.ts", import.meta.url), { type: "module" });
}

/** A run that goes on from its log keeps its epoch; anything else is a history of its own. */
function openLogs(options: CoordinatorOptions, start: Prepared): { log: EventLog; runLog: RunLog } {
  const { outDir, config, restore } = options;
  const { spec, corpus, resume } = start;
  const begin = { config, spec, corpusHash: corpus.hash, committed: resume?.step ?? 0 };
  const runLog = restore ? RunLog.reopen(outDir) : RunLog.create(outDir, begin);
  try {
    const { run } = runLog;
    if (run.corpusHash !== corpus.hash || JSON.stringify(run.spec) !== JSON.stringify(spec)) {
      throw new ShoalError(
        "bad-corpus",
        `the text of ${config.dataset} is not the one that the run began with`,
      );
    }
    return { log: new EventLog(outDir), runLog };
  } catch (error) {
    runLog.close();
    throw error;
  }
}

/** Timers and files of a run that cannot be reached must not outlive the attempt. */
async function serveOrClose<T>(shell: Shell, start: () => T): Promise<T> {
  try {
    return start();
  } catch (error) {
    await shell.close("it cannot be reached");
    throw error;
  }
}

type Handler = (request: Request) => Response | Promise<Response>;

/** Without a wish for a port the one used last is taken, if it is free, so that a resumed run keeps its links. */
function serve(options: CoordinatorOptions, lastPort: number, handler: Handler) {
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
  corpus: LoadedCorpus;
  spec: ModelSpec;
  resume?: NonNullable<ShellOptions["resume"]>;
}

async function prepare(options: CoordinatorOptions): Promise<Prepared> {
  const { config, resumeFrom } = options;
  if (resumeFrom === undefined) {
    const corpus = await loadCorpus(config.dataset);
    checkCorpus(config, corpus.tokens.length);
    return { corpus, spec: specOf(config, corpus.vocab.length) };
  }
  const checkpoint = await readCheckpoint(resumeFrom);
  const { manifest } = checkpoint;
  const tokenizer = await readTokenizer(resumeFrom, manifest);
  const corpus = await loadCorpus(config.dataset, manifest.vocab, tokenizer);
  checkCorpus(config, corpus.tokens.length);
  const spec = specOf(config, manifest.vocab.length);
  if (JSON.stringify(spec) !== JSON.stringify(manifest.spec)) {
    throw new ShoalError(
      "bad-config",
      "the model's shape differs from the checkpoint's; leave out the shape flags",
    );
  }
  return { corpus, spec, resume: { step: manifest.step, files: checkpointStates(checkpoint) } };
}

interface SampleJob {
  files: Uint8Array[];
  spec: ModelSpec;
  corpus: LoadedCorpus;
  config: RunConfig;
  signal: AbortSignal;
}

/** What tokenizers call the token of a line's end: characters, byte-level ones, SentencePiece's. */
const NEWLINES = ["\n", "\u010a", "<0x0A>"];

/** Writes a sample in a worker, so that heartbeats and commits never wait for it. */
async function sampleText({ files, spec, corpus, config, signal }: SampleJob): Promise<string> {
  const worker = new Worker(new URL("./cli/sample_worker.ts", import.meta.url), { type: "module" });
  const limit = AbortSignal.any([signal, AbortSignal.timeout(SAMPLE_MS)]);
  try {
    return await new Promise<string>((resolve, reject) => {
      limit.addEventListener("abort", () => reject(new Error("it took too long or was cancelled")), {
        once: true,
      });
      worker.onmessage = (event: MessageEvent<number[]>) => resolve(corpus.decode(event.data));
      worker.onerror = (event) => {
        event.preventDefault();
        reject(new Error(event.message));
      };
      const newline = Math.max(0, ...NEWLINES.map((name) => corpus.vocab.indexOf(name)));
      worker.postMessage({ files, spec, prompt: [newline], count: config.sample_chars, seed: config.seed });
    });
  } finally {
    worker.terminate();
  }
}
