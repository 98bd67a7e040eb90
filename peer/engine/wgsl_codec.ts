// The boundary of a stage on the GPU: plans that encode what leaves and decode what enters, and the bytes to upload.
// Bytes that came from another peer are judged here (peer/codec) before any of them reaches the GPU.
import { checkEncoded } from "../codec/codec.ts";
import type { TensorRef } from "../gpu/arena.ts";
import {
  amaxChunksSpec,
  amaxExponentSpec,
  decodeF16sSpec,
  decodeI8b64Spec,
  encodeF16sSpec,
  encodeI8b64Spec,
} from "../gpu/kernels/codec.ts";
import type { DispatchPlan } from "../gpu/program.ts";
import { amaxChunk, boundaryBytes, type BoundaryShape } from "../model/stage_tensors.ts";
import { EXPONENT_MAX } from "../wire/frame.ts";
import { ShoalError } from "../wire/errors.ts";
import type { Encoded } from "../wire/run.ts";

const WORD_BYTES = 4;

/** Encodes `values` and names what a readback must bring. */
export function encodePlan(
  shape: BoundaryShape,
  values: TensorRef,
): { dispatches: DispatchPlan[]; readback: TensorRef } {
  if (shape.codec === "raw32") return { dispatches: [], readback: values };
  const n = shape.rows * shape.cols;
  const chunk = amaxChunk(n);
  const spec = shape.codec === "f16s" ? encodeF16sSpec : encodeI8b64Spec;
  return {
    dispatches: [
      { spec: amaxChunksSpec, params: { n, chunk }, tensors: { values, maxima: "maxima" } },
      {
        spec: amaxExponentSpec,
        params: { count: Math.ceil(n / chunk) },
        tensors: { maxima: "maxima", encoded: "encoded" },
      },
      { spec, params: { n }, tensors: { values, encoded: "encoded" } },
    ],
    readback: { tensor: "encoded", offset: 0, bytes: boundaryBytes(shape) },
  };
}

/** Decodes the uploaded words into `values`, and names what to upload to. */
export function decodePlan(
  shape: BoundaryShape,
  values: string,
): { dispatches: DispatchPlan[]; upload: string } {
  if (shape.codec === "raw32") return { dispatches: [], upload: values };
  const n = shape.rows * shape.cols;
  const spec = shape.codec === "f16s" ? decodeF16sSpec : decodeI8b64Spec;
  return {
    dispatches: [{ spec, params: { n }, tensors: { encoded: "encoded", values } }],
    upload: "encoded",
  };
}

/** Readback -> what travels. Errors: internal if the values were not finite or beyond 2^100. */
export function toEncoded({ codec, rows, cols }: BoundaryShape, bytes: ArrayBuffer): Encoded {
  const raw = codec === "raw32";
  const exponent = raw ? 0 : new DataView(bytes).getInt32(0, true);
  const encoded = { codec, exponent, rows, cols, payload: new Uint8Array(bytes, raw ? 0 : WORD_BYTES) };
  const finite = raw ? checkEncoded(encoded).ok : exponent <= EXPONENT_MAX;
  if (finite) return encoded;
  throw new ShoalError("internal", "a boundary tensor is not finite: training diverged; lower learning_rate");
}

/** Bytes to upload for decodePlan. Errors: bad-frame for another shape or codec, or values that are not sane. */
export function fromEncoded(shape: BoundaryShape, encoded: Encoded): Uint8Array<ArrayBuffer> {
  const { codec, rows, cols, payload } = encoded;
  if (codec !== shape.codec || rows !== shape.rows || cols !== shape.cols) {
    const wanted = `${shape.rows} x ${shape.cols} in ${shape.codec}`;
    throw new ShoalError(
      "bad-frame",
      `a boundary of ${rows} x ${cols} in ${codec} came, the plan wants ${wanted}`,
    );
  }
  const checked = checkEncoded(encoded);
  if (!checked.ok) throw new ShoalError(checked.code, checked.reason);
  if (codec === "raw32") return Uint8Array.from(payload);
  const bytes = new Uint8Array(WORD_BYTES + payload.byteLength);
  new DataView(bytes.buffer).setInt32(0, encoded.exponent, true);
  bytes.set(payload, WORD_BYTES);
  return bytes;
}
