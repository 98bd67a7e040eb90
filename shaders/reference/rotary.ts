// Double-precision twin of rotary position embedding (Su et al. 2021, arXiv:2104.09864) in the Llama layout of Hugging
// Face: a head of width D pairs element i with i + D/2 (rotate_half), angle = position * theta^(-2i/D), and
// position = row mod T, so each sequence of T rows starts at 0. Values of a packed qkv row are left untouched.

export interface RotaryShape {
  /** Rows per sequence. */
  T: number;
  /** Query heads, key/value heads, and width of a head (even). */
  H: number;
  Hk: number;
  D: number;
  theta: number;
}

/** Rotates the H query and Hk key heads of qkv [R, (H + 2 Hk) D] by their positions; returns a new array. */
export function rotaryForward(qkv: Float64Array, shape: RotaryShape): Float64Array {
  return rotate(qkv, shape, 1);
}

/** The gradient of rotaryForward, which is also its inverse: the same rotation the other way. */
export function rotaryBackward(dQkv: Float64Array, shape: RotaryShape): Float64Array {
  return rotate(dQkv, shape, -1);
}

/** cos and sin of every angle, each [T, D/2]. */
export function rotaryTable(
  { T, D, theta }: { T: number; D: number; theta: number },
): { cos: Float64Array; sin: Float64Array } {
  const half = D / 2;
  const cos = new Float64Array(T * half), sin = new Float64Array(T * half);
  for (let i = 0; i < half; i++) {
    const frequency = Math.pow(theta, -2 * i / D);
    for (let t = 0; t < T; t++) {
      cos[t * half + i] = Math.cos(t * frequency);
      sin[t * half + i] = Math.sin(t * frequency);
    }
  }
  return { cos, sin };
}

function rotate(qkv: Float64Array, shape: RotaryShape, direction: 1 | -1): Float64Array {
  const { T, H, Hk, D } = shape;
  const width = (H + 2 * Hk) * D, half = D / 2, R = qkv.length / width;
  const { cos, sin } = rotaryTable(shape);
  const out = qkv.slice();
  for (let r = 0; r < R; r++) {
    const angles = (r % T) * half;
    for (let head = 0; head < H + Hk; head++) {
      const at = r * width + head * D;
      for (let i = 0; i < half; i++) {
        const c = cos[angles + i]!, s = direction * sin[angles + i]!;
        const low = qkv[at + i]!, high = qkv[at + half + i]!;
        out[at + i] = low * c - high * s;
        out[at + half + i] = high * c + low * s;
      }
    }
  }
  return out;
}
