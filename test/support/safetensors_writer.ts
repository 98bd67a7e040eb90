// A second, independent writer of safetensors files for tests, in the types that models come in. Values must be exact in the type.

/** Unpadded header, tensors in the order given. */
export function encodeFile(
  tensors: readonly [string, { shape: number[]; values: Float64Array }][],
  dtype: "F32" | "F16" | "BF16",
): Uint8Array<ArrayBuffer> {
  const header: Record<string, unknown> = { __metadata__: { format: "pt" } };
  const bodies: Uint8Array[] = [];
  let end = 0;
  for (const [name, { shape, values }] of tensors) {
    const body = encodeValues(values, dtype);
    header[name] = { dtype, shape, data_offsets: [end, end += body.length] };
    bodies.push(body);
  }
  return fileOf(JSON.stringify(header), bodies);
}

/** A file of any header text and data. */
export function fileOf(header: string, bodies: readonly Uint8Array[]): Uint8Array<ArrayBuffer> {
  const text = new TextEncoder().encode(header);
  const size = bodies.reduce((sum, body) => sum + body.length, 0);
  const out = new Uint8Array(8 + text.length + size);
  new DataView(out.buffer).setBigUint64(0, BigInt(text.length), true);
  out.set(text, 8);
  let at = 8 + text.length;
  for (const body of bodies) {
    out.set(body, at);
    at += body.length;
  }
  return out;
}

function encodeValues(values: Float64Array, dtype: "F32" | "F16" | "BF16"): Uint8Array {
  const width = dtype === "F32" ? 4 : 2, out = new DataView(new ArrayBuffer(values.length * width));
  values.forEach((value, i) => {
    if (dtype === "F32") out.setFloat32(i * 4, value, true);
    else if (dtype === "F16") out.setFloat16(i * 2, value, true);
    else out.setUint16(i * 2, upperHalf(value), true);
  });
  return new Uint8Array(out.buffer);
}

function upperHalf(value: number): number {
  const bits = new DataView(new ArrayBuffer(4));
  bits.setFloat32(0, value);
  return bits.getUint16(0);
}
