// What the GPU's optimizer keeps beside the parameters: names and sizes of its tensors, and the tables that tell its kernels
// where blocks, chunks and matrices lie in the stage's flat array. Not an allocation and not arithmetic. Everything follows
// from the layout alone, never from how an adapter's limits cut the array, so that memory is known in advance.
import { blocksOf, stageBlockCount } from "../exact/state.ts";
import { GROUP_ALIGNMENT, type StageLayout } from "./layout.ts";
import { request, TENSOR_ALIGN_BYTES, type TensorSize } from "./stage_tensors.ts";

/** Invocations that share one block of values (shaders/lib/optimizer.wgsl); neighbours read 128 bytes together. */
export const STATS_LANES = 8;
/** Most blocks whose squares are added up in f32; what is longer is added in doubles on the CPU. */
const CHUNK_BLOCKS = 32;
/** Values in the order of shaders/lib/optimizer.wgsl. */
export const FACTOR_COUNT = 12;
/** Values cut to the limit, and values that were not finite. */
export const COUNTER_COUNT = 2;
/** Where the norms begin in `facts`, whose first words are the counters: one tensor, so that one readback brings both. */
export const NORMS_AT = TENSOR_ALIGN_BYTES / 4;
const BITS = 32;

/** Arrays like the parameters: the sum of the step's gradients and AdamW's two moments. */
export const OPTIMIZER_SIDES = ["sum", "m", "v"] as const;

/** A run of blocks of one tensor. */
export interface NormChunk {
  tensor: string;
  firstBlock: number;
}

/** At most CHUNK_BLOCKS blocks of one tensor each, in layout order. */
export function normChunks(layout: StageLayout): NormChunk[] {
  const chunks: NormChunk[] = [];
  let firstBlock = 0;
  for (const { name, size } of layout.tensors) {
    const end = firstBlock + stageBlockCount({ tensors: [{ name, size, shape: [size], offset: 0 }], size });
    for (; firstBlock < end; firstBlock += CHUNK_BLOCKS) chunks.push({ tensor: name, firstBlock });
    firstBlock = end;
  }
  return chunks;
}

/** What the kernels read besides values: uploaded once. */
export interface OptimizerTables {
  /** [begin, end) of each block in the flat array. */
  blocks: Uint32Array<ArrayBuffer>;
  /** First block of each chunk, and one past the last block. */
  chunks: Uint32Array<ArrayBuffer>;
  /** One bit per granule of GROUP_ALIGNMENT values: whether it belongs to a matrix, whose values decay. */
  decays: Uint32Array<ArrayBuffer>;
}

export function optimizerTables(layout: StageLayout): OptimizerTables {
  const blocks = [...blocksOf(layout)].flatMap(({ start, end }) => [start, end]);
  const firsts = normChunks(layout).map(({ firstBlock }) => firstBlock);
  const decays = new Uint32Array(decayWords(layout));
  for (const { shape, offset, size } of layout.tensors) {
    if (shape.length !== 2) continue;
    for (let g = granuleOf(offset); g <= granuleOf(offset + size - 1); g++) {
      decays[g >>> 5]! |= 1 << (g % BITS);
    }
  }
  return {
    blocks: Uint32Array.from(blocks),
    chunks: Uint32Array.from([...firsts, stageBlockCount(layout)]),
    decays,
  };
}

/** Groups begin at granules and are matrices or gains throughout, so a granule is never both. */
function granuleOf(offset: number): number {
  return Math.floor(offset / GROUP_ALIGNMENT);
}

function decayWords({ size }: StageLayout): number {
  return Math.ceil(size / GROUP_ALIGNMENT / BITS);
}

/** All tensors of the GPU's optimizer but those like the parameters (OPTIMIZER_SIDES), which are cut as they are. */
export function optimizerTensors(layout: StageLayout): TensorSize[] {
  const blocks = stageBlockCount(layout);
  const chunks = normChunks(layout).length;
  return [
    request("blocks", 2 * blocks),
    request("chunks", chunks + 1),
    request("decays", decayWords(layout)),
    request("factors", FACTOR_COUNT),
    request("squares", blocks * STATS_LANES),
    request("peaks", blocks * STATS_LANES),
    request("facts", NORMS_AT + chunks),
    request("exponents", blocks),
  ];
}
