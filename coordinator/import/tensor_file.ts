// One safetensors file of a model from elsewhere, read by byte ranges: the header once, then each tensor where it lies, in pieces.
// Only f32, f16 and bf16 become f32 values. Memory is the header, one piece, and what the caller asks for.
import { createHash } from "node:crypto";
import { basename } from "node:path";
import { decodeHeader, headerLength, type TensorEntry } from "../../peer/model/safetensors.ts";
import { BASE_DTYPES, type BaseDtype } from "../../peer/wire/base.ts";
import { ShoalError } from "../../peer/wire/errors.ts";

const LENGTH_BYTES = 8;
/** Read at once; a multiple of every value's size. */
const PIECE_BYTES = 4 << 20;

/** Widening is exact for all of them. */
const DECODERS: Readonly<Record<string, (bytes: Uint8Array<ArrayBuffer>) => Float32Array>> = {
  F32: (bytes) => new Float32Array(bytes.buffer, 0, bytes.length / 4),
  F16: (bytes) => Float32Array.from(new Float16Array(bytes.buffer, 0, bytes.length / 2)),
  BF16: fromBf16,
};

/** A bf16 is the upper half of an f32. */
function fromBf16(bytes: Uint8Array<ArrayBuffer>): Float32Array {
  const halves = new Uint16Array(bytes.buffer, 0, bytes.length / 2);
  const bits = new Uint32Array(halves.length);
  for (let i = 0; i < halves.length; i++) bits[i] = halves[i]! << 16;
  return new Float32Array(bits.buffer);
}

export class TensorFile {
  readonly tensors: ReadonlyMap<string, TensorEntry>;
  readonly #file: Deno.FsFile;
  readonly #dataAt: number;
  readonly #path: string;

  private constructor(
    path: string,
    file: Deno.FsFile,
    header: { tensors: Map<string, TensorEntry>; dataAt: number },
  ) {
    this.#path = path;
    this.#file = file;
    this.tensors = header.tensors;
    this.#dataAt = header.dataAt;
  }

  /** Reads and checks the header. @throws {ShoalError} bad-model naming the file and what is wrong. */
  static async open(path: string): Promise<TensorFile> {
    const file = await openFile(path);
    try {
      return new TensorFile(path, file, await readHeader(path, file));
    } catch (error) {
      file.close();
      throw error;
    }
  }

  /** Whether a tensor can be read, told from the header alone. @throws {ShoalError} bad-model for another shape or type. */
  check(name: string, shape: readonly number[]): void {
    this.#entry(name, shape);
  }

  #entry(name: string, shape: readonly number[]): TensorEntry {
    const entry = this.tensors.get(name);
    if (entry === undefined) throw bad(this.#path, `tensor ${name} is missing`);
    if (!Object.hasOwn(DECODERS, entry.dtype)) {
      throw bad(this.#path, `tensor ${name} is ${entry.dtype}; only F32, F16 and BF16 can be imported`);
    }
    if (String(entry.shape) !== String(shape)) {
      throw bad(this.#path, `tensor ${name} is [${entry.shape}], config.json says [${shape}]`);
    }
    return entry;
  }

  /** Where in the file a tensor's values are; null for types that cannot be read. */
  place(name: string): { dtype: BaseDtype; begin: number; end: number } | null {
    const entry = this.tensors.get(name);
    if (entry === undefined || !Object.hasOwn(BASE_DTYPES, entry.dtype)) return null;
    const { dtype, begin, end } = entry;
    return { dtype: dtype as BaseDtype, begin: this.#dataAt + begin, end: this.#dataAt + end };
  }

  /**
   * Writes a tensor's values into `into`, which has exactly its size; gives the SHA-256 of the bytes in the file.
   * @throws {ShoalError} bad-model for another shape or type, a value that is not finite, or a file that ends too early.
   */
  async read(name: string, shape: readonly number[], { into }: { into: Float32Array }): Promise<string> {
    const entry = this.#entry(name, shape), decode = DECODERS[entry.dtype]!;
    await this.#file.seek(this.#dataAt + entry.begin, Deno.SeekMode.Start);
    const hash = createHash("sha256");
    let done = 0;
    for (let at = entry.begin; at < entry.end; at += PIECE_BYTES) {
      const piece = await readExactly(this.#path, this.#file, Math.min(PIECE_BYTES, entry.end - at));
      hash.update(piece);
      const values = decode(piece);
      const wrong = values.find((value) => !Number.isFinite(value));
      if (wrong !== undefined) throw bad(this.#path, `tensor ${name} contains ${wrong}`);
      into.set(values, done);
      done += values.length;
    }
    return hash.digest("hex");
  }

  /** Without its folder. */
  get name(): string {
    return basename(this.#path);
  }

  close(): void {
    this.#file.close();
  }
}

async function openFile(path: string): Promise<Deno.FsFile> {
  try {
    return await Deno.open(path);
  } catch (error) {
    if (error instanceof Deno.errors.NotFound) throw bad(path, "there is no such file");
    throw error;
  }
}

async function readHeader(path: string, file: Deno.FsFile) {
  const { size, isFile } = await file.stat();
  if (!isFile) throw bad(path, "it is not a file");
  const length = headerLength(await readExactly(path, file, Math.min(LENGTH_BYTES, size)), size, "bad-model");
  if (!length.ok) throw bad(path, length.reason);
  const dataAt = LENGTH_BYTES + length.value;
  const header = decodeHeader(await readExactly(path, file, length.value), size - dataAt, "bad-model");
  if (!header.ok) throw bad(path, header.reason);
  return { tensors: header.value.tensors, dataAt };
}

/** Into memory of its own, so that values are aligned. */
async function readExactly(
  path: string,
  file: Deno.FsFile,
  length: number,
): Promise<Uint8Array<ArrayBuffer>> {
  const out = new Uint8Array(length);
  for (let at = 0; at < length;) {
    const read = await file.read(out.subarray(at));
    if (read === null) throw bad(path, `it ends ${length - at} bytes too early`);
    at += read;
  }
  return out;
}

function bad(path: string, reason: string): ShoalError {
  return new ShoalError("bad-model", `${path}: ${reason}`);
}
