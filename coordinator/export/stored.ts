// A model's weights as Hugging Face stores them: Llama's as they are, GPT-2's under its own names, with q, k and v joined and
// matrices turned. Pure; values are read when their turn comes, one tensor of the file at a time.
import { hfGpt2Tensors, type HfTensor, turn } from "../../peer/model/hf_gpt2.ts";
import { isGpt2, stageLayout, wholeModel } from "../../peer/model/layout.ts";
import type { WeightSource } from "./source.ts";

export interface StoredTensor {
  name: string;
  shape: readonly number[];
  /** Number of values. */
  size: number;
  read(): Promise<Float32Array>;
}

/** All tensors in the file's order. */
export function storedTensors(source: WeightSource): StoredTensor[] {
  const { spec } = source;
  if (isGpt2(spec)) return hfGpt2Tensors(spec).map((tensor) => storedGpt2(source, tensor));
  return stageLayout(spec, wholeModel(spec)).tensors.map(({ name, shape, size }) => {
    return { name, shape, size, read: () => source.read(name) };
  });
}

/** One tensor of a GPT-2's file; `turned` false leaves our rows as they are, for formats that have them so. */
export function storedGpt2(
  source: WeightSource,
  { name, shape, ours, turned }: HfTensor,
): StoredTensor {
  const size = shape.reduce((product, length) => product * length, 1);
  const read = async () => {
    const rows = await readRows(source, ours, size);
    return turned ? turn(rows, shape[1]!, shape[0]!) : rows;
  };
  return { name, shape, size, read };
}

/** Several tensors of ours, one below the other. */
async function readRows(
  source: WeightSource,
  names: readonly string[],
  size: number,
): Promise<Float32Array> {
  if (names.length === 1) return await source.read(names[0]!);
  const out = new Float32Array(size);
  let at = 0;
  for (const name of names) {
    const values = await source.read(name);
    out.set(values, at);
    at += values.length;
  }
  return out;
}
