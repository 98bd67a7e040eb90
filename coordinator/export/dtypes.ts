// Numbers of exported tensors: f32 as trained, and the narrower types that other tools read. Pure.
// Every rounding is to nearest, ties to even, except Q8_0's, which is ggml's own. A value that a type cannot hold is refused,
// never turned into an infinity.
import { assert, ShoalError } from "../../peer/wire/errors.ts";

export const DTYPES = ["f32", "f16", "bf16", "q8_0"] as const;
export type ExportDtype = typeof DTYPES[number];

/** Values of one Q8_0 block, and its bytes: a scale in f16 and 32 signed bytes. */
export const Q8_BLOCK = 32;
const Q8_BLOCK_BYTES = 2 + Q8_BLOCK;
/** Largest code of a Q8_0 block. */
const Q8_CODE_MAX = 127;

export function isExportDtype(name: string): name is ExportDtype {
  return (DTYPES as readonly string[]).includes(name);
}

/** Bytes of `count` values; for q8_0 the count is a multiple of Q8_BLOCK. */
export function dtypeBytes(dtype: ExportDtype, count: number): number {
  switch (dtype) {
    case "f32":
      return 4 * count;
    case "f16":
    case "bf16":
      return 2 * count;
    case "q8_0":
      assert(count % Q8_BLOCK === 0, `${count} values are no whole Q8_0 blocks`);
      return count / Q8_BLOCK * Q8_BLOCK_BYTES;
  }
}

/**
 * Little-endian bytes of the values.
 * @throws {ShoalError} usage if a finite value overflows the type; the tensor's name is in the message.
 */
export function encodeValues(dtype: ExportDtype, values: Float32Array, name: string): Uint8Array {
  switch (dtype) {
    case "f32":
      return new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
    case "f16":
      return toF16(values, name);
    case "bf16":
      return toBf16(values, name);
    case "q8_0":
      return toQ8(values, name);
  }
}

function toF16(values: Float32Array, name: string): Uint8Array {
  const halves = new Float16Array(values);
  const wrong = halves.findIndex((value) => !Number.isFinite(value));
  if (wrong >= 0) throw overflow("f16", values[wrong]!, name);
  return new Uint8Array(halves.buffer);
}

function toBf16(values: Float32Array, name: string): Uint8Array {
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.length);
  const out = new Uint16Array(values.length);
  for (let i = 0; i < bits.length; i++) {
    const word = bits[i]!;
    // Adding half a unit of the kept part, less one if that part is even, carries exactly where rounding goes up.
    out[i] = (word + 0x7fff + (word >>> 16 & 1)) >>> 16;
    if ((out[i]! & 0x7f80) === 0x7f80) throw overflow("bf16", values[i]!, name);
  }
  return new Uint8Array(out.buffer);
}

/** As ggml's quantize_row_q8_0_ref: scale = largest magnitude / 127, code = value / scale, halves away from zero. */
function toQ8(values: Float32Array, name: string): Uint8Array {
  const out = new Uint8Array(dtypeBytes("q8_0", values.length));
  const view = new DataView(out.buffer);
  for (let at = 0, block = 0; at < values.length; at += Q8_BLOCK, block += Q8_BLOCK_BYTES) {
    let most = 0;
    for (let i = 0; i < Q8_BLOCK; i++) most = Math.max(most, Math.abs(values[at + i]!));
    const scale = Math.fround(most / Q8_CODE_MAX);
    const inverse = scale === 0 ? 0 : Math.fround(1 / scale);
    view.setFloat16(block, scale, true);
    if (!Number.isFinite(view.getFloat16(block, true))) throw overflow("q8_0", most, name);
    for (let i = 0; i < Q8_BLOCK; i++) {
      const code = Math.fround(values[at + i]! * inverse);
      const rounded = Math.sign(code) * Math.round(Math.abs(code));
      view.setInt8(block + 2 + i, Math.min(Q8_CODE_MAX, Math.max(-Q8_CODE_MAX, rounded)));
    }
  }
  return out;
}

function overflow(dtype: ExportDtype, value: number, name: string): ShoalError {
  const wider = dtype === "f16" ? "f32 or bf16" : "f32";
  return new ShoalError(
    "usage",
    `tensor ${name} contains ${value}, which ${dtype} cannot hold; export ${wider}`,
  );
}
