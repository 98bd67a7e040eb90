// Texts of a running coordinator for the command line, over its organizer's interface: brings a file there, waits until it is prepared,
// lists, deletes. It decides nothing; what went wrong is the coordinator's own sentence.
import { basename } from "node:path";
import type { CorporaAnswer, CorpusInfo } from "../../peer/wire/corpora.ts";
import { type ErrorCode, messageOf, ShoalError } from "../../peer/wire/errors.ts";
import { type CorpusDesk, type CorpusWish, idOf } from "../corpora/desk.ts";
import type { PrepareProgress } from "../corpora/prepare.ts";
import type { TokenizerChoice } from "../corpora/tokenizer.ts";

/** How often the list is asked for while a text is prepared. */
const LOOK_MS = 500;
/** Characters of an answer that is no answer. */
const ANSWER_CHARS_MAX = 200;

export class HubDesk implements CorpusDesk {
  readonly #base: string;
  readonly #token: string;
  readonly #lookMs: number;

  /** @param link the organizer's, as the coordinator printed it @throws {ShoalError} usage */
  constructor(link: string, lookMs = LOOK_MS) {
    const url = URL.canParse(link) ? new URL(link) : null;
    if (url === null || !/^https?:$/.test(url.protocol) || url.hash.length < 2) {
      const remedy = "use the organizer's link, http://.../runs#...";
      throw new ShoalError("usage", `--hub is "${link.slice(0, 80)}"; ${remedy}`);
    }
    this.#base = url.origin + url.pathname.replace(/\/(runs)?$/, "");
    this.#token = url.hash.slice(1);
    this.#lookMs = lookMs;
  }

  async list(): Promise<CorpusInfo[]> {
    return (await this.#answer()).corpora;
  }

  async add(wish: CorpusWish, onProgress: (progress: PrepareProgress) => void): Promise<CorpusInfo> {
    const id = await idOf(wish);
    const there = (await this.list()).find((it) => it.id === id && it.state === "ready");
    if (there !== undefined) return there;
    const { source: { path, name, format, column }, choice, multiple } = wish;
    const tokenizer = choice.label === "char" || choice.label === "gpt2"
      ? choice.label
      : await this.#bring(choice);
    const { size } = await Deno.stat(path);
    const query = new URLSearchParams({ name: basename(name), format, column, tokenizer });
    query.set("multiple", String(multiple));
    const file = await Deno.open(path);
    let sent = 0;
    const counted = file.readable.pipeThrough(
      new TransformStream<Uint8Array, Uint8Array>({
        transform(chunk, out) {
          onProgress({ bytes: (sent += chunk.length) / 2, of: size, tokens: 0, documents: 0 });
          out.enqueue(chunk);
        },
      }),
    );
    const response = await this.#ask(`?${query}`, { method: "POST", body: counted });
    const received = await response.json() as CorpusInfo;
    if (received.bytes !== size) {
      throw new ShoalError("bad-corpus", `${received.bytes} of ${size} bytes arrived; send it again`);
    }
    return await this.#ready({ upload: received.id, id, size }, onProgress);
  }

  async remove(id: string): Promise<void> {
    await this.#ask(`/${encodeURIComponent(id)}`, { method: "DELETE" });
  }

  /** An upload has a name of its own until it is prepared. */
  async #ready(
    { upload, id, size }: { upload: string; id: string; size: number },
    onProgress: (progress: PrepareProgress) => void,
  ): Promise<CorpusInfo> {
    while (true) {
      const { corpora } = await this.#answer();
      const way = corpora.find((it) => it.id === upload), made = corpora.find((it) => it.id === id);
      if (way?.error != null) throw new ShoalError(knownCode(way.error.code), way.error.message);
      if (way === undefined && made !== undefined) return made;
      if (way === undefined) {
        throw new ShoalError("bad-corpus", "the text was deleted while it was being prepared");
      }
      const { bytesDone, tokens, documents } = way;
      onProgress({ bytes: (size + bytesDone) / 2, of: size, tokens, documents });
      await new Promise((resolve) => setTimeout(resolve, this.#lookMs));
    }
  }

  async #bring({ label, json }: TokenizerChoice): Promise<string> {
    const path = `/tokenizers?${new URLSearchParams({ name: label })}`;
    const body = new TextEncoder().encode(json ?? "");
    const response = await this.#ask(path, {
      method: "POST",
      body,
      headers: { "content-length": String(body.length) },
    });
    return (await response.json() as { tokenizer: string }).tokenizer;
  }

  async #answer(): Promise<CorporaAnswer> {
    return await (await this.#ask("")).json() as CorporaAnswer;
  }

  async #ask(path: string, init: RequestInit = {}): Promise<Response> {
    const headers = new Headers(init.headers);
    headers.set("authorization", `Bearer ${this.#token}`);
    let response: Response;
    try {
      response = await fetch(`${this.#base}/api/corpora${path}`, { ...init, headers });
    } catch (error) {
      throw new ShoalError("offline", `${this.#base} does not answer: ${messageOf(error)}`, { cause: error });
    }
    if (response.ok) return response;
    throw problemOf(await response.text(), response.status);
  }
}

function problemOf(text: string, status: number): ShoalError {
  try {
    const { code, message } = JSON.parse(text) as { code: unknown; message: unknown };
    if (typeof message === "string") return new ShoalError(knownCode(code), message);
  } catch {
    // Whatever stands before the coordinator may answer with a page.
  }
  return new ShoalError("offline", `it answered ${status}: ${text.slice(0, ANSWER_CHARS_MAX)}`);
}

/** Of a coordinator that may be newer: a code unknown here is still a code. */
function knownCode(code: unknown): ErrorCode {
  return typeof code === "string" && /^[a-z-]{1,40}$/.test(code) ? code as ErrorCode : "internal";
}
