// A frozen base as a list of tensors: what its hash covers, whether a list is of a model, and which byte ranges bring it.
// Pure: neither fetching (peer/base.ts) nor files (coordinator/store/base.ts).
import { refuse, type Result } from "../wire/errors.ts";
import type { BaseList } from "../wire/base.ts";
import type { ModelSpec } from "../wire/run.ts";
import { baseSpec, stageLayout, type TensorLayout, wholeModel } from "./layout.ts";

/** File of a run's folder that holds the base. */
export const BASE_NAME = "base.safetensors";

/** Bytes of one request: enough to make round trips cheap, little enough to be kept twice. */
export const RANGE_BYTES_MAX = 32 << 20;

/** The base's tensors, in the order of its file and its list. */
export function baseTensors(spec: ModelSpec): TensorLayout[] {
  return stageLayout(baseSpec(spec), wholeModel(baseSpec(spec))).tensors;
}

/** What a base's hash is the SHA-256 of: its tensors' names, shapes and own hashes, of their f32 values. */
export function baseText(
  tensors: readonly Pick<BaseList["tensors"][number], "name" | "shape" | "sha256">[],
): string {
  return tensors.map(({ name, shape, sha256 }) => `${name} [${shape}] ${sha256}\n`).join("");
}

/** Whether the list has exactly the tensors of the model. Refuses with bad-state. */
export function checkBase(spec: ModelSpec, list: BaseList): Result<BaseList> {
  const wanted = baseTensors(spec);
  const wrong = wanted.find(({ name, shape }, i) => {
    const it = list.tensors[i];
    return it?.name !== name || String(it.shape) !== String(shape);
  });
  if (wrong !== undefined || list.tensors.length !== wanted.length) {
    return refuse(
      "bad-state",
      `the base's list is not of this model: ${wrong?.name ?? "it has more tensors"}`,
    );
  }
  const base = spec.lora?.base;
  if (base === undefined || base === list.hash) return { ok: true, value: list };
  return refuse("bad-state", `the base has hash ${list.hash}, the run's adapters belong to ${base}`);
}

/** Bytes [begin, end) of a file, and the parts that lie in it side by side. */
export interface ByteRange<T> {
  begin: number;
  end: number;
  parts: T[];
}

/** As few requests as bring exactly these parts: neighbours become one, up to a limit that only a single part exceeds. */
export function mergeRanges<T extends { begin: number; end: number }>(parts: readonly T[]): ByteRange<T>[] {
  const ranges: ByteRange<T>[] = [];
  for (const part of [...parts].sort((a, b) => a.begin - b.begin)) {
    const last = ranges.at(-1);
    if (last !== undefined && part.end <= last.end) {
      // Three of ours may lie in one matrix.
      last.parts.push(part);
    } else if (last !== undefined && last.end === part.begin && part.end - last.begin <= RANGE_BYTES_MAX) {
      last.end = part.end;
      last.parts.push(part);
    } else {
      ranges.push({ begin: part.begin, end: part.end, parts: [part] });
    }
  }
  return ranges;
}
