// What readbacks pass through: a ring of mappable buffers of bounded size, so that a long readback needs no second copy of
// itself on the device. Made once; a readback makes no GPU object. One readback at a time.
import { messageOf, ShoalError } from "../wire/errors.ts";
import type { TensorRange } from "./arena.ts";
import { alignUp, BufferUsage, MAP_READ } from "./constants.ts";
import type { GpuDevice } from "./device.ts";
import { Patience } from "./patience.ts";

/** Part of a readback that fits one staging buffer. */
interface Piece {
  from: TensorRange;
  /** Where its bytes go in the result. */
  at: number;
}

export class Staging {
  readonly #gpu: GpuDevice;
  readonly #ring: GPUBuffer[];
  readonly #pieceBytes: number;
  /** Null where waiting costs nothing, as in browsers. */
  readonly #patience: Patience | null;

  /** So many buffers of so many bytes (stagingPieces). Allocation errors are for the caller's error scope. */
  constructor(gpu: GpuDevice, label: string, { count, bytes: size }: { count: number; bytes: number }) {
    this.#gpu = gpu;
    this.#pieceBytes = size;
    this.#patience = gpu.polls ? new Patience() : null;
    const usage = BufferUsage.mapRead | BufferUsage.copyDst;
    this.#ring = Array.from({ length: count }, (_, i) => {
      return gpu.device.createBuffer({ label: `${label} staging ${i}`, size, usage });
    });
  }

  /**
   * Submits the encoder's commands and brings `ranges` back, one after the other. What does not fit the ring at once is
   * copied in further submits as buffers become free. Errors: device-lost if the device goes while waiting; whatever it refused before.
   */
  async submitAndRead(
    encoder: GPUCommandEncoder,
    ranges: readonly TensorRange[],
    label: string,
  ): Promise<ArrayBuffer> {
    const pieces = piecesOf(ranges, this.#pieceBytes);
    const result = new Uint8Array(ranges.reduce((sum, { size }) => sum + size, 0));
    const first = pieces.slice(0, this.#ring.length);
    first.forEach((piece, i) => this.#copy(encoder, piece, i));
    this.#gpu.device.queue.submit([encoder.finish()]);
    const submittedAt = performance.now();
    const rest = this.#patience?.before(label) ?? 0;
    if (rest > 0) await new Promise((resolve) => setTimeout(resolve, rest));
    const restMs = rest > 0 ? performance.now() - submittedAt : 0;
    const mapped = first.map((piece, i) => this.#map(piece, i));
    for (const [i, piece] of pieces.entries()) {
      const slot = i % this.#ring.length;
      await this.#mapped(mapped[slot]!, label);
      this.#take(piece, slot, result);
      const next = pieces[i + this.#ring.length];
      if (next === undefined) continue;
      const more = this.#gpu.device.createCommandEncoder({ label: `${label} readback` });
      this.#copy(more, next, slot);
      this.#gpu.device.queue.submit([more.finish()]);
      mapped[slot] = this.#map(next, slot);
    }
    this.#patience?.took(label, { restMs, polledMs: performance.now() - submittedAt - restMs });
    const failure = this.#gpu.failure();
    if (failure) throw failure;
    return result.buffer;
  }

  #copy(encoder: GPUCommandEncoder, { from }: Piece, slot: number): void {
    encoder.copyBufferToBuffer(from.buffer, from.offset, this.#ring[slot]!, 0, alignUp(from.size, 4));
  }

  #map({ from }: Piece, slot: number): Promise<unknown> {
    // A failure is reported where the piece is waited for, not as an unhandled rejection while another one is.
    return this.#ring[slot]!.mapAsync(MAP_READ, 0, alignUp(from.size, 4)).then(() => null, (cause) => cause);
  }

  async #mapped(mapping: Promise<unknown>, label: string): Promise<void> {
    const cause = await mapping;
    if (cause === null) return;
    const earlier = this.#gpu.failure();
    if (earlier) throw earlier;
    const text = `${label}: the GPU went away (${
      messageOf(cause)
    }); join again, the run continues without you`;
    throw new ShoalError("device-lost", text, { cause });
  }

  #take({ from, at }: Piece, slot: number, result: Uint8Array): void {
    const buffer = this.#ring[slot]!;
    const bytes = new Uint8Array(buffer.getMappedRange(0, alignUp(from.size, 4)));
    result.set(bytes.subarray(0, from.size), at);
    buffer.unmap();
  }

  destroy(): void {
    for (const buffer of this.#ring) buffer.destroy();
  }
}

function piecesOf(ranges: readonly TensorRange[], bytesMax: number): Piece[] {
  const pieces: Piece[] = [];
  let at = 0;
  for (const { buffer, offset, size } of ranges) {
    for (let done = 0; done < size; done += bytesMax) {
      const bytes = Math.min(bytesMax, size - done);
      pieces.push({ from: { buffer, offset: offset + done, size: bytes }, at });
      at += bytes;
    }
  }
  return pieces;
}
