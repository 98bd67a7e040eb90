// The adapters of a stage on tfjs, and W where they alone are trained: four thin products for each group of matrices. The twin of
// shaders/reference/adapters.ts; what is stacked where is lora_groups.ts.
import type { AdapterGroup, AdapterStack } from "./lora_groups.ts";
import type { StageMath } from "./tfjs_math.ts";

interface LoadedGroup<W> {
  group: AdapterGroup;
  /** [ranks, cols], and transposed [ranks, rows]. */
  a: W;
  b: W;
}

/** A gradient, and its place in the stacked array. Valid until the generator that gave it goes on. */
export interface PlacedGrad<X> {
  at: number;
  gradient: X;
}

export class TfjsAdapters<X, W> {
  readonly stack: AdapterStack;
  readonly #math: StageMath<X, W>;
  #groups: LoadedGroup<W>[] = [];

  constructor(math: StageMath<X, W>, stack: AdapterStack) {
    [this.#math, this.stack] = [math, stack];
  }

  /** @param stacked values of all groups, as lora_groups.ts stacks them */
  load(stacked: Float32Array): void {
    this.unload();
    this.#groups = this.stack.groups.map((group) => {
      const { ranks, rows, cols, aAt, bAt } = group;
      const of = (at: number, width: number) =>
        this.#math.linear(stacked.subarray(at, at + ranks * width), ranks, width);
      return { group, a: of(aAt, cols), b: of(bAt, rows) };
    });
  }

  unload(): void {
    for (const { a, b } of this.#groups.splice(0)) {
      this.#math.freeLinear(a);
      this.#math.freeLinear(b);
    }
  }

  /** Whether W multiplies the rows of this matrix. */
  trains(matrix: AdapterGroup["kind"]): boolean {
    return this.stack.groups.some(({ kind }) => kind === matrix);
  }

  /** Of one matrix of a layer, from its rows' gradient and what it multiplied; nothing if it has no adapters. */
  *grads(
    { layer, kind }: Pick<AdapterGroup, "layer" | "kind">,
    dy: X,
    x: X,
  ): Generator<PlacedGrad<X>, void, undefined> {
    const math = this.#math;
    const found = this.#groups.find(({ group }) => group.layer === layer && group.kind === kind);
    if (found === undefined) return;
    const { aAt, bAt } = found.group;
    const outer = math.forward(dy, found.b);
    const da = math.weightGrad(outer, x);
    yield { at: aAt, gradient: da };
    math.free(outer, da);
    const inner = math.forward(x, found.a);
    const db = math.weightGrad(inner, dy);
    yield { at: bAt, gradient: db };
    math.free(inner, db);
  }
}
