// The tensors of the model that a run begins with, as a peer fetches them: by byte range from the address that the coordinator names, or
// else from the coordinator, and believed only with their hashes. It keeps none of them (base.ts, load.ts). What must stay true: only what
// is asked for is fetched, and an address that fails is given up for good and told once.
import { fromHalf } from "./codec/f16.ts";
import type { TensorLayout } from "./model/layout.ts";
import { turn } from "./model/hf_gpt2.ts";
import { baseText, checkBase, mergeRanges } from "./model/lora_base.ts";
import {
  BASE_LIST_BYTES_MAX,
  type BaseDtype,
  type BaseList,
  type BaseTensor,
  readBaseList,
  type SourceTensor,
} from "./wire/base.ts";
import { messageOf, ShoalError } from "./wire/errors.ts";
import type { ModelSpec } from "./wire/run.ts";

export interface BaseOptions {
  spec: ModelSpec;
  /** From the coordinator, with the peer's proof of who it is. @throws {ShoalError} */
  fetch(path: string, init?: RequestInit): Promise<Response>;
  /** From anywhere else. Default: the platform's. */
  fetchUrl?: (url: string, init: RequestInit) => Promise<Response>;
  /** Reads a body that has been bounded, no faster than allowed. */
  read(response: Response): Promise<ArrayBuffer>;
  /** Told once when the other place is given up. */
  onNote?(text: string): void;
  /** Hash that the list must have; default: the one that the model's adapters name. */
  hash?: string;
  /** Longest silence of the other place, ms. */
  silenceMs?: number;
}

/** Longest silence of the other place; the coordinator has the same. */
const SILENCE_MS = 60_000;
/** What a refusal ends with: nothing else helps. */
const REMEDY = "; the peer joins again to try once more";
/** Of a reason that is passed on. */
const REASON_CHARS_MAX = 200;

export class BaseTensors {
  readonly #options: BaseOptions;
  #list: Promise<BaseList> | null = null;
  #sourceWorks = true;

  constructor(options: BaseOptions) {
    this.#options = options;
  }

  /**
   * Writes the values of these tensors to their places in a stage's flat f32 weights.
   * @throws {ShoalError} bad-state if they cannot be had, or are not what the run names
   */
  async fetch(missing: readonly TensorLayout[], weights: Float32Array): Promise<void> {
    const list = await (this.#list ??= this.#readList());
    const there = new Set<string>();
    const wanted = new Map(missing.map((tensor) => [tensor.name, tensor]));
    const put = (name: string, values: Float32Array) => {
      weights.set(values, wanted.get(name)!.offset);
      there.add(name);
    };
    if (list.source !== undefined && this.#sourceWorks) {
      try {
        await this.#fromSource(list, wanted, put);
      } catch (error) {
        this.#sourceWorks = false;
        const why = messageOf(error).replace(REMEDY, "").slice(0, REASON_CHARS_MAX);
        this.#options.onNote?.(
          `the model's address does not serve, so the model comes from the coordinator (${why})`,
        );
      }
    }
    const rest = list.tensors.filter(({ name }) => wanted.has(name) && !there.has(name));
    for (const { begin, end, parts } of mergeRanges(rest)) {
      const response = await this.#options.fetch("/api/base/file", { headers: rangeOf(begin, end) });
      const bytes = await this.#body(response, end - begin);
      for (const part of parts) put(part.name, await verified(bytes, begin, { ...part, dtype: "F32" }));
    }
  }

  async #fromSource(
    { source, tensors: named }: BaseList,
    wanted: ReadonlyMap<string, TensorLayout>,
    put: (name: string, values: Float32Array) => void,
  ): Promise<void> {
    const hashes = new Map(named.map(({ name, sha256 }) => [name, sha256]));
    for (const [file, url] of source!.urls.entries()) {
      const here = source!.tensors.filter((it) => it.file === file && wanted.has(it.name));
      for (const { begin, end, parts } of mergeRanges(here)) {
        const bytes = await this.#elsewhere(url, begin, end);
        for (const part of parts) {
          const values = ours(part, await verified(bytes, begin, part), wanted.get(part.name)!.size);
          // What the view names are these values, however they were stored.
          await checkDigest(part.name, values, hashes.get(part.name));
          put(part.name, values);
        }
      }
    }
  }

  /** Bytes [begin, end) of a file elsewhere. Slow is allowed, silent is not. */
  async #elsewhere(url: string, begin: number, end: number): Promise<ArrayBuffer> {
    const { silenceMs = SILENCE_MS, fetchUrl = fetch } = this.#options;
    const stop = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const listen = () => {
      clearTimeout(timer);
      timer = setTimeout(() => stop.abort(bad(`nothing came for ${silenceMs / 1000} s`)), silenceMs);
    };
    listen();
    try {
      const response = await fetchUrl(url, {
        ...{ headers: rangeOf(begin, end), credentials: "omit", referrerPolicy: "no-referrer" },
        signal: stop.signal,
      });
      return await this.#body(response, end - begin, listen);
    } finally {
      clearTimeout(timer);
    }
  }

  /** Exactly the bytes that were asked for: whoever sends more, or the whole file, is not read further. */
  async #body(response: Response, length: number, onPiece?: () => void): Promise<ArrayBuffer> {
    if (response.status !== 206 || response.body === null) {
      await response.body?.cancel();
      throw bad(`a part of the base was asked for, the answer has status ${response.status}`);
    }
    const bytes = await this.#options.read(bounded(response, length, onPiece));
    if (bytes.byteLength === length) return bytes;
    throw bad(`${length} bytes of the base were asked for, ${bytes.byteLength} came`);
  }

  async #readList(): Promise<BaseList> {
    try {
      const response = await this.#options.fetch("/api/base");
      const bytes = await this.#options.read(bounded(response, BASE_LIST_BYTES_MAX));
      const list = readBaseList(jsonOf(bytes));
      if (!list.ok) throw bad(list.reason);
      const checked = checkBase(this.#options.spec, list.value);
      if (!checked.ok) throw bad(checked.reason);
      const found = await digestOf(new TextEncoder().encode(baseText(list.value.tensors)));
      if (found !== list.value.hash) {
        throw bad(`the base's list has hash ${found}, it says ${list.value.hash}`);
      }
      const { hash = found } = this.#options;
      if (hash === found) return checked.value;
      throw bad(`the base has hash ${found}, the run began with ${hash}`);
    } catch (error) {
      // Asked for again by the next stage.
      this.#list = null;
      throw error;
    }
  }
}

/** A tensor's values in our order; what lies turned elsewhere is turned back. */
function ours({ turned }: SourceTensor, values: Float32Array, size: number): Float32Array {
  if (turned === undefined) return values;
  const { into, out, part } = turned;
  return turn(values, into, out).subarray(part * size, (part + 1) * size);
}

function rangeOf(begin: number, end: number): Record<string, string> {
  return { range: `bytes=${begin}-${end - 1}` };
}

/** An answer whose body ends with an error as soon as it is longer than it may be. */
function bounded(response: Response, bytesMax: number, onPiece: () => void = () => {}): Response {
  let come = 0;
  const limit = new TransformStream<Uint8Array<ArrayBuffer>, Uint8Array<ArrayBuffer>>({
    transform(piece, controller) {
      come += piece.length;
      onPiece();
      if (come > bytesMax) controller.error(bad(`more than the ${bytesMax} bytes came that were expected`));
      else controller.enqueue(piece);
    },
  });
  return new Response(response.body?.pipeThrough(limit) ?? null);
}

/** One tensor's values out of the bytes of a range. @throws {ShoalError} bad-state if they do not have the hash */
async function verified(
  bytes: ArrayBuffer,
  at: number,
  { name, begin, end, sha256, dtype }: Pick<BaseTensor, "name" | "begin" | "end" | "sha256"> & {
    dtype: BaseDtype;
  },
): Promise<Float32Array> {
  // A copy where other tensors lie around it, because values must begin at a multiple of their size.
  const own = end - begin === bytes.byteLength ? bytes : bytes.slice(begin - at, end - at);
  await checkDigest(name, own, sha256);
  const values = DECODERS[dtype](own);
  if (values.every(Number.isFinite)) return values;
  throw bad(`tensor ${name} has values that are not finite`);
}

async function checkDigest(name: string, bytes: ArrayBuffer | Float32Array, sha256?: string): Promise<void> {
  const found = await digestOf(bytes as BufferSource);
  if (found !== sha256) throw bad(`tensor ${name} has hash ${found}, expected ${sha256}`);
}

async function digestOf(bytes: BufferSource): Promise<string> {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Widening is exact for all of them. */
const DECODERS: Readonly<Record<SourceTensor["dtype"], (bytes: ArrayBuffer) => Float32Array>> = {
  F32: (bytes) => new Float32Array(bytes),
  F16: (bytes) => Float32Array.from(new Uint16Array(bytes), fromHalf),
  BF16: (bytes) => new Float32Array(Uint32Array.from(new Uint16Array(bytes), (half) => half << 16).buffer),
};

function jsonOf(bytes: ArrayBuffer): unknown {
  try {
    return JSON.parse(new TextDecoder().decode(bytes));
  } catch {
    throw bad("the base's list is not JSON");
  }
}

function bad(reason: string): ShoalError {
  return new ShoalError("bad-state", reason + REMEDY);
}
