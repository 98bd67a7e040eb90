// Engines on tfjs' WASM backend for tests: with a head that cuts a small vocabulary into several tiles, and with every
// allocation counted where tfjs makes it, not where our own heap says so. No assertions.
import type { StageBuild, StageEngine } from "../../peer/engine/engine.ts";
import { TfjsEngine } from "../../peer/engine/tfjs.ts";
import { wasmBackend } from "../../peer/engine/tfjs_backend.ts";
import { type MathShape, mathShape } from "../../peer/model/tfjs_math.ts";
import { WasmMath } from "../../peer/engine/tfjs_wasm.ts";

/** More than any engine of a test takes. */
const HEAP_BYTES = 2 ** 26;

/** An engine whose head takes so many words at a time. */
export async function tiledEngine(build: StageBuild, headTile: number): Promise<StageEngine> {
  const shape = { ...mathShape(build), headTile };
  const math = new WasmMath(await wasmBackend(), shape, HEAP_BYTES);
  return new TfjsEngine(build, { math, shape, name: "tiled" });
}

export interface Counted {
  engine: StageEngine;
  /** Bytes and matrices that tfjs' backend holds for it, and the most bytes there were. */
  live(): { bytes: number; count: number; most: number };
  restore(): void;
}

/** An engine on the shared backend, every allocation of which is counted where tfjs makes it. */
export async function countedEngine(build: StageBuild, shape: MathShape): Promise<Counted> {
  const backend = await wasmBackend();
  const sizes = new Map<object, number>();
  const { move, disposeData } = backend;
  let bytes = 0, most = 0;
  backend.move = function (dataId, values, dims, ...rest) {
    move.call(this, dataId, values, dims, ...rest);
    sizes.set(dataId, 4 * dims.reduce((product, n) => product * n, 1));
    bytes += sizes.get(dataId)!;
    most = Math.max(most, bytes);
  };
  backend.disposeData = function (dataId, force) {
    const freed = disposeData.call(this, dataId, force);
    if (freed) bytes -= sizes.get(dataId) ?? 0;
    if (freed) sizes.delete(dataId);
    return freed;
  };
  return {
    engine: new TfjsEngine(build, { math: new WasmMath(backend, shape, HEAP_BYTES), name: "counted", shape }),
    live: () => ({ bytes, count: sizes.size, most }),
    restore: () => Object.assign(backend, { move, disposeData }),
  };
}
