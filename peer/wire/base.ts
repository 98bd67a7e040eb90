// What a coordinator tells of a run's frozen base, so that a peer can fetch the tensors of its own stages by byte range. Not the
// layout (peer/model) and not fetching. Every number of it comes from elsewhere: sizes are judged before anything is asked for.
import * as v from "valibot";
import { refuse, type Result } from "./errors.ts";

/** A longer list than that of any model that our configuration can name: 256 layers with 16 tensors each. */
const TENSORS_MAX = 8192;
/** Files of one model at another place. */
const FILES_MAX = 256;
/** Larger files than this are no model that a group of volunteers trains. */
const FILE_BYTES_MAX = 2 ** 42;
/** Bytes of the list as JSON. */
export const BASE_LIST_BYTES_MAX = 8 << 20;

/** Bytes per value of the types that a base is stored in elsewhere; the coordinator's file has f32. */
export const BASE_DTYPES = { F32: 4, F16: 2, BF16: 2 } as const;
export type BaseDtype = keyof typeof BASE_DTYPES;

/** One of our tensors: bytes [begin, end) of a whole file, with their SHA-256. */
export interface BaseTensor {
  name: string;
  shape: number[];
  begin: number;
  end: number;
  sha256: string;
}

/** The same values as another file has them. */
export interface SourceTensor {
  name: string;
  /** Of `urls`. */
  file: number;
  dtype: BaseDtype;
  begin: number;
  end: number;
  sha256: string;
}

export interface BaseList {
  /** What the run's model names as its base. */
  hash: string;
  /** Of the file that the coordinator serves. */
  bytes: number;
  tensors: BaseTensor[];
  /** Where else some of the tensors are. */
  source?: { urls: string[]; tensors: SourceTensor[] };
}

const PLACE = v.pipe(v.number(), v.integer(), v.minValue(0), v.maxValue(FILE_BYTES_MAX));
const NAME = v.pipe(v.string(), v.minLength(1), v.maxLength(200));
const HASH = v.pipe(v.string(), v.regex(/^[0-9a-f]{64}$/));
const RANGE = { begin: PLACE, end: PLACE, sha256: HASH };
const SIZE = v.pipe(v.number(), v.integer(), v.minValue(1), v.maxValue(2 ** 31));

const SCHEMA = v.strictObject({
  hash: HASH,
  bytes: PLACE,
  tensors: v.pipe(
    v.array(v.strictObject({
      ...{ name: NAME, ...RANGE },
      shape: v.pipe(v.array(SIZE), v.minLength(1), v.maxLength(2)),
    })),
    v.maxLength(TENSORS_MAX),
  ),
  source: v.optional(v.strictObject({
    urls: v.pipe(v.array(v.pipe(v.string(), v.maxLength(2000), v.check(isBaseUrl))), v.maxLength(FILES_MAX)),
    tensors: v.pipe(
      v.array(v.strictObject({
        ...{ name: NAME, ...RANGE },
        file: v.pipe(v.number(), v.integer(), v.minValue(0), v.maxValue(FILES_MAX)),
        dtype: v.picklist(["F32", "F16", "BF16"]),
      })),
      v.maxLength(TENSORS_MAX),
    ),
  })),
});

/** Encrypted, or on the same computer: whoever listens must not learn what is fetched, nor a peer be sent into its own network. */
export function isBaseUrl(text: string): boolean {
  if (!URL.canParse(text)) return false;
  const { protocol, hostname, username, password } = new URL(text);
  if (username !== "" || password !== "") return false;
  return protocol === "https:" ||
    (protocol === "http:" && ["127.0.0.1", "localhost", "[::1]"].includes(hostname));
}

/** Refuses with bad-state anything that is not such a list, and ranges that overlap or leave the file. */
export function readBaseList(json: unknown): Result<BaseList> {
  const parsed = v.safeParse(SCHEMA, json);
  if (!parsed.success) {
    const { issues: [issue] } = parsed;
    return refuse("bad-state", `the base's list: ${v.getDotPath(issue) ?? "(root)"}: ${issue.message}`);
  }
  const { source, ...rest } = parsed.output;
  const list: BaseList = { ...rest, ...(source === undefined ? {} : { source }) };
  const problem = rangeProblem(list);
  return problem === null ? { ok: true, value: list } : refuse("bad-state", `the base's list: ${problem}`);
}

function rangeProblem({ bytes, tensors, source }: BaseList): string | null {
  let last = 0;
  for (const { name, begin, end } of tensors) {
    if (begin < last || end < begin || end > bytes) {
      return `${name} at ${begin}..${end} overlaps another tensor or leaves the ${bytes} bytes of the file`;
    }
    last = end;
  }
  const sizes = new Map(
    tensors.map(({ name, shape }) => [name, shape.reduce((product, n) => product * n, 1)]),
  );
  if (sizes.size !== tensors.length) return "two tensors have one name";
  const wrong = tensors.find(({ name, begin, end }) => end - begin !== 4 * sizes.get(name)!);
  if (wrong !== undefined) {
    return `${wrong.name} has ${wrong.end - wrong.begin} bytes, which is not its shape`;
  }
  if (source === undefined) return null;
  if (new Set(source.tensors.map(({ name }) => name)).size !== source.tensors.length) {
    return "two tensors elsewhere have one name";
  }
  const odd = source.tensors.find(({ name, file, dtype, begin, end }) =>
    file >= source.urls.length || end - begin !== BASE_DTYPES[dtype] * (sizes.get(name) ?? NaN)
  );
  return odd === undefined ? null : `${odd.name} elsewhere is no tensor of the base, or has another size`;
}
