// The token embedding and the gradient of its table. Both work on rows [vocabOffset, vocabOffset + count) of the table, so
// that a table larger than a binding is read and written in parts. The gradient kernel only adds: whoever plans it clears
// the buffer first, or leaves in it what the head's gradient has put there (tied weights).
import forwardWgsl from "../../../shaders/embedding_forward.wgsl" with { type: "text" };
import weightGradWgsl from "../../../shaders/embedding_weight_grad.wgsl" with { type: "text" };
import { distinctTokensMax, lookupWords } from "../../model/stage_tensors.ts";
import type { KernelSpec } from "../kernel.ts";
import { bindings, cover, u32Params } from "./define.ts";

/** Columns of one invocation; fixed in the WGSL. */
const FORWARD_COLUMNS = 4;
const GRAD_COLUMNS = 16;

/** out [R,C] at the rows whose token is in the part: table [count,C] at tokens [R] - vocabOffset. Other rows are left alone. */
export const embeddingForwardSpec: KernelSpec = {
  name: "embedding_forward",
  wgsl: forwardWgsl,
  bindings: bindings(["tokens", "table"], ["out"]),
  params: u32Params("R", "C", "vocabOffset", "count"),
  overrides: { workgroupSize: 64 },
  workgroups: ({ R = 0, C = 0 }, overrides) => cover(R * Math.ceil(C / FORWARD_COLUMNS), overrides),
};

/** Adds to dtable [count,C] the rows of dout [R,C]; lookup (tokenLookup) says which rows a token has, E entries at most. */
export const embeddingWeightGradSpec: KernelSpec = {
  name: "embedding_weight_grad",
  wgsl: weightGradWgsl,
  bindings: bindings(["lookup", "dout"], ["dtable"]),
  params: u32Params("R", "C", "E", "vocabOffset", "count"),
  overrides: { workgroupSize: 32 },
  workgroups: ({ C = 0, E = 0 }, overrides) => cover(E * Math.ceil(C / GRAD_COLUMNS), overrides),
};

/**
 * The rows of each token, for a gradient that scans no row in vain: rows [R] by token and then by number, the distinct
 * tokens [E] ascending, and where each one's rows begin [E + 1]. Entries beyond the last distinct token have no rows.
 */
export function tokenLookup(tokens: Uint32Array, V: number): Uint32Array {
  const R = tokens.length;
  const E = distinctTokensMax({ R, V });
  const lookup = new Uint32Array(lookupWords({ R, V }));
  const rows = lookup.subarray(0, R), ids = lookup.subarray(R, R + E), starts = lookup.subarray(R + E);
  rows.set(rowsByToken(tokens));
  let entries = 0;
  rows.forEach((row, i) => {
    const token = tokens[row]!;
    if (entries > 0 && ids[entries - 1] === token) return;
    ids[entries] = token;
    starts[entries++] = i;
  });
  starts.fill(R, entries);
  return lookup;
}

/** Token and row in one exact number, so that a plain numeric sort keeps rows of one token in order. */
function rowsByToken(tokens: Uint32Array): Uint32Array {
  const keys = Float64Array.from(tokens, (token, row) => token * tokens.length + row).sort();
  return Uint32Array.from(keys, (key) => key % tokens.length);
}
