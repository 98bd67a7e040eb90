// Autotune: measures which member of the family of matrix products is quickest for a stage's products on one adapter.
// Decisions only: what measures is handed in (tune_device.ts), so that they are tested without a device. A kernel that
// does not give the reference's sums is left out before it is timed, however quick it is.
import type { KernelSpec } from "./kernel.ts";
import {
  candidateMembers,
  type MatmulChoice,
  type MatmulPick,
  type MatmulTraits,
  pickMatmul,
  presumedChoice,
  productClass,
} from "./kernels/matmul.ts";
import { fusedSpec, type MatmulFusion } from "./kernels/matmul_fused.ts";
import { MATMUL_FAMILY, type MatmulLayout, type MatmulShape, memberSpec } from "./kernels/matmul_family.ts";
import { mayBeSliced, PRODUCT_SLICES } from "../model/product_slices.ts";
import type { FusedCandidate, FusedTimes } from "./tune_fused.ts";

/** A product of a stage, and how often a micro-batch computes it. */
export interface Product extends MatmulShape {
  layout: MatmulLayout;
  count: number;
  /** What the stage does in the same kernel, with the dispatch's parameters. */
  fused?: { fusion: MatmulFusion; params: Readonly<Record<string, number>> };
}

/** The winner of one class of products, and the product that it was measured on. */
export interface TunedChoice extends MatmulPick {
  class: string;
  shape: MatmulShape;
  gflops: number;
}

/** Whether it pays to do in one kernel what follows a product. */
export interface TunedFusion {
  fusion: MatmulFusion;
  /** The time of both apart by that of one kernel; 0 for a kernel that is left out. */
  gain: number;
}

export interface Excluded {
  kernel: string;
  reason: string;
}

export interface TuneResult {
  adapter: string;
  provider: string;
  /** Hash of the family's WGSL: a result says nothing about other kernels. */
  kernelVersion: string;
  choices: TunedChoice[];
  fusions: TunedFusion[];
  /** Kernels that do not compile here, or whose sums are wrong. */
  excluded: Excluded[];
  spentMs: number;
}

/** What a candidate of one class is: a kernel, perhaps in slices, for one product. */
export interface Candidate extends MatmulPick {
  layout: MatmulLayout;
  shape: MatmulShape;
  spec: KernelSpec;
}

/** What tuning does to a device. */
export interface TuneTools {
  /** Null if the candidate compiles and gives the reference's sums on a small awkward shape, else why not. */
  check(candidate: Candidate): Promise<string | null>;
  /** Milliseconds of one product; asked for several times, the least counts. */
  time(candidate: Candidate): Promise<number>;
  /** The same of a product with what follows it, against the references of both. */
  checkFused(candidate: FusedCandidate): Promise<string | null>;
  timeFused(candidate: FusedCandidate): Promise<FusedTimes>;
  /** Gives back what measuring this class held. */
  release(): void;
  nowMs(): number;
}

/** On a GPU, where compiling is quick: nobody waits for a third of a second. */
export const BUDGET_MS = 300;
/** On software adapters, which compile for a second and more: still less than the patience of who joins. */
export const SOFTWARE_BUDGET_MS = 4_000;
/** A candidate that is not this much quicker than an earlier one is not worth a change: noise must not decide. */
const GAIN_MIN = 0.03;
/** Those that came this near the best in the first round are timed once more. */
const CONTENDER = 1.3;

interface Timed {
  candidate: Candidate;
  ms: number;
}

/** The quickest; an earlier one if the gain over it is small. Null if there is none. */
export function fastest(timed: readonly Timed[]): Timed | null {
  let best: Timed | null = null;
  for (const each of timed) {
    if (!Number.isFinite(each.ms)) continue;
    if (best === null || each.ms < best.ms * (1 - GAIN_MIN)) best = each;
  }
  return best;
}

/** The heaviest product of each class stands for it; the class with most work comes first. */
export function representatives(products: readonly Product[]): Product[] {
  const classes = new Map<string, { product: Product; work: number }>();
  for (const product of products) {
    const key = productClass(product.layout, product);
    const work = flopsOf(product) * product.count;
    const known = classes.get(key);
    if (!known) classes.set(key, { product, work });
    else {
      const heavier = flopsOf(product) > flopsOf(known.product) ? product : known.product;
      classes.set(key, { product: heavier, work: known.work + work });
    }
  }
  return [...classes.values()].sort((a, b) => b.work - a.work).map(({ product }) => product);
}

export function flopsOf({ M, N, K }: MatmulShape): number {
  return 2 * M * N * K;
}

/** Measures until every class has its winner or the budget is spent; what is then missing stays presumed. */
export class Tuning {
  readonly #traits: MatmulTraits;
  readonly #tools: TuneTools;
  readonly #budgetMs: number;
  /** Why not, by kernel; null for a sound one. */
  readonly #checked = new Map<string, string | null>();
  readonly choices: TunedChoice[] = [];
  readonly fusions: TunedFusion[] = [];
  readonly excluded: Excluded[] = [];
  spentMs = 0;

  constructor(traits: MatmulTraits, tools: TuneTools, budgetMs?: number) {
    this.#traits = traits;
    this.#tools = tools;
    this.#budgetMs = budgetMs ?? (traits.software ? SOFTWARE_BUDGET_MS : BUDGET_MS);
  }

  /** What is known already, for instance from the cache. */
  adopt({ choices = [], fusions = [], excluded = [] }: Partial<TuneResult>): void {
    const known = new Set(this.choices.map((choice) => choice.class));
    this.choices.push(...choices.filter((choice) => !known.has(choice.class)));
    this.fusions.push(...fusions.filter(({ fusion }) => !this.#judged(fusion)));
    this.excluded.push(...excluded);
  }

  #judged(fusion: MatmulFusion): boolean {
    return this.fusions.some((known) => known.fusion === fusion);
  }

  /**
   * Measures the classes of these products that have no winner yet, then whether what follows a product pays in its kernel; true
   * if anything was found.
   */
  async run(products: readonly Product[]): Promise<boolean> {
    const begun = this.#tools.nowMs();
    const spentBefore = this.spentMs;
    const before = this.choices.length + this.fusions.length;
    const spend = () => this.spentMs = spentBefore + this.#tools.nowMs() - begun;
    for (const product of representatives(products)) {
      const known = this.choices.some((choice) => choice.class === productClass(product.layout, product));
      if (known || this.#exhausted()) continue;
      const choice = await this.#measure(product, spend);
      if (choice) this.choices.push(choice);
      spend();
    }
    for (const product of [...products].sort((a, b) => flopsOf(b) - flopsOf(a))) {
      if (!product.fused || this.#judged(product.fused.fusion) || this.#exhausted()) continue;
      this.fusions.push(await this.#judge(product, product.fused));
      spend();
    }
    return this.choices.length + this.fusions.length > before;
  }

  /** With the tiles that the product has by now. */
  async #judge(
    product: Product,
    { fusion, params }: NonNullable<Product["fused"]>,
  ): Promise<TunedFusion> {
    const { layout, M, N, K } = product;
    const { member, spec: plain } = pickMatmul(layout, { M, N, K }, this.choice());
    const spec = fusedSpec(member, fusion, { M, N, K });
    if (spec === undefined) return { fusion, gain: 0 };
    const candidate = { fusion, member: member.name, spec, plain, params };
    const reason = await this.#tools.checkFused(candidate);
    if (reason !== null) {
      this.excluded.push({ kernel: spec.name, reason });
      return { fusion, gain: 0 };
    }
    const { fused, apart } = await this.#tools.timeFused(candidate);
    return { fusion, gain: apart / fused };
  }

  #exhausted(): boolean {
    return this.spentMs >= this.#budgetMs;
  }

  /** Two rounds over the members, then the winner once more in slices, if the product may be cut. */
  async #measure(product: Product, spend: () => void): Promise<TunedChoice | null> {
    const { layout, M, N, K } = product;
    const shape = { M, N, K };
    const timed: Timed[] = [];
    for (const candidate of this.#candidates(layout, shape)) {
      spend();
      if (timed.length > 0 && this.#exhausted()) break;
      if (await this.#sound(candidate)) timed.push(await this.#time(candidate));
    }
    spend();
    if (!this.#exhausted()) await this.#again(timed);
    spend();
    const member = fastest(timed);
    if (member && !this.#exhausted() && layout === "tn" && mayBeSliced(shape)) {
      const sliced = { ...member.candidate, slices: PRODUCT_SLICES };
      if (await this.#sound(sliced)) timed.push(await this.#time(sliced));
    }
    const best = fastest(timed);
    this.#tools.release();
    if (!best) return null;
    const { member: name, slices } = best.candidate;
    return {
      ...{ class: productClass(layout, shape), shape, member: name, slices },
      gflops: flopsOf(shape) / best.ms / 1e6,
    };
  }

  async #again(timed: Timed[]): Promise<void> {
    const least = Math.min(...timed.map(({ ms }) => ms));
    for (const each of timed) {
      if (each.ms > least * CONTENDER || timed.length === 1) continue;
      each.ms = Math.min(each.ms, (await this.#time(each.candidate)).ms);
    }
  }

  async #time(candidate: Candidate): Promise<Timed> {
    return { candidate, ms: await this.#tools.time(candidate) };
  }

  #candidates(layout: MatmulLayout, shape: MatmulShape): Candidate[] {
    return candidateMembers(this.#traits).flatMap((name) => {
      const member = MATMUL_FAMILY.find((known) => known.name === name);
      const spec = member && memberSpec(member, layout, shape);
      return spec ? [{ member: name, slices: 1, layout, shape, spec }] : [];
    });
  }

  async #sound(candidate: Candidate): Promise<boolean> {
    const { spec, slices } = candidate;
    const kernel = slices === 1 ? spec.name : `${spec.name} in ${slices} slices`;
    const known = this.#checked.get(kernel);
    const reason = known === undefined ? await this.#tools.check(candidate) : known;
    if (known === undefined && reason !== null) this.excluded.push({ kernel, reason });
    this.#checked.set(kernel, reason);
    return reason === null;
  }

  /** For planStage: what was measured, before what is presumed. An excluded member is not presumed either. */
  choice(): MatmulChoice {
    const wrong = new Set(this.excluded.map(({ kernel }) => kernel));
    const { preferred } = presumedChoice(this.#traits);
    return {
      preferred: preferred.filter((name) => !isWrong(name, wrong)),
      measured: Object.fromEntries(
        this.choices.map(({ class: key, member, slices }) => [key, { member, slices }]),
      ),
      apart: apartFusions(this.fusions),
    };
  }
}

/**
 * What was measured to be slower in one kernel, or is wrong there. Less is written and read in one, so noise does not decide
 * against it.
 */
export function apartFusions(fusions: readonly TunedFusion[]): MatmulFusion[] {
  return fusions.filter(({ gain }) => gain < 1 - GAIN_MIN).map(({ fusion }) => fusion);
}

/** Whether any kernel of a member is among those excluded. */
function isWrong(name: string, excluded: ReadonlySet<string>): boolean {
  const member = MATMUL_FAMILY.find((known) => known.name === name);
  const shapes = [{ M: 4, N: 4, K: 4 }, { M: 3, N: 3, K: 3 }];
  return (["nn", "nt", "tn"] as const).some((layout) =>
    shapes.some((shape) => excluded.has(member && memberSpec(member, layout, shape)?.name || ""))
  );
}
