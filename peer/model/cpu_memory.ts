// What the double-precision engine (peer/engine/cpu.ts) allocates, predicted from the shapes. Not a measurement: the test
// beside that engine adds up the arrays that a filled slot really holds and demands the same number.
import type { StageMemory } from "../engine/engine.ts";
import type { AdapterStack } from "./lora_groups.ts";

const F64_BYTES = 8;
const F32_BYTES = 4;
const TOKEN_BYTES = 4;

/** B sequences of T tokens; C = n_embd, H / Hk heads of width D, I = n_inner, V = vocab_size. */
export interface CpuShape {
  /** Absent: Llama, whose inner layer is two matrices wide and whose norms keep no means. */
  gpt2?: boolean;
  B: number;
  T: number;
  C: number;
  H: number;
  Hk: number;
  D: number;
  I: number;
  V: number;
  embed: boolean;
  head: boolean;
}

/** Bytes of one slot between B and W, when it is fullest. Tensors that two layers share are counted once. */
export function cpuSlotBytes(shape: CpuShape, layers: number): number {
  const { B, T, C, H, Hk, D, I, V, gpt2 = false } = shape;
  const qkv = (H + 2 * Hk) * D, inner = gpt2 ? I : 2 * I, stats = gpt2 ? 2 : 1;
  const forward = C + C + 2 * stats + C + C + qkv + H * D + H + inner + I;
  const backward = C + inner + C + C + qkv + C;
  // Without the head, the gradient of the output is a tensor of its own, already counted as the last layer's; with an
  // embedding, the gradient of the first layer's input stays for W.
  const ends = (shape.embed ? C : 0) + (shape.head ? C + stats + C + V + 1 + V + C : 0);
  const tokens = (shape.embed ? 1 : 0) + (shape.head ? 1 : 0);
  return B * T * ((layers * (forward + backward) + ends) * F64_BYTES + tokens * TOKEN_BYTES);
}

/**
 * Parameters are doubles; scratch is the double-precision gradient and the f32 copy that W hands out. With adapters their stacked
 * values stand beside the parameters, and of gradients there is theirs alone, with the four products of the widest group.
 */
export function cpuMemory(
  shape: CpuShape,
  { layers, slots, floats, adapters }: {
    layers: number;
    slots: number;
    floats: number;
    adapters?: AdapterStack | undefined;
  },
): StageMemory {
  const activations = slots * cpuSlotBytes(shape, layers), params = floats * F64_BYTES;
  if (adapters === undefined) return { params, activations, scratch: floats * (F64_BYTES + F32_BYTES) };
  const R = shape.B * shape.T;
  const products = adapters.groups.map(({ ranks, rows, cols }) => ranks * (2 * R + rows + cols));
  return {
    params: params + adapters.floats * F64_BYTES,
    activations,
    scratch: (adapters.floats + Math.max(...products)) * F64_BYTES + adapters.adapterFloats * F32_BYTES,
  };
}
