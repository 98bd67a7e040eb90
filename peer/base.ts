// The frozen weights that adapters stand beside, on a peer: of each tensor of its stages one copy, fetched by byte range from the
// address that the coordinator names, or else from the coordinator, and believed only with its hash. It computes nothing. What must
// stay true: no tensor is fetched that no stage here needs, and none twice while one does.
import { fromHalf } from "./codec/f16.ts";
import type { StageBuild } from "./engine/engine.ts";
import { type StageBase, stageBase } from "./engine/lora.ts";
import { baseSpec, stageLayout, type TensorLayout } from "./model/layout.ts";
import { turn } from "./model/hf_gpt2.ts";
import { loraTargets } from "./model/lora.ts";
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
import type { ModelSpec, StageSpec } from "./wire/run.ts";

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
}

/** Longest wait for one range from elsewhere; the coordinator has it, too. */
const SOURCE_MS = 60_000;

export class PeerBase {
  readonly #options: BaseOptions;
  #list: Promise<BaseList> | null = null;
  /** Values that are here already, as views of what engines hold. */
  readonly #known = new Map<string, Float32Array>();
  #sourceWorks = true;
  /** One stage after the other, so that nothing is fetched for two at once. */
  #last: Promise<unknown> = Promise.resolve();

  constructor(options: BaseOptions) {
    this.#options = options;
  }

  /** The base of one stage. @throws {ShoalError} bad-state if it cannot be had, or is not what the run names */
  stage(build: Pick<StageBuild, "spec" | "stage">): Promise<StageBase> {
    const next = this.#last.then(() => this.#stage(build));
    this.#last = next.catch(() => {});
    return next;
  }

  async #stage(build: Pick<StageBuild, "spec" | "stage">): Promise<StageBase> {
    const layout = stageLayout(baseSpec(build.spec), build.stage);
    const weights = new Float32Array(layout.size);
    const missing: TensorLayout[] = [];
    for (const tensor of layout.tensors) {
      const known = this.#known.get(tensor.name);
      if (known === undefined) missing.push(tensor);
      else weights.set(known, tensor.offset);
    }
    if (missing.length > 0) await this.#fetch(missing, weights);
    const base = stageBase(build, weights);
    this.#remember(build, base);
    return base;
  }

  /** Forgets what none of these stages needs. */
  keep(stages: readonly StageSpec[]): void {
    const { spec } = this.#options;
    const needed = new Set(
      stages.flatMap((stage) => stageLayout(baseSpec(spec), stage).tensors.map((it) => it.name)),
    );
    for (const name of this.#known.keys()) if (!needed.has(name)) this.#known.delete(name);
  }

  /** Names of the tensors that are here; for checks. */
  names(): string[] {
    return [...this.#known.keys()];
  }

  #remember({ spec, stage }: Pick<StageBuild, "spec" | "stage">, { weights, frozen }: StageBase): void {
    for (const { name, offset, size } of stageLayout(baseSpec(spec), stage).tensors) {
      this.#known.set(name, weights.subarray(offset, offset + size));
    }
    let at = 0;
    for (const { name, rows, cols } of loraTargets(spec, stage)) {
      this.#known.set(name, frozen.subarray(at, at + rows * cols));
      at += rows * cols;
    }
  }

  async #fetch(missing: readonly TensorLayout[], weights: Float32Array): Promise<void> {
    const list = await (this.#list ??= this.#readList());
    const there = new Set<string>();
    const wanted = new Map(missing.map((tensor) => [tensor.name, tensor]));
    const put = (name: string, values: Float32Array) => {
      weights.set(values, wanted.get(name)!.offset);
      there.add(name);
    };
    if (list.source !== undefined && this.#sourceWorks) {
      try {
        await this.#fromSource(list.source, wanted, put);
      } catch (error) {
        this.#sourceWorks = false;
        this.#options.onNote?.(`the model's address fails, the coordinator has it too: ${messageOf(error)}`);
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
    { urls, tensors }: NonNullable<BaseList["source"]>,
    wanted: ReadonlyMap<string, TensorLayout>,
    put: (name: string, values: Float32Array) => void,
  ): Promise<void> {
    for (const [file, url] of urls.entries()) {
      const here = tensors.filter((it) => it.file === file && wanted.has(it.name));
      for (const { begin, end, parts } of mergeRanges(here)) {
        const response = await (this.#options.fetchUrl ?? fetch)(url, {
          ...{ headers: rangeOf(begin, end), credentials: "omit", referrerPolicy: "no-referrer" },
          signal: AbortSignal.timeout(SOURCE_MS),
        });
        const bytes = await this.#body(response, end - begin);
        for (const part of parts) {
          const values = await verified(bytes, begin, part);
          put(part.name, ours(part, values, wanted.get(part.name)!.size));
        }
      }
    }
  }

  /** Exactly the bytes that were asked for: whoever sends more, or the whole file, is not read further. */
  async #body(response: Response, length: number): Promise<ArrayBuffer> {
    if (response.status !== 206 || response.body === null) {
      await response.body?.cancel();
      throw bad(`a part of the base was asked for, the answer has status ${response.status}`);
    }
    const bytes = await this.#options.read(bounded(response, length));
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
      if (found === list.value.hash) return checked.value;
      throw bad(`the base's list has hash ${found}, it says ${list.value.hash}`);
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
function bounded(response: Response, bytesMax: number): Response {
  let come = 0;
  const limit = new TransformStream<Uint8Array<ArrayBuffer>, Uint8Array<ArrayBuffer>>({
    transform(piece, controller) {
      come += piece.length;
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
  const found = await digestOf(own);
  if (found !== sha256) throw bad(`tensor ${name} has hash ${found}, expected ${sha256}`);
  const values = DECODERS[dtype](own);
  if (values.every(Number.isFinite)) return values;
  throw bad(`tensor ${name} has values that are not finite`);
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
  return new ShoalError("bad-state", `${reason}; the peer joins again to try once more`);
}
