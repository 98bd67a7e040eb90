// llama.cpp itself, compiled to WebAssembly (@wllama/wllama), in a tab of headless Chromium: loads a GGUF file and completes text.
// Nothing of Shoal runs in that tab, and it loads nothing from elsewhere. No assertions here.
import { fileURLToPath } from "node:url";
import type { Page } from "playwright";
import { openBrowser } from "./pages_support.ts";

const PACKAGE = fileURLToPath(new URL("../../node_modules/@wllama/wllama/esm/", import.meta.url));
const FILES: Readonly<Record<string, string>> = {
  "/index.js": "text/javascript; charset=utf-8",
  "/wasm/wllama.wasm": "application/wasm",
};
/** Compiling ten megabytes of WebAssembly takes seconds on a loaded machine; only a hang reaches this. */
const PATIENCE_MS = 120_000;

export interface LoadedModel {
  vocabulary: number;
  contextLength: number;
  layers: number;
  width: number;
  /** Tokens that end a text, and the one that begins it; -1 = none. */
  endTokens: number[];
  beginToken: number;
  metadata: Record<string, string>;
}

export interface Completion {
  text: string;
  /** The tokens written. */
  tokens: number[];
  /** For each of them, the log of the probability of every token of the vocabulary: its logit but for one constant. */
  logProbabilities: number[][];
  /** What each token of the vocabulary stands for, in bytes; empty if nothing was written. */
  bytes: number[][];
  promptTokens: number;
}

export interface LlamaTab extends AsyncDisposable {
  /** Loads a model in place of the one before, and applies an adapter's file to it if there is one. Rejects with llama.cpp's reason. */
  load(gguf: Uint8Array, contextLength: number, adapter?: Uint8Array): Promise<LoadedModel>;
  /** Continues the prompt at temperature 0. */
  complete(prompt: string, options: { count: number; vocabulary: number }): Promise<Completion>;
  /** What llama.cpp wrote to its log. */
  log: string[];
}

/** The part of the package that the tab uses, as its own types say it. */
interface Wllama {
  loadModel(blobs: Blob[], params: Record<string, unknown>): Promise<void>;
  getModelMetadata(): {
    hparams: { nVocab: number; nCtxTrain: number; nEmbd: number; nLayer: number };
    meta: Record<string, string>;
  };
  isTokenEOG(token: number): boolean;
  getBOS(): number;
  createCompletion(options: Record<string, unknown>): Promise<{
    choices: { text: string; logprobs: { content: WrittenToken[] } }[];
    usage: { prompt_tokens: number };
  }>;
  exit(): Promise<void>;
}

interface WrittenToken {
  id: number;
  top_logprobs: { id: number; logprob: number; bytes: number[] }[];
}

interface Globals {
  llama?: Wllama;
}

export async function openLlama(): Promise<LlamaTab> {
  const models = new Map<string, Uint8Array>();
  const server = Deno.serve({ port: 0, hostname: "localhost", onListen: () => {} }, (request) => {
    const { pathname } = new URL(request.url);
    const model = models.get(pathname);
    if (model !== undefined) return new Response(model as Uint8Array<ArrayBuffer>);
    if (pathname === "/") return new Response("<!doctype html><title>llama.cpp</title>", HTML);
    const type = FILES[pathname];
    if (type === undefined) return new Response("not found", { status: 404 });
    return Deno.open(PACKAGE + pathname.slice(1)).then((file) =>
      new Response(file.readable, { headers: { "content-type": type } })
    );
  });
  const browser = await openBrowser();
  const page = await browser.newPage();
  page.setDefaultTimeout(PATIENCE_MS);
  const log: string[] = [];
  page.on("console", (message) => log.push(message.text()));
  await page.goto(`http://localhost:${server.addr.port}/`);
  return {
    log,
    async load(gguf, contextLength, adapter) {
      models.clear();
      models.set("/model.gguf", gguf);
      if (adapter) models.set("/adapter.gguf", adapter);
      return await loadIn(page, contextLength, adapter !== undefined);
    },
    complete: (prompt, options) => completeIn(page, { prompt, ...options }),
    async [Symbol.asyncDispose]() {
      await browser.close();
      await server.shutdown();
    },
  };
}

const HTML = { headers: { "content-type": "text/html; charset=utf-8" } };

function loadIn(page: Page, contextLength: number, adapted: boolean): Promise<LoadedModel> {
  return page.evaluate(async ({ contextLength, adapted }) => {
    const place = globalThis as unknown as Globals;
    await place.llama?.exit();
    const { Wllama } = await import(new URL("/index.js", location.href).href);
    const llama: Wllama = new Wllama({ default: "/wasm/wllama.wasm" });
    place.llama = llama;
    const names = ["/model.gguf", ...(adapted ? ["/adapter.gguf"] : [])];
    const files = await Promise.all(names.map(async (name) => await (await fetch(name)).blob()));
    // The package takes any further file for a part of the model, which llama.cpp finds out is in one part only.
    const lora_adapters = [{ path: "models/model-00002-of-00002.gguf" }];
    await llama.loadModel(files, {
      ...(adapted ? { lora_adapters } : {}),
      // One thread and no graphics card: the reference implementation on a processor. Keys and values stay f32.
      ...{ n_ctx: contextLength, n_threads: 1, n_gpu_layers: 0, n_parallel: 1, warmup: false },
      ...{ cache_type_k: "f32", cache_type_v: "f32", flash_attn: false },
    });
    const { hparams, meta } = llama.getModelMetadata();
    const tokens = Array.from({ length: hparams.nVocab }, (_, token) => token);
    return {
      vocabulary: hparams.nVocab,
      contextLength: hparams.nCtxTrain,
      layers: hparams.nLayer,
      width: hparams.nEmbd,
      endTokens: tokens.filter((token) => llama.isTokenEOG(token)),
      beginToken: llama.getBOS(),
      metadata: meta,
    };
  }, { contextLength, adapted });
}

function completeIn(
  page: Page,
  options: { prompt: string; count: number; vocabulary: number },
): Promise<Completion> {
  return page.evaluate(async ({ prompt, count, vocabulary }) => {
    const { llama } = globalThis as unknown as Globals;
    const options = { prompt, max_tokens: count, temperature: 0, logprobs: vocabulary };
    const { choices: [choice], usage } = await llama!.createCompletion(options);
    const { content } = choice!.logprobs;
    const bytes: number[][] = [];
    for (const it of content[0]?.top_logprobs ?? []) bytes[it.id] = it.bytes;
    return {
      bytes,
      text: choice!.text,
      tokens: content.map(({ id }) => id),
      logProbabilities: content.map(({ top_logprobs }) => {
        const row = Array<number>(vocabulary).fill(NaN);
        for (const { id, logprob } of top_logprobs) row[id] = logprob;
        return row;
      }),
      promptTokens: usage.prompt_tokens,
    };
  }, options);
}
