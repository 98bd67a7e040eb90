// A worker that writes text with a checkpoint, so that whoever serves it never waits for a model. One text at a time; the model
// of the last text stays loaded. It listens between tokens, so a text that nobody wants any more ends at once.
import { ShoalError } from "../../peer/wire/errors.ts";
import type { FromWriter, ToWriter } from "../http/text_protocol.ts";
import type { TokenChance } from "../http/token_chances.ts";
import { TextModel } from "./text_model.ts";

/** Text is told, and messages are heard, at this interval at least: often enough to read along. */
const BREATH_MS = 25;

type Order = Extract<ToWriter, { type: "write" }>;

// Deno types a worker's global like a window's; the worker's own has postMessage(value) alone.
const scope = self as unknown as {
  onmessage: ((event: MessageEvent<ToWriter>) => void) | null;
  postMessage(value: FromWriter): void;
};

let loaded: { path: string; model: TextModel } | null = null;
const cancelled = new Set<number>();

scope.onmessage = ({ data }) => {
  if (data.type === "cancel") cancelled.add(data.id);
  else void write(data).catch((error) => scope.postMessage(failure(data.id, error)));
};

async function write({ id, path, request }: Order): Promise<void> {
  const model = await modelOf(path);
  let chances: TokenChance[] = [];
  const writing = model.write(request, (more) => chances.push(...more));
  let text = "", told = performance.now();
  while (!cancelled.delete(id)) {
    const next = writing.next();
    if (!next.done) text += next.value;
    const now = performance.now();
    if ((text !== "" || chances.length > 0) && (next.done || now - told >= BREATH_MS)) {
      scope.postMessage({ type: "text", id, text, ...(chances.length > 0 ? { chances } : {}) });
      [text, chances] = ["", []];
    }
    if (next.done) return scope.postMessage({ type: "end", id, step: model.step, end: next.value });
    if (now - told < BREATH_MS) continue;
    told = now;
    await turn();
  }
  scope.postMessage({ type: "failed", id, code: "usage", message: "the text was cancelled" });
}

/** The old model is let go first: two of them may not fit. */
async function modelOf(path: string): Promise<TextModel> {
  if (loaded?.path === path) return loaded.model;
  loaded = null;
  const model = await TextModel.open(path);
  loaded = { path, model };
  return model;
}

/** Lets messages in. */
function turn(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve));
}

function failure(id: number, error: unknown): FromWriter {
  if (error instanceof ShoalError) return { type: "failed", id, code: error.code, message: error.message };
  return { type: "failed", id, code: "internal", message: String(error) };
}
