// What a peer fetches from the coordinator and brings to it over HTTP: the corpus and stages' states. Proves with its ticket who
// it is; a request that a restarting coordinator cut off is made again. It decides nothing about what is fetched.
import { type KeptBase, PeerBase } from "./base.ts";
import { type BaseOptions, BaseTensors } from "./base_tensors.ts";
import { type CreateEngine, withLora } from "./engine/lora.ts";
import type { Gate } from "./limits.ts";
import type { HolderOptions } from "./load.ts";
import { type Corpus, corpusView, type TokenSource } from "./model/data.ts";
import { stageLayout } from "./model/layout.ts";
import { mergeLora } from "./model/lora.ts";
import { TokenPages } from "./token_pages.ts";
import type { AnnouncedCorpus, StateFile, Welcome } from "./wire/control.ts";
import { assert, ShoalError } from "./wire/errors.ts";
import type { ModelSpec, StageSpec } from "./wire/run.ts";
import type { WeightsOf } from "./writer.ts";

/** Uploads of a snapshot are tried again this often; a departure meanwhile costs steps, not correctness. */
const UPLOAD_TRIES = 3;
/** A request that a vanished coordinator cut off is made again once it is back, so often. */
const FETCH_TRIES = 3;
/** A request may fail a moment before the socket is seen to close. */
const NOTICE_MS = 250;
/** What stands before the coordinator answers so while that is away. */
const AWAY: readonly number[] = [502, 503, 504];
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
  /** Told of what was got round: an address that failed, say. */
  onNote?(text: string): void;
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
    const response = await this.#patiently(async () => {
      const answer = await fetch(origin + path, { ...init, headers });
      if (!AWAY.includes(answer.status)) return answer;
      await answer.body?.cancel();
      throw new ShoalError("offline", `${path} answered ${answer.status}: the coordinator is away`);
    });
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

  note(text: string): void {
    this.#options.onNote?.(text);
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

type FromElsewhere = "createEngine" | "fetchState" | "fetchWeights" | "prefetch" | "onHeld";

export interface Sources extends Pick<HolderOptions, FromElsewhere> {
  /** A learner's state, and what its engine will need: fetched while the peer's other stages go on. */
  learn: HolderOptions["fetchState"];
  weightsOf?: WeightsOf;
}

/** Where a holder gets states, and what its engines stand beside: with adapters the base of its stages, and no more of it. */
export function sourcesOf(
  requests: Requests,
  spec: ModelSpec,
  { createEngine, keptBase }: { createEngine: CreateEngine; keptBase?: KeptBase },
): Sources {
  const fetchState: HolderOptions["fetchState"] = (step, file) => requests.state(step, file);
  const access = {
    spec,
    fetch: (path: string, init?: RequestInit) => requests.fetch(path, init),
    read: (response: Response) => requests.read(response),
    onNote: (text: string) => requests.note(text),
  };
  if (spec.lora === undefined) {
    return { createEngine, fetchState, learn: fetchState, fetchWeights: weightsFetcher(access) };
  }
  const base = new PeerBase(access, keptBase);
  const prefetch = async (stage: StageSpec) => void await base.stage({ spec, stage });
  return {
    ...{ fetchState, prefetch },
    learn: async (step, file) => {
      const [bytes] = await Promise.all([fetchState(step, file), prefetch({ ...file, index: file.stage })]);
      return bytes;
    },
    createEngine: withLora(createEngine, (build) => base.stage(build)),
    onHeld: (stages) => base.keep(stages),
    weightsOf: async (stage, adapters) => {
      const { weights } = await base.stage({ spec, stage });
      return mergeLora(spec, stage, { base: weights, adapters, out: weights });
    },
  };
}

/** An address that failed is given up for all stages of the session. */
function weightsFetcher(access: BaseOptions): NonNullable<HolderOptions["fetchWeights"]> {
  const { spec } = access;
  let from: { hash: string; tensors: BaseTensors } | null = null;
  return async (stage, hash) => {
    if (from?.hash !== hash) from = { hash, tensors: new BaseTensors({ ...access, hash }) };
    const { tensors, size } = stageLayout(spec, stage);
    const weights = new Float32Array(size);
    await from.tensors.fetch(tensors, weights);
    return weights;
  };
}

/** The training text as tokens, whole or as its pages are needed. @throws {ShoalError} bad-corpus if it is not what was announced */
export async function fetchCorpus(
  requests: Requests,
  announced: AnnouncedCorpus,
): Promise<Corpus | TokenSource> {
  const { hash, bytesPerToken, tokens, pages } = announced;
  if (pages === undefined) {
    const bytes = await requests.read(await requests.fetch("/api/corpus"));
    if (await sha256(bytes) === hash && bytes.byteLength === tokens * bytesPerToken) {
      return corpusView(bytes, bytesPerToken);
    }
    throw new ShoalError("bad-corpus", "the corpus arrived damaged; reload to try again");
  }
  return new TokenPages({
    ...{ tokens, bytesPerToken, pageBytes: pages.bytes },
    digests: async () => {
      const bytes = await requests.read(await requests.fetch("/api/corpus/pages"));
      if (await sha256(bytes) === pages.hash) return new Uint8Array(bytes);
      throw new ShoalError("bad-corpus", "the hashes of the corpus arrived damaged; reload to try again");
    },
    fetch: async (numbers) => {
      return new Uint8Array(
        await requests.read(await requests.fetch(`/api/corpus/pages/${numbers.join(",")}`)),
      );
    },
  });
}

async function sha256(bytes: ArrayBuffer): Promise<string> {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
