// What a coordinator tells of a run's frozen base, so that a peer can fetch the tensors of its own stages by byte range. Not the
// layout (peer/model) and not fetching. Every number of it comes from elsewhere: sizes are judged before anything is asked for.
import * as v from "valibot";
import { refuse, type Result } from "./errors.ts";

/** A longer list than that of any model that our configuration can name: 256 layers with 16 tensors each. */
const TENSORS_MAX = 8192;
/** Files of one model at another place. */
const FILES_MAX = 256;
/** Matrices in one: a query, a key and a value. */
const PARTS_MAX = 3;
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

/** How a matrix lies elsewhere that is turned there, perhaps beside others. */
export interface Turned {
  /** Shape of the stored matrix; its columns are our rows. */
  into: number;
  out: number;
  /** Ours is this run of columns, counted in runs of as many as we have rows. */
  part: number;
}

/** The same values as another file has them. */
export interface SourceTensor {
  name: string;
  /** Of `urls`. */
  file: number;
  dtype: BaseDtype;
  /** Absent: in our order. */
  turned?: Turned;
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
const PART = v.pipe(v.number(), v.integer(), v.minValue(0), v.maxValue(PARTS_MAX));
const SIZE = v.pipe(v.number(), v.integer(), v.minValue(1), v.maxValue(2 ** 31));

const SOURCE_TENSORS = v.pipe(
  v.array(v.strictObject({
    ...{ name: NAME, ...RANGE },
    file: v.pipe(v.number(), v.integer(), v.minValue(0), v.maxValue(FILES_MAX)),
    dtype: v.picklist(["F32", "F16", "BF16"]),
    turned: v.optional(v.strictObject({ into: SIZE, out: SIZE, part: PART })),
  })),
  v.maxLength(TENSORS_MAX),
);

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
    tensors: SOURCE_TENSORS,
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
  const list: BaseList = {
    ...rest,
    ...(source === undefined ? {} : { source: { urls: source.urls, tensors: placesOf(source.tensors) } }),
  };
  const problem = rangeProblem(list);
  return problem === null ? { ok: true, value: list } : refuse("bad-state", `the base's list: ${problem}`);
}

/** Without keys that are there and undefined. */
function placesOf(tensors: v.InferOutput<typeof SOURCE_TENSORS>): SourceTensor[] {
  return tensors.map(({ turned, ...rest }) => ({ ...rest, ...(turned === undefined ? {} : { turned }) }));
}

/** Where the tensors of a base are elsewhere, as a file tells it. Refuses with bad-state. */
export function readSourceTensors(value: unknown): Result<SourceTensor[]> {
  const parsed = v.safeParse(SOURCE_TENSORS, value);
  if (parsed.success) return { ok: true, value: placesOf(parsed.output) };
  const { issues: [issue] } = parsed;
  return refuse("bad-state", `${v.getDotPath(issue) ?? "(root)"}: ${issue.message}`);
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
  const shapes = new Map(tensors.map(({ name, shape }) => [name, shape]));
  const odd = source.tensors.find((it) => it.file >= source.urls.length || !fits(it, shapes.get(it.name)));
  return odd === undefined ? null : `${odd.name} elsewhere is no tensor of the base, or has another size`;
}

/** Whether the bytes elsewhere can hold a tensor of this shape. */
function fits({ dtype, begin, end, turned }: SourceTensor, shape: readonly number[] | undefined): boolean {
  if (shape === undefined) return false;
  const values = (end - begin) / BASE_DTYPES[dtype];
  if (turned === undefined) return values === shape.reduce((product, n) => product * n, 1);
  const [rows, cols] = shape, { into, out, part } = turned;
  return cols === into && values === into * out && (part + 1) * rows! <= out;
}
