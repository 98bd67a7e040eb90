// The weights that a run begins with, out of the state files of its first checkpoint: a list of tensors with their hashes, and any bytes of
// the file that they would make. For peers that fetch what their stages need, without moments, which are zero. It keeps no bytes itself.
import { createHash } from "node:crypto";
import { stageLayout, wholeModel } from "../../peer/model/layout.ts";
import { baseText } from "../../peer/model/lora_base.ts";
import { decodeSafetensors } from "../../peer/model/safetensors.ts";
import type { BaseList, BaseTensor } from "../../peer/wire/base.ts";
import type { StateFile } from "../../peer/wire/control.ts";
import { assert, ShoalError } from "../../peer/wire/errors.ts";
import type { ModelSpec } from "../../peer/wire/run.ts";
import { type BaseSource, readSource, SOURCE_NAME } from "./base_source.ts";
import type { Checkpoint } from "./checkpoints.ts";

interface State {
  info: StateFile;
  bytes: Uint8Array;
}

/** Where the bytes of a tensor are. */
interface Span {
  begin: number;
  end: number;
  info: StateFile;
  /** In the state file. */
  at: number;
}

export class StartWeights {
  /** Without addresses; begin and end count in a file that is only these tensors, one after the other. */
  readonly list: BaseList;
  /** Where the imported files have the same values; null if nothing was imported. */
  readonly source: BaseSource | null;
  readonly #spans: readonly Span[];

  private constructor(list: BaseList, source: BaseSource | null, spans: readonly Span[]) {
    [this.list, this.source, this.#spans] = [list, source, spans];
  }

  /**
   * Null for a checkpoint that is not before the first step, or of adapters.
   * @param states its verified states
   * @throws {ShoalError} bad-checkpoint if what is said of the imported files cannot be read
   */
  static of({ path, manifest, files }: Checkpoint, states: readonly State[]): StartWeights | null {
    if (manifest.step !== 0 || manifest.spec.lora !== undefined) return null;
    const text = files.find(({ name }) => name === SOURCE_NAME)?.bytes;
    const source = text === undefined ? null : readSource(new TextDecoder().decode(text));
    if (source?.ok === false) {
      throw new ShoalError(source.code, `checkpoint ${path}: ${SOURCE_NAME}: ${source.reason}`);
    }
    const { tensors, spans } = tensorsOf(manifest.spec, states);
    const hash = createHash("sha256").update(baseText(tensors)).digest("hex");
    const bytes = tensors.at(-1)?.end ?? 0;
    return new StartWeights({ hash, bytes, tensors }, source?.value ?? null, spans);
  }

  /** The state files as peers are told of them. */
  named(states: readonly State[]): State[] {
    return states.map(({ info, bytes }) => ({ info: { ...info, base: this.list.hash }, bytes }));
  }

  /** Bytes [begin, end); null once a state that they are in has been let go of. */
  pieces(
    begin: number,
    end: number,
    bytesOf: (info: StateFile) => Uint8Array | null,
  ): Uint8Array<ArrayBuffer>[] | null {
    const pieces: Uint8Array<ArrayBuffer>[] = [];
    for (const span of this.#spans) {
      const [from, to] = [Math.max(begin, span.begin), Math.min(end, span.end)];
      if (from >= to) continue;
      const bytes = bytesOf(span.info);
      if (bytes === null) return null;
      const at = span.at + from - span.begin;
      pieces.push(bytes.subarray(at, at + to - from) as Uint8Array<ArrayBuffer>);
    }
    return pieces;
  }
}

/** All tensors in the order of the model; a tied one is in two files with the same bytes. */
function tensorsOf(spec: ModelSpec, states: readonly State[]): { tensors: BaseTensor[]; spans: Span[] } {
  const found = new Map<string, { info: StateFile; bytes: Uint8Array; at: number }>();
  for (const { info, bytes } of states) {
    const decoded = decodeSafetensors(bytes);
    assert(decoded.ok, "a state that was verified");
    for (const [name, tensor] of decoded.value.tensors) {
      if (!found.has(name)) {
        found.set(name, { info, bytes: tensor.bytes, at: tensor.bytes.byteOffset - bytes.byteOffset });
      }
    }
  }
  const tensors: BaseTensor[] = [], spans: Span[] = [];
  let begin = 0;
  for (const { name, shape } of stageLayout(spec, wholeModel(spec)).tensors) {
    const { info, bytes, at } = found.get(name)!;
    const end = begin + bytes.length;
    tensors.push({ name, shape, begin, end, sha256: createHash("sha256").update(bytes).digest("hex") });
    spans.push({ begin, end, info, at });
    begin = end;
  }
  return { tensors, spans };
}
