// The matrix products of a stage, as its plan computes them: what the autotune measures. Read off the plan, so that it
// never differs from what runs.
import { layoutOf } from "../gpu/kernels/matmul_family.ts";
import { fusionOf } from "../gpu/kernels/matmul_fused.ts";
import type { Product } from "../gpu/tune.ts";
import type { StageBuild } from "./engine.ts";
import type { AdapterTraits } from "./wgsl_names.ts";
import { backwardName, forwardName, planStage, weightGradName } from "./wgsl_plan.ts";

/** Products of one micro-batch (F, B and W) by layout and shape, with how often each is computed. */
export function productsOf(build: StageBuild, adapter: AdapterTraits): Product[] {
  const { matmul: _, ...plain } = adapter;
  const { plan } = planStage(build, plain);
  const found = new Map<string, Product>();
  for (const operation of [forwardName(0), backwardName(0), weightGradName(0)]) {
    for (const { spec, params } of plan.operations.get(operation)?.dispatches ?? []) {
      const layout = layoutOf(spec);
      if (layout === undefined) continue;
      const { M = 0, N = 0, K = 0 } = params;
      const fusion = fusionOf(spec);
      const key = `${layout} ${fusion} ${M} ${N} ${K}`;
      const fused = fusion === undefined ? {} : { fused: { fusion, params } };
      const product = found.get(key) ?? { layout, M, N, K, count: 0, ...fused };
      product.count++;
      found.set(key, product);
    }
  }
  return [...found.values()];
}
