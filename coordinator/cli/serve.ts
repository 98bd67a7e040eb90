// `shoal serve`: a checkpoint behind OpenAI's completions API, until Ctrl-C. No run, no peers, no pages: whoever has the key may
// have text written. Reads the checkpoint and writes nothing.
import { Hono } from "hono";
import { basename } from "node:path";
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";
import { same } from "../http/answers.ts";
import { addCompletionRoutes } from "../http/completions.ts";
import { refusal } from "../http/completions_problem.ts";
import { linkBase } from "../http/links.ts";
import { TextService } from "../http/text_service.ts";
import { openTextWorker } from "../main.ts";
import { readManifest } from "../store/checkpoints.ts";
import { latestCheckpoint } from "../store/weights.ts";
import { findCheckpoint, isCheckpoint, runFolderOf } from "./checkpoint_path.ts";
import { listenForInterrupts } from "./interrupts.ts";
import { integerFlag, positional, requiredFlag, type VerbOptions } from "./options.ts";

/** Bytes of a key that is drawn: as hard to guess as a run's tokens. */
const KEY_BYTES = 24;

export interface ServeOptions {
  /** A checkpoint, or a run's folder: then its newest checkpoint, also one that is written later. */
  checkpoint: string;
  host: string;
  /** 0 = any free one. */
  port: number;
  /** What a request's "model" says; the run's folder by default. */
  name?: string;
  /** Drawn if it is not given. */
  key?: string;
}

export interface Served {
  /** What a client takes as its base URL: http://host:port/v1 */
  url: string;
  key: string;
  model: string;
  step: number;
  stop(): Promise<void>;
}

/** @throws {ShoalError} bad-checkpoint, or usage if the port cannot be had. */
export async function startServing(options: ServeOptions): Promise<Served> {
  const named = options.checkpoint;
  const first = await findCheckpoint(named);
  const { step } = await readManifest(first);
  const follows = !await isCheckpoint(named);
  const model = options.name ?? basename(runFolderOf(first));
  const key = options.key ?? drawKey();
  const service = new TextService(openTextWorker);
  const app = new Hono();
  app.notFound((c) =>
    refusal(404, { message: `there is nothing at ${c.req.method} ${c.req.path}; use /v1` })
  );
  app.onError((error) => refusal(500, { message: error.message, type: "server_error", code: "internal" }));
  addCompletionRoutes(app, {
    ...{ service, model, owner: "shoal" },
    authorised: (request) => same(request.headers.get("authorization") ?? "", `Bearer ${key}`),
    checkpoint: async () => follows ? await latestCheckpoint(named) ?? first : first,
  });
  const server = listen(options, app.fetch);
  const { port } = server.addr as Deno.NetAddr;
  const base = linkBase({ host: options.host, port, addresses: Deno.networkInterfaces() });
  const stop = async () => {
    service.close();
    await server.shutdown();
  };
  return { url: `${base}/v1`, key, model, step, stop };
}

function listen(
  { host: hostname, port }: ServeOptions,
  handler: (request: Request) => Response | Promise<Response>,
) {
  try {
    return Deno.serve({ hostname, port, onListen: () => {} }, handler);
  } catch (error) {
    const reason = messageOf(error);
    throw new ShoalError("usage", `cannot listen on ${hostname}:${port}: ${reason}; choose another --port`);
  }
}

function drawKey(): string {
  return crypto.getRandomValues(new Uint8Array(KEY_BYTES)).toBase64({ alphabet: "base64url" });
}

/** Serves until it is interrupted; resolves to the exit code. */
export async function serve(options: VerbOptions): Promise<number> {
  const interrupts = listenForInterrupts();
  try {
    const served = await startServing(serveOptions(options));
    const { stop, ...told } = served;
    if (options.flags.json !== undefined) console.log(JSON.stringify({ event: "serving", ...told }));
    else {
      console.error(`serving step ${told.step} as "${told.model}" until Ctrl-C; give a client these:`);
      console.log(`OPENAI_BASE_URL=${told.url}\nOPENAI_API_KEY=${told.key}`);
    }
    await new Promise<void>((resolve) => {
      interrupts.signal.addEventListener("abort", () => resolve(), { once: true });
      if (interrupts.signal.aborted) resolve();
    });
    await stop();
    return 0;
  } finally {
    interrupts.close();
  }
}

/** Reads the flags of `shoal serve`. */
function serveOptions(options: VerbOptions): ServeOptions {
  positional(options, 0);
  const { host = "127.0.0.1", name, key } = options.flags;
  if (key !== undefined && !/^[\x21-\x7e]{8,200}$/.test(key)) {
    throw new ShoalError("usage", "--key is not 8 to 200 letters, digits and signs without spaces");
  }
  return {
    ...{ checkpoint: requiredFlag(options, "checkpoint"), host },
    port: integerFlag(options, "port", { absent: 0, min: 0, max: 65_535 }),
    ...(name === undefined ? {} : { name }),
    ...(key === undefined ? {} : { key }),
  };
}
