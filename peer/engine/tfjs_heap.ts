// Matrices on the heap of tfjs' WASM backend, and the few kernels of it that are quick. Calls kernels directly, without
// the engine around them: an operation costs 3 instead of 20 microseconds, and every byte is counted here.
// tfjs-wasm multiplies at 25 to 35 GFLOP/s per core only in the plain layout (XNNPACK); transposed operands take another,
// ten times slower path, so callers transpose first.
import { getKernel, type KernelFunc, type TensorInfo } from "@tensorflow/tfjs-core";
import type { BackendWasm } from "@tensorflow/tfjs-backend-wasm";
import { assert, ShoalError } from "../wire/errors.ts";

/**
 * A row-major f32 matrix. XNNPACK packs a right-hand operand once and keeps the packed copy until `free`: what was a
 * right-hand operand must never be written again.
 */
export interface HeapMatrix {
  rows: number;
  cols: number;
  info: TensorInfo;
}

/** What the backend can address; one page of it is left to the backend itself. */
const HEAP_BYTES_MAX = 2 ** 32 - 2 ** 26;
const F32_BYTES = 4;
/** Bytes that the live stages of this process were promised; they share one heap, which never shrinks. */
let promised = 0;

export class WasmHeap {
  readonly #backend: BackendWasm;
  readonly #matmul = kernel("BatchMatMul");
  readonly #softmax = kernel("Softmax");
  readonly #sigmoid = kernel("Sigmoid");
  #promise: number;
  #bytes = 0;
  #bytesMost = 0;

  /** @throws {ShoalError} out-of-memory if `bytes` beside the other stages exceed what WASM can address. */
  constructor(backend: BackendWasm, bytes: number) {
    if (promised + bytes > HEAP_BYTES_MAX) throw outOfMemory(bytes);
    promised += bytes;
    this.#promise = bytes;
    this.#backend = backend;
  }

  /** Bytes of all matrices now, and the most there ever were. */
  get bytes(): number {
    return this.#bytes;
  }

  get bytesMost(): number {
    return this.#bytesMost;
  }

  /** Its values are whatever was there before. */
  empty(rows: number, cols: number): HeapMatrix {
    return this.#adopt(this.#backend.makeOutput([1, rows, cols], "float32"), rows, cols);
  }

  from(values: Float32Array, rows: number, cols: number): HeapMatrix {
    assert(values.length === rows * cols, `${values.length} values are no ${rows} x ${cols} matrix`);
    const matrix = this.empty(rows, cols);
    this.view(matrix).set(values);
    return matrix;
  }

  /** Valid until the next matrix is made: the heap may then move. */
  view({ info }: HeapMatrix): Float32Array {
    return this.#backend.typedArrayFromHeap(info) as Float32Array;
  }

  free(...matrices: readonly HeapMatrix[]): void {
    for (const { info, rows, cols } of matrices) {
      this.#backend.disposeData(info.dataId);
      this.#bytes -= rows * cols * F32_BYTES;
    }
  }

  /** a [M, K] b [K, N]. */
  matmul(a: HeapMatrix, b: HeapMatrix): HeapMatrix {
    assert(a.cols === b.rows, `${a.rows} x ${a.cols} times ${b.rows} x ${b.cols}`);
    const attrs = { transposeA: false, transposeB: false };
    const inputs = { a: a.info, b: b.info };
    return this.#adopt(this.#run(this.#matmul, inputs, attrs), a.rows, b.cols);
  }

  /** Of every row. */
  softmax({ info, rows, cols }: HeapMatrix): HeapMatrix {
    return this.#adopt(this.#run(this.#softmax, { logits: info }, { dim: 2 }), rows, cols);
  }

  sigmoid({ info, rows, cols }: HeapMatrix): HeapMatrix {
    return this.#adopt(this.#run(this.#sigmoid, { x: info }, {}), rows, cols);
  }

  transpose(a: HeapMatrix): HeapMatrix {
    const { rows, cols } = a;
    const out = this.empty(cols, rows);
    transposeInto(this.view(out), this.view(a), { rows, cols });
    return out;
  }

  /** Gives the promised bytes back; the matrices must have been freed. */
  destroy(): void {
    promised -= this.#promise;
    this.#promise = 0;
  }

  #run(func: KernelFunc, inputs: Record<string, TensorInfo>, attrs: Record<string, unknown>): TensorInfo {
    return func({ inputs, attrs: attrs as never, backend: this.#backend }) as TensorInfo;
  }

  /** The backend goes on with address 0 when the heap is full, over its own data: nothing may be computed after that. */
  #adopt(info: TensorInfo, rows: number, cols: number): HeapMatrix {
    const bytes = rows * cols * F32_BYTES;
    if (this.#backend.getMemoryOffset(info.dataId) === 0 && bytes > 0) throw outOfMemory(bytes);
    this.#bytes += bytes;
    this.#bytesMost = Math.max(this.#bytesMost, this.#bytes);
    return { rows, cols, info };
  }
}

function outOfMemory(bytes: number): ShoalError {
  const text = `${bytes} bytes more do not fit the WASM heap beside ${promised} promised ones`;
  return new ShoalError("out-of-memory", `${text}; use a smaller micro-batch, more stages or WebGPU`);
}

function kernel(name: string): KernelFunc {
  const config = getKernel(name, "wasm");
  assert(config, `the wasm backend of tfjs has no kernel ${name}`);
  return config.kernelFunc;
}

export function addTo(target: Float32Array, x: Float32Array): void {
  for (let i = 0; i < target.length; i++) target[i]! += x[i]!;
}

/** Small enough that a block of both matrices stays in the first cache, whatever the strides. */
const BLOCK = 16;

/** out [cols, rows] = in [rows, cols] transposed. */
function transposeInto(
  out: Float32Array,
  values: Float32Array,
  { rows, cols }: { rows: number; cols: number },
): void {
  for (let r0 = 0; r0 < rows; r0 += BLOCK) {
    const r1 = Math.min(r0 + BLOCK, rows);
    for (let c0 = 0; c0 < cols; c0 += BLOCK) {
      const c1 = Math.min(c0 + BLOCK, cols);
      for (let c = c0; c < c1; c++) {
        for (let r = r0; r < r1; r++) out[c * rows + r] = values[r * cols + c]!;
      }
    }
  }
}
