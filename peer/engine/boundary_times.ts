// What an engine's operations spend on boundary tensors: judging and decoding what came in, encoding and bringing back what goes
// out. Sums since the engine was built; whoever wants averages takes differences. Where the end of computing cannot be told
// without stopping for it, as on a GPU, only every so many operations are told apart.

/**
 * A GPU is stopped between computing and encoding once in so many operations: each stop costs a readback's delay. A prime, so that F and
 * B, which take turns, both come up.
 */
const SAMPLED_EVERY = 31;

/** Milliseconds, and how many tensors they were for. */
export interface BoundarySums {
  decodeMs: number;
  decodes: number;
  encodeMs: number;
  encodes: number;
}

export class BoundaryTimes implements BoundarySums {
  decodeMs = 0;
  decodes = 0;
  encodeMs = 0;
  encodes = 0;
  #operations = 0;

  /** Whether this operation is to be told apart. */
  sampled(): boolean {
    return this.#operations++ % SAMPLED_EVERY === 0;
  }

  decode<T>(work: () => T): T {
    const begun = performance.now();
    const result = work();
    this.decodeMs += performance.now() - begun;
    this.decodes++;
    return result;
  }

  encode<T>(work: () => T): T {
    const begun = performance.now();
    const result = work();
    this.encoded(performance.now() - begun);
    return result;
  }

  encoded(ms: number): void {
    this.encodeMs += ms;
    this.encodes++;
  }
}

/** Of several engines together; null if none of them can tell. */
export function boundarySums(engines: readonly { boundary?: BoundarySums }[]): BoundarySums | null {
  const known = engines.flatMap(({ boundary }) => boundary ?? []);
  const sum = (of: (it: BoundarySums) => number) => known.reduce((total, it) => total + of(it), 0);
  return known.length === 0 ? null : {
    ...{ decodeMs: sum((it) => it.decodeMs), decodes: sum((it) => it.decodes) },
    ...{ encodeMs: sum((it) => it.encodeMs), encodes: sum((it) => it.encodes) },
  };
}
