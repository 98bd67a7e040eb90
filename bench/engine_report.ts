// Tables and the summary of bench/engine.ts: pure functions of what was measured. Ratios are taken round by round, between
// sides that took their turn in the same round, and are how many times quicker the first side is.
import type { Ceiling } from "./engine_ceiling.ts";
import { BEST_SIDE, gflopPerS, type ProductTimes } from "./engine_matmul.ts";
import type { PlaceResult } from "./engine_place.ts";
import { LOSS_TOLERANCE, type LossCheck, type SideResult, type StepResult } from "./engine_step.ts";
import type { KernelTime } from "./kernels_measure.ts";
import { aligned, geometricMean, median, spread, sum } from "./support.ts";

const MB = 1e6;
/** The model whose step the summary gives; another one only where this was not measured. */
const SUMMARY_MODEL = "base";

export interface Summary {
  /** Geometric mean over shapes and layouts. */
  matmul_vs_tfjs_webgpu: number | null;
  /** The same against the best of an exhaustive search of the family, which is made in Deno alone; at most about 1. */
  matmul_vs_best_of_family: number | null;
  step_vs_tfjs_webgpu: number | null;
  fallback_step_vs_tfjs_wasm: number | null;
  /** F, B and W of one micro-batch, with what the adapter's autotune keeps in one kernel. */
  dispatches_per_layer: number;
  adapter: string;
}

/** A tab comes first, since tfjs has a WebGPU backend only there. */
export function summarise(places: readonly PlaceResult[]): Summary {
  const [first] = places;
  if (first === undefined) throw new Error("nothing was measured");
  const found = (ratio: (place: PlaceResult) => number | null) =>
    places.map(ratio).find((value) => value !== null) ?? null;
  return {
    matmul_vs_tfjs_webgpu: found(({ products }) => productsRatio(products, "wgsl", "tfjs-webgpu")),
    matmul_vs_best_of_family: found(({ products }) => productsRatio(products, "wgsl", BEST_SIDE)),
    step_vs_tfjs_webgpu: found(({ steps }) => stepsRatio(steps, "wgsl", "tfjs-webgpu")),
    fallback_step_vs_tfjs_wasm: found(({ steps }) => stepsRatio(steps, "fallback", "tfjs-wasm")),
    dispatches_per_layer: first.dispatchesPerLayer,
    adapter: first.adapter,
  };
}

/** How many times quicker `a` is than `b`: the median over the rounds that both did; null without any. */
export function ratio(a: readonly number[] = [], b: readonly number[] = []): number | null {
  const rounds = Math.min(a.length, b.length);
  if (rounds === 0) return null;
  return median(Array.from({ length: rounds }, (_, round) => b[round]! / a[round]!));
}

/** Geometric mean over the products that both sides did. */
export function productsRatio(products: readonly ProductTimes[], a: string, b: string): number | null {
  const ratios = products.map(({ ms }) => ratio(ms[a], ms[b])).filter((value) => value !== null);
  return ratios.length === 0 ? null : geometricMean(ratios);
}

function stepsRatio(steps: readonly StepResult[], a: string, b: string): number | null {
  const ratios = steps.map(({ model, sides }) => ({ model, value: sidesRatio(sides, a, b) }))
    .filter(({ value }) => value !== null);
  const chosen = ratios.find(({ model }) => model === SUMMARY_MODEL) ?? ratios[0];
  return chosen?.value ?? null;
}

function sidesRatio(sides: readonly SideResult[], a: string, b: string): number | null {
  const ms = (name: string) => sides.find(({ side }) => side === name)?.ms;
  return ratio(ms(a), ms(b));
}

/** Everything of one place, as text. */
export function report(place: PlaceResult): string {
  const { adapter, ceiling, products, steps, checks, kernels, dispatchesPerLayer } = place;
  const ceilings = `at most ${ceiling.gflopPerS.toFixed(1)} GFLOP/s and ${ceiling.gbytePerS.toFixed(1)} GB/s`;
  const parts = [
    `${place.place}, ${adapter}: ${ceilings} (measured), ${dispatchesPerLayer} dispatches a layer`,
  ];
  if (products.length > 0) parts.push(productTable(products, ceiling), productLines(products));
  if (checks.length > 0) parts.push(checkTable(checks));
  if (steps.length > 0) parts.push(steps.map(stepTable).join("\n\n"));
  if (kernels !== null) {
    const title = `kernels of one micro-batch of ${kernels.model}, by ${kernels.timedBy}`;
    parts.push(`${title}\n${kernelTable(kernels.times, ceiling)}`);
  }
  return parts.join("\n\n");
}

/** Median and half the range, such as "2.31 ±4%". */
function withSpread(values: readonly number[], digits = 2): string {
  return `${median(values).toFixed(digits)} ±${(50 * spread(values)).toFixed(0)}%`;
}

function times(value: number | null): string {
  return value === null ? "" : `${value.toFixed(2)}x`;
}

export function productTable(products: readonly ProductTimes[], ceiling: Ceiling): string {
  const sides = sidesOf(products);
  const header = ["product", "layout", "M x N x K", ...sides.map((side) => `${side} GFLOP/s`), "of ceiling"];
  const others = sides.slice(1).map((side) => `vs ${side}`);
  const named = sides.filter((side) => products.some(({ kernels }) => kernels[side] !== undefined));
  const rows = products.map((product) => {
    const rates = (side: string) => (product.ms[side] ?? []).map((ms) => gflopPerS(product, ms));
    const cell = (side: string) => rates(side).length === 0 ? "failed" : withSpread(rates(side));
    const share = 100 * median(rates(sides[0]!)) / ceiling.gflopPerS;
    return [
      ...[product.name, product.layout, `${product.M}x${product.N}x${product.K}`, ...sides.map(cell)],
      `${share.toFixed(0)} %`,
      ...sides.slice(1).map((side) => times(ratio(product.ms[sides[0]!], product.ms[side]))),
      ...named.map((side) => product.kernels[side] ?? ""),
    ];
  });
  return aligned([[...header, ...others, ...named.map((side) => `${side} is`)], ...rows]).join("\n");
}

/** In the order in which they took turns. */
function sidesOf(products: readonly ProductTimes[]): string[] {
  return [...new Set(products.flatMap(({ ms, failures }) => [...Object.keys(ms), ...Object.keys(failures)]))];
}

function productLines(products: readonly ProductTimes[]): string {
  const [ours, ...others] = sidesOf(products);
  const lines = others.map((side) => {
    const mean = (some: readonly ProductTimes[]) => times(productsRatio(some, ours!, side)) || "not measured";
    const layouts = (["nt", "nn", "tn"] as const).map((layout) =>
      `${layout} ${mean(products.filter((product) => product.layout === layout))}`
    );
    return `${ours} against ${side}: ${mean(products)} (${layouts.join(", ")}), geometric means`;
  });
  const failures = products.flatMap(({ name, layout, failures }) =>
    Object.entries(failures).map(([side, text]) => `${side} failed at ${name} ${layout}: ${text}`)
  );
  return [...lines, ...failures].join("\n");
}

export function checkTable(checks: readonly LossCheck[]): string {
  const rows = checks.slice(1).map(({ side, difference, failure }) => [
    side,
    failure ?? difference.toExponential(1),
    difference <= LOSS_TOLERANCE ? "agrees" : "DIFFERS",
  ]);
  const title = `${
    checks[0]!.steps
  } losses against the same steps in double precision (${LOSS_TOLERANCE} allowed)`;
  return [title, ...aligned([["side", "largest difference", ""], ...rows])].join("\n");
}

export function stepTable({ model, note, layers, parameters, rows, sides }: StepResult): string {
  const title = `step of ${model}: ${layers} layers, ${parameters} parameters, ${rows} tokens` +
    (note === "" ? "" : ` (${note})`);
  const ours = sides.filter(({ side }) => !side.startsWith("tfjs"));
  const header = ["side", "ms", "tokens/s", "peak MB", "dispatches", "submits", "loss"];
  const lines = sides.map(({ side, ms, losses, parts, peak, dispatches, submits }) => [
    side,
    ms.length === 0 ? "failed" : withSpread(ms, 1),
    ms.length === 0 ? "" : (1000 * rows / median(ms)).toFixed(0),
    peak === null ? "" : ((peak.engine + peak.optimizer) / MB).toFixed(1),
    String(dispatches ?? ""),
    String(submits ?? ""),
    losses.length === 0 ? "" : losses.at(-1)!.toFixed(4),
    ...ours.map((mine) => times(ratio(mine.ms, ms))),
    share(parts.optimizer, ms),
  ]);
  header.push(...ours.map(({ side }) => `vs ${side}`), "optimizer");
  const failures = sides.filter(({ failure }) => failure !== null)
    .map(({ side, failure }) => `${side} failed: ${failure}`);
  return [title, ...aligned([header, ...lines]), ...partLines(sides), ...failures].join("\n");
}

function share(part: readonly number[] = [], whole: readonly number[]): string {
  return part.length === 0 ? "" : `${(100 * median(part) / median(whole)).toFixed(0)} %`;
}

/** Where the milliseconds of a step go, for the sides that tell. */
function partLines(sides: readonly SideResult[]): string[] {
  return sides.filter(({ parts }) => Object.keys(parts).length > 0).map(({ side, parts }) =>
    `${side}, ms: ` +
    Object.entries(parts).map(([name, ms]) => `${name} ${median(ms).toFixed(1)}`).join(", ")
  );
}

/** Slowest first. The ceiling of a kernel is that of its work or of its bytes, whichever takes longer. */
export function kernelTable(kernels: readonly KernelTime[], ceiling: Ceiling): string {
  const weight = ({ count, ms }: KernelTime) => count * ms;
  const total = sum(kernels.map(weight));
  const rows = [...kernels].sort((a, b) => weight(b) - weight(a)).map((kernel) => {
    const { name, count, ms, flops, bytes } = kernel;
    const leastMs = Math.max(flops / ceiling.gflopPerS, bytes / ceiling.gbytePerS) / 1e6;
    return [
      ...[name, String(count), ms.toFixed(3), `${(100 * weight(kernel) / total).toFixed(1)} %`],
      ...[(bytes / MB).toFixed(2), flops > 0 ? (flops / 1e6).toFixed(1) : ""],
      ...[flops > 0 ? (flops / ms / 1e6).toFixed(2) : "", (bytes / ms / 1e6).toFixed(2)],
      `${(100 * leastMs / ms).toFixed(0)} %`,
    ];
  });
  const header = ["kernel", "runs", "ms", "share", "MB", "MFLOP", "GFLOP/s", "GB/s", "of ceiling"];
  return [...aligned([header, ...rows]), `all together ${total.toFixed(1)} ms`].join("\n");
}
