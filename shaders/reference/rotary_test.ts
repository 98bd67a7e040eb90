// The rotation against Hugging Face's formula x cos + rotate_half(x) sin, its inverse, and its relative-position property.
import assert from "node:assert/strict";
import { checkGradient, inner, randomArray, relativeError } from "./check.ts";
import { rotaryBackward, rotaryForward } from "./rotary.ts";

/** One head vector by the formula of Hugging Face's apply_rotary_pos_emb. */
function formula(x: number[], position: number, theta: number): number[] {
  const D = x.length, half = D / 2;
  const rotated = [...x.slice(half).map((value) => -value), ...x.slice(0, half)];
  return x.map((value, i) => {
    const angle = position / theta ** (2 * (i % half) / D);
    return value * Math.cos(angle) + rotated[i]! * Math.sin(angle);
  });
}

const shape = { T: 3, H: 3, Hk: 1, D: 6, theta: 100 };
const width = (shape.H + 2 * shape.Hk) * shape.D;
const rows = 2 * shape.T;

Deno.test("rotary forward is x cos + rotate_half(x) sin on q and k, and leaves v alone", () => {
  const qkv = randomArray(1, rows * width);
  const out = rotaryForward(qkv, shape);
  const expected = [...Array(rows).keys()].flatMap((r) => {
    const row = [...qkv.subarray(r * width, (r + 1) * width)];
    return [0, 1, 2, 3, 4].flatMap((head) => {
      const x = row.slice(head * shape.D, (head + 1) * shape.D);
      return head < shape.H + shape.Hk ? formula(x, r % shape.T, shape.theta) : x;
    });
  });
  assert(relativeError(out, expected) < 1e-14);
});

Deno.test("rotary backward undoes forward and is its gradient", () => {
  const qkv = randomArray(2, rows * width), dOut = randomArray(3, rows * width);
  assert(relativeError(rotaryBackward(rotaryForward(qkv, shape), shape), qkv) < 1e-14);
  checkGradient(() => inner(rotaryForward(qkv, shape), dOut), qkv, rotaryBackward(dOut, shape));
});

Deno.test("scores after rotation depend only on the distance of two positions", () => {
  const T = 5, D = 4, wide = { T, H: 1, Hk: 1, D, theta: 10000 };
  const q = randomArray(4, D), k = randomArray(5, D);
  const qkv = new Float64Array(T * 3 * D);
  for (let t = 0; t < T; t++) {
    qkv.set(q, t * 3 * D);
    qkv.set(k, t * 3 * D + D);
  }
  const out = rotaryForward(qkv, wide);
  function score(at: number, other: number): number {
    return inner(
      out.subarray(at * 3 * D, at * 3 * D + D),
      out.subarray(other * 3 * D + D, other * 3 * D + 2 * D),
    );
  }
  assert(Math.abs(score(2, 0) - score(4, 2)) < 1e-14);
  assert(Math.abs(score(2, 0) - score(3, 0)) > 1e-6);
});
