// A model's files at an address: texts whole, tensors by byte range. Whoever answers is a stranger: a body is bounded by what was asked for,
// must be exactly that part of a file whose size stays the same, and may be silent only for a while. Nothing is kept.
import { isBaseUrl } from "../../peer/wire/base.ts";
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";
import { badModel, type ByteFile, type ModelPlace, PIECE_BYTES, utf8 } from "./model_place.ts";

/** Longest silence. */
const SILENCE_MS = 60_000;
/** Attempts at the same piece; a line that broke once may hold the next time. */
const TRIES = 4;
/** Before the second attempt; doubled for each further one. */
const PAUSE_MS = 500;
/** Addresses that lead on to others, one after the other. */
const REDIRECTS_MAX = 5;
const REDIRECTS: readonly number[] = [301, 302, 303, 307, 308];
/** What a server answers so, there is not. */
const ABSENT: readonly number[] = [404, 410];
/** A file of one byte would do to learn whether there is one. */
const PROBE = { begin: 0, end: 1 };

export interface UrlOptions {
  /** Default: the platform's. */
  fetch?: (url: string, init: RequestInit) => Promise<Response>;
  silenceMs?: number;
  pauseMs?: number;
}

interface Range {
  begin: number;
  end: number;
}

/** Whether a model is named by an address. */
export function isAddress(path: string): boolean {
  return /^https?:\/\//i.test(path);
}

export class UrlPlace implements ModelPlace {
  readonly #folder: URL;
  readonly #options: UrlOptions;

  /** @throws {ShoalError} usage unless it is encrypted or on this computer, without a password, query or fragment */
  constructor(folder: string, options: UrlOptions = {}) {
    const { search, hash } = isBaseUrl(folder) ? new URL(folder) : { search: "?", hash: "" };
    if (search !== "" || hash !== "") {
      throw new ShoalError(
        "usage",
        `"${folder.slice(0, 200)}" cannot be asked; use an https address without a name, password or query`,
      );
    }
    this.#folder = new URL(folder.replace(/\/*$/, "/"));
    this.#options = options;
  }

  said(name = ""): string {
    return new URL(encodeURIComponent(name), this.#folder).href;
  }

  async text(name: string, bytesMax: number): Promise<string | null> {
    const url = this.said(name);
    return await this.#patiently(url, async (line) => {
      const response = await line.ask(url, {});
      if (ABSENT.includes(response.status)) return null;
      tryLater(response);
      if (response.status !== 200) throw badModel(url, `it answers ${response.status}`);
      return utf8(url, await line.whole(url, response, bytesMax));
    });
  }

  async has(name: string): Promise<boolean> {
    return await this.#size(this.said(name)) !== null;
  }

  async open(name: string): Promise<ByteFile> {
    const url = this.said(name);
    const size = await this.#size(url);
    if (size === null) throw badModel(url, "there is no such file");
    return {
      said: url,
      name,
      size,
      close: () => {},
      pieces: (begin, end) => this.#pieces({ url, size }, { begin, end }),
    };
  }

  /** Null if there is no such file. */
  async #size(url: string): Promise<number | null> {
    return await this.#patiently(url, async (line) => {
      const response = await line.ask(url, rangeHeader(PROBE));
      if (ABSENT.includes(response.status)) return null;
      const size = sizeIn(url, response, PROBE);
      await line.whole(url, response, 1);
      return size;
    });
  }

  /** One answer brings as many pieces as it holds out for. */
  async *#pieces(
    { url, size }: { url: string; size: number },
    { begin, end }: Range,
  ): AsyncGenerator<Uint8Array<ArrayBuffer>> {
    let at = begin, line: Line | null = null, failures = 0;
    try {
      while (at < end) {
        try {
          line ??= await openRange(new Line(this.#options), { url, size }, { begin: at, end });
          const piece = await line.take(Math.min(PIECE_BYTES, end - at));
          yield piece;
          at += piece.length;
          failures = 0;
        } catch (error) {
          line?.close();
          line = null;
          await this.#again(url, error, ++failures);
        }
      }
      await line?.ended(url);
    } finally {
      line?.close();
    }
  }

  async #patiently<T>(url: string, work: (line: Line) => Promise<T>): Promise<T> {
    for (let failures = 1;; failures++) {
      const line = new Line(this.#options);
      try {
        return await work(line);
      } catch (error) {
        await this.#again(url, error, failures);
      } finally {
        line.close();
      }
    }
  }

  /** Waits before the next attempt. @throws what cannot become better */
  async #again(url: string, error: unknown, failures: number): Promise<void> {
    if (error instanceof ShoalError) throw error;
    if (error instanceof Deno.errors.NotCapable) throw forbidden(url, error);
    if (failures >= TRIES) throw badModel(url, `it cannot be read: ${messageOf(error).slice(0, 200)}`);
    const { pauseMs = PAUSE_MS } = this.#options;
    await new Promise((resolve) => setTimeout(resolve, pauseMs * 2 ** (failures - 1)));
  }
}

/** One request and its body, which may not be silent for long. */
class Line {
  readonly #options: UrlOptions;
  readonly #stop = new AbortController();
  #timer: ReturnType<typeof setTimeout> | undefined;
  #body: ReadableStreamDefaultReader<Uint8Array> | null = null;
  /** Bytes that came with those that were wanted. */
  #rest: Uint8Array = new Uint8Array(0);

  constructor(options: UrlOptions) {
    this.#options = options;
  }

  /** Follows where it is led, as long as that is a place that may be asked. @throws {ShoalError} bad-model */
  async ask(url: string, headers: Record<string, string>): Promise<Response> {
    let at = url;
    for (let hops = 0; hops <= REDIRECTS_MAX; hops++) {
      this.#listen();
      const response = await (this.#options.fetch ?? fetch)(at, {
        ...{ headers: { ...headers, "accept-encoding": "identity" }, redirect: "manual" },
        ...{ credentials: "omit", referrerPolicy: "no-referrer", signal: this.#stop.signal },
      });
      if (!REDIRECTS.includes(response.status)) return response;
      await response.body?.cancel();
      at = nextOf(at, response);
    }
    throw badModel(url, `it leads to more than ${REDIRECTS_MAX} other addresses`);
  }

  begin(response: Response): void {
    this.#body = response.body?.getReader() ?? null;
  }

  /** Exactly so many bytes more. @throws Error if they do not come */
  async take(length: number): Promise<Uint8Array<ArrayBuffer>> {
    const out = new Uint8Array(length);
    for (let have = 0; have < length;) {
      if (this.#rest.length === 0) await this.#read(length - have);
      const part = this.#rest.subarray(0, length - have);
      out.set(part, have);
      have += part.length;
      this.#rest = this.#rest.subarray(part.length);
    }
    return out;
  }

  /** @throws {ShoalError} bad-model if it is longer */
  async whole(url: string, response: Response, bytesMax: number): Promise<Uint8Array> {
    this.begin(response);
    const parts: Uint8Array[] = [];
    let bytes = 0;
    for (let part = await this.#next(); part !== null; part = await this.#next()) {
      bytes += part.length;
      if (bytes > bytesMax) throw badModel(url, `more than the ${bytesMax} bytes come that are expected`);
      parts.push(part);
    }
    return new Uint8Array(await new Blob(parts as Uint8Array<ArrayBuffer>[]).arrayBuffer());
  }

  /** @throws {ShoalError} bad-model if more comes than was asked for */
  async ended(url: string): Promise<void> {
    if (this.#rest.length === 0 && await this.#next() === null) return;
    throw badModel(url, "more bytes come than were asked for");
  }

  close(): void {
    clearTimeout(this.#timer);
    // Whatever is still under way is not wanted any more; that it ends so is no news.
    this.#body?.cancel().catch(() => {});
    this.#stop.abort();
  }

  async #read(missing: number): Promise<void> {
    const next = await this.#next();
    if (next === null) throw new Error(`it ends ${missing} bytes too early`);
    this.#rest = next;
  }

  /** Null at the end. */
  async #next(): Promise<Uint8Array | null> {
    this.#listen();
    const { done, value } = await this.#body?.read() ?? { done: true };
    return done || value === undefined ? null : value;
  }

  #listen(): void {
    const { silenceMs = SILENCE_MS } = this.#options;
    clearTimeout(this.#timer);
    const silent = () => this.#stop.abort(new Error(`nothing came for ${silenceMs / 1000} s`));
    this.#timer = setTimeout(silent, silenceMs);
  }
}

async function openRange(
  line: Line,
  { url, size }: { url: string; size: number },
  range: Range,
): Promise<Line> {
  try {
    const response = await line.ask(url, rangeHeader(range));
    const found = sizeIn(url, response, range);
    if (found !== size) throw badModel(url, `it had ${size} bytes and has ${found} now`);
    line.begin(response);
    return line;
  } catch (error) {
    line.close();
    throw error;
  }
}

function rangeHeader({ begin, end }: Range): Record<string, string> {
  return { range: `bytes=${begin}-${end - 1}` };
}

/** @throws Error to try again */
function tryLater({ status }: Response): void {
  if (status >= 500 || status === 429) throw new Error(`it answers ${status}`);
}

/** Bytes of the whole file, out of an answer that is this part of it. @throws {ShoalError} bad-model, or Error to try again */
function sizeIn(url: string, response: Response, { begin, end }: Range): number {
  tryLater(response);
  const { status, headers } = response;
  if (status === 200) {
    throw badModel(url, "it answers with the whole file where a part is asked for; parts are needed");
  }
  if (status !== 206) throw badModel(url, `it answers ${status}`);
  const [, first, last, size] =
    /^bytes (\d{1,15})-(\d{1,15})\/(\d{1,15})$/.exec(headers.get("content-range") ?? "") ?? [];
  if (Number(first) === begin && Number(last) === end - 1 && Number(size) >= end) return Number(size);
  throw badModel(
    url,
    `bytes ${begin} to ${end - 1} were asked for, it answers with "${
      headers.get("content-range")?.slice(0, 60)
    }"`,
  );
}

/** Who asks a public address must not be sent into the own network. @throws {ShoalError} bad-model */
function nextOf(url: string, { headers }: Response): string {
  const location = headers.get("location") ?? "";
  const next = URL.canParse(location, url) ? new URL(location, url).href : "";
  if (isBaseUrl(next) && (isHere(url) || !isHere(next))) return next;
  throw badModel(url, `it leads to "${location.slice(0, 100)}", which is not asked`);
}

function isHere(url: string): boolean {
  return ["127.0.0.1", "localhost", "[::1]"].includes(new URL(url).hostname);
}

function forbidden(url: string, error: Error): ShoalError {
  const host = /"([^"]+)"/.exec(error.message)?.[1] ?? "another host";
  return badModel(
    url,
    `it leads to ${host}, which this program may not ask; allow it with --model_host ${host}`,
  );
}
