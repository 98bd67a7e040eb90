// What a peer fetches from the coordinator and brings to it over HTTP: the corpus and stages' states. Proves with its ticket who
// it is; a request that a restarting coordinator cut off is made again. It decides nothing about what is fetched.
import type { Gate } from "./limits.ts";
import { type Corpus, corpusView } from "./model/data.ts";
import type { StateFile, Welcome } from "./wire/control.ts";
import { assert, ShoalError } from "./wire/errors.ts";

/** Uploads of a snapshot are tried again this often; a departure meanwhile costs steps, not correctness. */
const UPLOAD_TRIES = 3;
/** A request that a vanished coordinator cut off is made again once it is back, so often. */
const FETCH_TRIES = 3;
/** A request may fail a moment before the socket is seen to close. */
const NOTICE_MS = 250;
/** Characters of a refusal that are passed on. */
const PROBLEM_CHARS_MAX = 200;

export interface RequestsOptions {
  origin: string;
  token: string;
  /** Who is asking; null before the welcome. */
  identity(): Pick<Welcome, "peer" | "ticket"> | null;
  /** True once a coordinator that was away is back; false if it was not away, or never returns. */
  back(): Promise<boolean>;
  /** Nobody waits for an answer any more. */
  over(): boolean;
  /** Counts bodies, and reads them no faster than allowed. */
  gate?: Gate | undefined;
}

export class Requests {
  readonly #options: RequestsOptions;

  constructor(options: RequestsOptions) {
    this.#options = options;
  }

  /** @throws {ShoalError} bad-state with what the coordinator answered */
  async fetch(path: string, init: RequestInit = {}): Promise<Response> {
    const { origin, token, identity } = this.#options;
    const headers = new Headers(init.headers);
    headers.set("authorization", `Bearer ${token}`);
    headers.set("x-shoal-peer", identity()?.peer ?? "");
    headers.set("x-shoal-ticket", identity()?.ticket ?? "");
    const response = await this.#patiently(() => fetch(origin + path, { ...init, headers }));
    if (response.ok) return response;
    const problem = (await response.text()).slice(0, PROBLEM_CHARS_MAX);
    throw new ShoalError("bad-state", `${path} answered ${response.status}: ${problem}`);
  }

  async state(step: number, { stage, hash }: Pick<StateFile, "stage" | "hash">): Promise<Uint8Array> {
    return new Uint8Array(await this.read(await this.fetch(`/api/state/${step}/${stage}/${hash}`)));
  }

  /** The body of an answer. */
  async read(response: Response): Promise<ArrayBuffer> {
    return await (this.#options.gate?.read(response) ?? response.arrayBuffer());
  }

  async upload(
    job: { cut: number; step: number; stage: number },
    file: { bytes: Uint8Array; hash: string },
  ): Promise<boolean> {
    const headers = { "x-shoal-cut": String(job.cut), "x-shoal-hash": file.hash };
    assert(file.bytes.buffer instanceof ArrayBuffer, "a state in a shared buffer");
    const body = file.bytes as Uint8Array<ArrayBuffer>;
    for (let attempt = 1; attempt <= UPLOAD_TRIES && !this.#options.over(); attempt++) {
      this.#options.gate?.uploaded(body.length);
      try {
        await this.fetch(`/api/state/${job.step}/${job.stage}`, { method: "PUT", body, headers });
        return true;
      } catch {
        // A snapshot that is no longer asked for is refused, which is fine; a lost connection is tried again.
      }
    }
    return false;
  }

  /** A coordinator that is away answers nothing; the same request is made again when it is back. */
  async #patiently<T>(request: () => Promise<T>): Promise<T> {
    for (let attempt = 1;; attempt++) {
      try {
        return await request();
      } catch (error) {
        await new Promise((resolve) => setTimeout(resolve, NOTICE_MS));
        if (attempt === FETCH_TRIES || !await this.#options.back()) throw error;
      }
    }
  }
}

/** The training text as tokens. @throws {ShoalError} bad-corpus if it is not the one that was announced */
export async function fetchCorpus(requests: Requests, announced: Welcome["corpus"]): Promise<Corpus> {
  const { hash, bytesPerToken, tokens } = announced;
  const response = await requests.fetch("/api/corpus");
  const bytes = await requests.read(response);
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  const found = [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  if (found !== hash || bytes.byteLength !== tokens * bytesPerToken) {
    throw new ShoalError("bad-corpus", "the corpus arrived damaged; reload to try again");
  }
  return corpusView(bytes, bytesPerToken);
}
