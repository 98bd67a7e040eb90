// Bit comparison of what a holder has with the one-process run's whole model, tensor by tensor.
import { Buffer } from "node:buffer";
import assert from "node:assert/strict";
import { tensorSlice } from "../../peer/exact/state.ts";
import type { Holder } from "../../peer/holder.ts";
import { stageLayout, wholeModel } from "../../peer/model/layout.ts";
import type { ModelSpec } from "../../peer/wire/run.ts";

/** Number of tensors compared. */
export function compareWithWhole(
  spec: ModelSpec,
  holder: Holder,
  whole: Float32Array,
  label: string,
): number {
  const layout = stageLayout(spec, wholeModel(spec));
  let compared = 0;
  for (const state of holder.states()) {
    for (const tensor of state.layout.tensors) {
      const own = state.params.subarray(tensor.offset, tensor.offset + tensor.size);
      const { start, end } = tensorSlice(layout, tensor.name);
      const same = Buffer.from(own.slice().buffer).equals(Buffer.from(whole.slice(start, end).buffer));
      assert.ok(same, `${label}: ${tensor.name} differs from the one-process run`);
      compared++;
    }
  }
  return compared;
}
