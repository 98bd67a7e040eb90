// Cases of one or more dispatches on one device, each runnable 1 to 64 times in one submit, and how long that takes.
// Not a schedule and not a table. Each run reads back four bytes that its last kernel wrote, so its end is awaited.
import { tensorOf, type TensorRef, type TensorRequest } from "../peer/gpu/arena.ts";
import type { GpuDevice } from "../peer/gpu/device.ts";
import { type DispatchPlan, type OperationPlan, Program } from "../peer/gpu/program.ts";

/** Runs of a case in one submit. */
const REPEATS = [1, 4, 16, 64] as const;
/** The first of REPEATS that takes this long is used, so that the wait for the end weighs little. */
const SUBMIT_MS = 60;

export interface CasesPlan {
  tensors: readonly TensorRequest[];
  /** By name; each a list of dispatches. */
  cases: ReadonlyMap<string, readonly DispatchPlan[]>;
}

/** Something that can be done several times and then waited for. */
export interface Repeatable {
  /** Resolves when all of it is done; 0 only waits. */
  run(repeats: number): Promise<void>;
}

export class CasesProgram {
  readonly #program: Program;

  private constructor(program: Program) {
    this.#program = program;
  }

  /** Errors: as Program.build. */
  static async build(gpu: GpuDevice, label: string, { tensors, cases }: CasesPlan): Promise<CasesProgram> {
    const operations = new Map<string, OperationPlan>();
    for (const [name, dispatches] of cases) {
      const readback = [fewBytesOf(dispatches.at(-1)!)];
      operations.set(operationName(name, 0), { dispatches: [], readback });
      for (const repeats of REPEATS) {
        const repeated = new Array<readonly DispatchPlan[]>(repeats).fill(dispatches).flat();
        operations.set(operationName(name, repeats), { dispatches: repeated, readback });
      }
    }
    return new CasesProgram(await Program.build(gpu, { label, tensors, operations }));
  }

  fill(tensor: string, values: Float32Array<ArrayBuffer>): void {
    this.#program.upload(tensor, new Uint8Array(values.buffer));
  }

  repeatable(name: string): Repeatable {
    return {
      run: async (repeats) => {
        await this.#program.run(operationName(name, repeats));
      },
    };
  }

  destroy(): void {
    this.#program.destroy();
  }
}

function operationName(name: string, repeats: number): string {
  return `${name} x ${repeats}`;
}

function fewBytesOf({ spec, tensors }: DispatchPlan): TensorRef {
  const written = spec.bindings.find(({ type }) => type === "storage");
  const ref = tensors[written?.name ?? ""];
  if (ref === undefined) throw new Error(`${spec.name} writes no tensor`);
  const offset = typeof ref === "string" ? 0 : ref.offset;
  return { tensor: tensorOf(ref), offset, bytes: 4 };
}

/** Repeats that take long enough. The first run of each count compiles what a driver leaves until then. */
export async function enoughRepeats(work: Repeatable): Promise<number> {
  for (const repeats of REPEATS) {
    await work.run(repeats);
    if (await elapsed(work, repeats) >= SUBMIT_MS) return repeats;
  }
  return REPEATS.at(-1)!;
}

/** Milliseconds of one of `repeats` runs, without the wait for the end. */
export async function msOfOne(work: Repeatable, repeats: number): Promise<number> {
  const wait = await elapsed(work, 0);
  const all = await elapsed(work, repeats);
  return Math.max(all - wait, all / 2) / repeats;
}

async function elapsed(work: Repeatable, repeats: number): Promise<number> {
  const start = performance.now();
  await work.run(repeats);
  return performance.now() - start;
}
