// Matrix products as the engine plans them: which kernel, which tensors; as every member of the family would do them; and
// the choice that the autotune makes. The only bench file that knows the family. It measures nothing itself.
import type { StageBuild } from "../peer/engine/engine.ts";
import { planningOf } from "../peer/engine/wgsl_names.ts";
import { matmul, weightMatmul } from "../peer/engine/wgsl_ops.ts";
import type { GpuDevice } from "../peer/gpu/device.ts";
import { type MatmulChoice, matmulTraits, productClass } from "../peer/gpu/kernels/matmul.ts";
import { MATMUL_FAMILY, memberSpec } from "../peer/gpu/kernels/matmul_family.ts";
import type { DispatchPlan } from "../peer/gpu/program.ts";
import { mayBeSliced, PRODUCT_SLICES, slicedElements } from "../peer/model/product_slices.ts";
import { type Product as TunedProduct, Tuning } from "../peer/gpu/tune.ts";
import { tuneTools } from "../peer/gpu/tune_device.ts";
import type { Product } from "./engine_models.ts";
import type { CasesPlan } from "./engine_program.ts";
import { traitsOf } from "./kernels_measure.ts";

const FLOAT_BYTES = 4;

/** The dispatches that the engine would make under a choice: two for a weight gradient in slices. */
function dispatchesOf(
  gpu: GpuDevice,
  { build, product, choice }: { build: StageBuild; product: Product; choice: MatmulChoice | undefined },
): DispatchPlan[] {
  const planning = planningOf(build, traitsOf(gpu, choice));
  const { layout, M, N, K } = product;
  const operands = { M, N, K, a: "a", b: "b", out: "out" };
  return layout === "tn" ? weightMatmul(planning, operands) : [matmul(planning, layout, operands)];
}

function casesPlan(product: Product, cases: ReadonlyMap<string, readonly DispatchPlan[]>): CasesPlan {
  const { M, N, K } = product;
  const sizes = [["a", M * K], ["b", N * K], ["out", M * N], ["slices", slicedElements([product])]] as const;
  return { tensors: sizes.map(([name, values]) => ({ name, bytes: values * FLOAT_BYTES })), cases };
}

/** The kernel that the engine would choose on this device, as the one case; `choice` default: without having measured. */
export function chosenCase(
  gpu: GpuDevice,
  { build, product, choice }: { build: StageBuild; product: Product; choice?: MatmulChoice | undefined },
): CasesPlan {
  const dispatches = dispatchesOf(gpu, { build, product, choice });
  return casesPlan(product, new Map([[nameOf(dispatches), dispatches]]));
}

/** The member as a person reads it, from the name of its kernel. */
function nameOf([first, second]: readonly DispatchPlan[]): string {
  const member = first!.spec.name.replace(/^matmul_(nn|nt|tn)_/, "").replaceAll("_", " ");
  return second === undefined ? member : `${member} in ${PRODUCT_SLICES} slices`;
}

/** Every member that takes the product and that the device can run, each by its name, weight gradients also in slices. */
export function familyCases(gpu: GpuDevice, build: StageBuild, product: Product): CasesPlan {
  const cases = new Map<string, DispatchPlan[]>();
  for (const member of MATMUL_FAMILY) {
    if (memberSpec(member, product.layout, product) === undefined) continue;
    if (member.feature !== undefined && !gpu.device.features.has(member.feature)) continue;
    const cut = product.layout === "tn" && mayBeSliced(product) ? [1, PRODUCT_SLICES] : [1];
    for (const slices of cut) {
      const measured = { [productClass(product.layout, product)]: { member: member.name, slices } };
      const dispatches = dispatchesOf(gpu, { build, product, choice: { preferred: [], measured } });
      cases.set(slices === 1 ? member.name : `${member.name} in ${slices} slices`, dispatches);
    }
  }
  return casesPlan(product, cases);
}

/** What a device measures before it trains such products, within the time that joining allows it. */
export async function tunedChoice(
  gpu: GpuDevice,
  products: readonly Omit<TunedProduct, "count">[],
): Promise<MatmulChoice> {
  const tuning = new Tuning(matmulTraits(gpu), tuneTools(gpu));
  await tuning.run(products.map((product) => ({ ...product, count: 1 })));
  return tuning.choice();
}
