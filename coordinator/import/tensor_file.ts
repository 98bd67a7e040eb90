// One safetensors file of a model from elsewhere, on disk or at an address, read by byte ranges: the header once, then each tensor where it lies, in pieces.
// Only f32, f16 and bf16 become f32 values. Memory is the header, one piece, and what the caller asks for.
import { createHash } from "node:crypto";
import { decodeHeader, headerLength, type TensorEntry } from "../../peer/model/safetensors.ts";
import { BASE_DTYPES, type BaseDtype } from "../../peer/wire/base.ts";
import { badModel, type ByteFile } from "./model_place.ts";

const LENGTH_BYTES = 8;

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

export interface ReadInto {
  /** Of the tensor's size. */
  into: Float32Array;
  /** So many values are hashed at a time, what is left at the end not at all; default: all of them. */
  part?: number;
}

export class TensorFile {
  readonly tensors: ReadonlyMap<string, TensorEntry>;
  readonly #file: ByteFile;
  readonly #dataAt: number;

  private constructor(file: ByteFile, header: { tensors: Map<string, TensorEntry>; dataAt: number }) {
    this.#file = file;
    this.tensors = header.tensors;
    this.#dataAt = header.dataAt;
  }

  /** Reads and checks the header; the file is closed if it is refused. @throws {ShoalError} bad-model naming the file and what is wrong. */
  static async open(file: ByteFile): Promise<TensorFile> {
    try {
      return new TensorFile(file, await readHeader(file));
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
    const { said } = this.#file;
    const entry = this.tensors.get(name);
    if (entry === undefined) throw badModel(said, `tensor ${name} is missing`);
    if (!Object.hasOwn(DECODERS, entry.dtype)) {
      throw badModel(said, `tensor ${name} is ${entry.dtype}; only F32, F16 and BF16 can be imported`);
    }
    if (String(entry.shape) !== String(shape)) {
      throw badModel(said, `tensor ${name} is [${entry.shape}], config.json says [${shape}]`);
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
   * Writes a tensor's values into `into`; gives the SHA-256 of each part's bytes in the file, one after the other.
   * @throws {ShoalError} bad-model for another shape or type, a value that is not finite, or a file that ends too early.
   */
  async read(
    name: string,
    shape: readonly number[],
    { into, part = into.length }: ReadInto,
  ): Promise<string[]> {
    const { dtype, begin, end } = this.#entry(name, shape), decode = DECODERS[dtype]!;
    const hashes = new PartHashes(part * (end - begin) / into.length);
    let done = 0;
    for await (const piece of this.#file.pieces(this.#dataAt + begin, this.#dataAt + end)) {
      hashes.update(piece);
      const values = decode(piece);
      const wrong = values.find((value) => !Number.isFinite(value));
      if (wrong !== undefined) throw badModel(this.#file.said, `tensor ${name} contains ${wrong}`);
      into.set(values, done);
      done += values.length;
    }
    return hashes.digests;
  }

  /** Without its folder. */
  get name(): string {
    return this.#file.name;
  }

  close(): void {
    this.#file.close();
  }
}

/** Hashes of a stream, of so many bytes each. */
class PartHashes {
  readonly digests: string[] = [];
  readonly #bytes: number;
  #hash = createHash("sha256");
  #done = 0;

  constructor(bytes: number) {
    this.#bytes = bytes;
  }

  update(piece: Uint8Array): void {
    for (let at = 0; at < piece.length;) {
      const part = piece.subarray(at, at + this.#bytes - this.#done);
      this.#hash.update(part);
      this.#done += part.length;
      at += part.length;
      if (this.#done < this.#bytes) continue;
      this.digests.push(this.#hash.digest("hex"));
      [this.#hash, this.#done] = [createHash("sha256"), 0];
    }
  }
}

async function readHeader(file: ByteFile) {
  const { said, size } = file;
  const length = headerLength(await first(file, 0, Math.min(LENGTH_BYTES, size)), size, "bad-model");
  if (!length.ok) throw badModel(said, length.reason);
  const dataAt = LENGTH_BYTES + length.value;
  const header = decodeHeader(await first(file, LENGTH_BYTES, dataAt), size - dataAt, "bad-model");
  if (!header.ok) throw badModel(said, header.reason);
  return { tensors: header.value.tensors, dataAt };
}

/** Bytes [begin, end), which are at most one piece. */
async function first(file: ByteFile, begin: number, end: number): Promise<Uint8Array<ArrayBuffer>> {
  for await (const piece of file.pieces(begin, end)) return piece;
  return new Uint8Array(0);
}
