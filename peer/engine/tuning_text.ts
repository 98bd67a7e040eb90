// The result of an autotune in words, for the doctor and for a peer's record at the coordinator. Pure.
import { apartFusions, type TuneResult } from "../gpu/tune.ts";

/**
 * Winners by layout, such as "nn quads 16x16, nt quads 16x16, tn registers 8x16 in 4 slices"; the fastest of each layout. Then
 * what does not run in the kernel of the product before it.
 */
export function tuningText({ choices, fusions }: Pick<TuneResult, "choices" | "fusions">): string {
  const best = new Map<string, TuneResult["choices"][number]>();
  for (const choice of choices) {
    const layout = choice.class.slice(0, 2);
    if (choice.gflops > (best.get(layout)?.gflops ?? 0)) best.set(layout, choice);
  }
  const winners = [...best].sort(([a], [b]) => a < b ? -1 : 1).map(([layout, { member, slices, gflops }]) => {
    const cut = slices > 1 ? ` in ${slices} slices` : "";
    return `${layout} ${member}${cut} ${gflops.toFixed(gflops < 10 ? 1 : 0)} GFLOP/s`;
  });
  const apart = apartFusions(fusions);
  return [...winners, ...(apart.length > 0 ? [`apart: ${apart.join(" and ")}`] : [])].join(", ");
}
