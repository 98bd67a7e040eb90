// The stage engine over tfjs: where there is no WebGPU, or only a slow one, its WASM backend; its WebGPU backend as a
// second opinion. Forward and backward are written out (peer/model/tfjs_stage.ts), not derived. Imported only when it was chosen.
import { decodeTensor, encodeTensor } from "../codec/codec.ts";
import { findTensor, stageLayout } from "../model/layout.ts";
import { assert, ShoalError } from "../wire/errors.ts";
import type { Encoded } from "../wire/run.ts";
import { BoundaryTimes } from "./boundary_times.ts";
import type { StageBuild, StageEngine, StageInput, StageMemory, StageOutput } from "./engine.ts";
import { type TfjsBackendName, wasmBackend, webgpuBackend } from "./tfjs_backend.ts";
import { engineSaid } from "../model/stage_memory.ts";
import { stackAdapters, unstackGradient } from "../model/lora_groups.ts";
import type { PlacedGrad, TfjsAdapters } from "../model/tfjs_adapters.ts";
import { type MathShape, mathShape, type StageMath } from "../model/tfjs_math.ts";
import { tfjsMemory, totalBytes } from "../model/tfjs_memory.ts";
import { type BoundaryShapes, boundaryShapes, dimsOf } from "../model/stage_tensors.ts";
import { layoutViews, type NamedGrad, type StageSlot, type Steps, TfjsStage } from "../model/tfjs_stage.ts";
import { createTensorMath } from "./tfjs_tensors.ts";
import { WasmMath } from "./tfjs_wasm.ts";

/** What a slot holds, in the order of a micro-batch's life. */
interface Slot<X> {
  state: "free" | "forward done" | "backward done";
  held: StageSlot<X> | null;
  /** Flat, in layout order, of adapters as they are stacked; from the first gradient of a weight until W hands it out. */
  gradient: Float32Array | null;
}

/** After this much work without a pause, whoever shares the thread (links, heartbeats, the owner's orders) is heard. */
const BREATH_MS = 20;

/**
 * Builds a stage on a backend of tfjs; parameters are unknown until load.
 * Errors: out-of-memory with the bytes wanted, no-adapter, missing-tool if the backend does not start.
 */
export async function createTfjsEngine(
  build: StageBuild,
  { backend }: { backend: TfjsBackendName },
): Promise<StageEngine> {
  const shape = mathShape(build);
  if (backend === "webgpu") {
    const { adapter } = await webgpuBackend();
    const name = `tfjs-webgpu on ${adapter}`;
    return new TfjsEngine(build, { math: createTensorMath(backend, shape), shape, name });
  }
  const math = new WasmMath(await wasmBackend(), shape, totalBytes(tfjsMemory(build)));
  return new TfjsEngine(build, { math, shape, name: "tfjs-wasm" });
}

/** What an engine computes with. */
export interface TfjsParts<X, W> {
  math: StageMath<X, W>;
  shape: MathShape;
  name: string;
}

export class TfjsEngine<X, W> implements StageEngine {
  readonly name: string;
  readonly loadAdapters?: (adapters: Float32Array) => Promise<void>;
  readonly boundary = new BoundaryTimes();
  readonly #build: StageBuild;
  readonly #math: StageMath<X, W>;
  readonly #stage: TfjsStage<X, W>;
  readonly #slots: Slot<X>[];
  readonly #memory: StageMemory;
  readonly #shapes: BoundaryShapes;
  #destroyed = false;
  #tail: Promise<unknown> = Promise.resolve();
  #breathed = 0;

  constructor(build: StageBuild, { math, shape, name }: TfjsParts<X, W>) {
    this.name = engineSaid(name, build);
    this.#build = build;
    this.#math = math;
    this.#stage = new TfjsStage(build, math, shape);
    const { adapters } = this.#stage;
    if (adapters) this.loadAdapters = (values) => this.#loadAdapters(adapters, values);
    this.#memory = tfjsMemory(build);
    this.#shapes = boundaryShapes(dimsOf(build));
    this.#slots = Array.from({ length: build.slots }, () => ({ state: "free", held: null, gradient: null }));
  }

  load(params: Float32Array): Promise<void> {
    return this.#alone(() => {
      const wanted = stageLayout(this.#build.spec, this.#build.stage).size;
      if (params.length !== wanted) {
        const text = `${params.length} parameters do not fit a stage of ${wanted}; reload the state`;
        throw new ShoalError("bad-state", text);
      }
      this.#stage.load(layoutViews(this.#build, params));
      for (const slot of this.#slots) this.#empty(slot);
      return Promise.resolve();
    });
  }

  #loadAdapters(adapters: TfjsAdapters<X, W>, values: Float32Array): Promise<void> {
    return this.#alone(() => {
      adapters.load(stackAdapters(adapters.stack, values));
      return Promise.resolve();
    });
  }

  forward(slot: number | null, input: StageInput): Promise<StageOutput> {
    return this.#alone(async () => {
      const target = slot === null ? null : this.#slot(slot, "free");
      const held: StageSlot<X> = { blocks: [] };
      try {
        const output = await this.#forward(held, this.#read(input), target !== null);
        if (target) [target.held, target.state] = [held, "forward done"];
        return output;
      } finally {
        if (target?.held !== held) this.#stage.free(held);
      }
    });
  }

  backward(slot: number, gradient: Encoded | null): Promise<Encoded | null> {
    return this.#alone(async () => {
      const target = this.#slot(slot, "forward done");
      const { head } = this.#build.stage;
      assert(head === (gradient === null), "exactly the last stage is given no gradient");
      const dOut = gradient ? this.#decode(gradient, this.#shapes.gradientIn.codec) : null;
      const dX = await this.#drive<X | null>(this.#stage.backward(target.held!, dOut), target);
      target.state = "backward done";
      if (dX === null) return null;
      try {
        return await this.#encode(dX, this.#shapes.gradientOut.codec);
      } finally {
        this.#math.free(dX);
      }
    });
  }

  weightGrad(slot: number): Promise<Float32Array> {
    return this.#alone(async () => {
      const target = this.#slot(slot, "backward done");
      await this.#drive(this.#stage.weightGrads(target.held!), target);
      const { gradient } = target;
      this.#empty(target);
      const { adapters } = this.#stage;
      return adapters ? unstackGradient(adapters.stack, gradient!) : gradient!;
    });
  }

  memory(): StageMemory {
    return this.#memory;
  }

  destroy(): void {
    if (this.#destroyed) return;
    this.#destroyed = true;
    // An operation under way keeps its matrices until it ends.
    void this.#tail.then(() => {
      for (const slot of this.#slots) this.#empty(slot);
      this.#stage.unload();
      this.#math.destroy();
    });
  }

  async #forward(held: StageSlot<X>, input: ReadInput, keep: boolean): Promise<StageOutput> {
    const { tokens, activation, targets } = input;
    const x = await this.#drive<X>(
      this.#stage.forward(held, {
        input: tokens ?? this.#decode(activation, this.#shapes.activationIn.codec),
        ...(targets ? { targets } : {}),
        keep,
      }),
      null,
    );
    try {
      if (!targets) return { activation: await this.#encode(x, this.#shapes.activationOut.codec) };
      const loss = new Float32Array(1);
      await this.#math.read(x, loss);
      return { loss: loss[0]! };
    } finally {
      this.#math.free(x);
    }
  }

  /** Takes the steps of an operation, and the gradients of weights that it gives. */
  async #drive<R>(steps: Steps<X, R>, slot: Slot<X> | null): Promise<R> {
    for (;;) {
      const { done, value } = steps.next();
      if (done) return value;
      if (value) await this.#put(value, slot!);
      await this.#breathe();
    }
  }

  async #put(grad: NamedGrad<X> | PlacedGrad<X>, slot: Slot<X>): Promise<void> {
    if ("at" in grad) return await this.#place(grad, slot);
    const { name, gradient, skipped = 0, tokens } = grad;
    const math = this.#math, size = math.size(gradient);
    const layout = stageLayout(this.#build.spec, this.#build.stage);
    const flat = slot.gradient ??= new Float32Array(layout.size);
    const { offset, size: whole } = findTensor(layout, name)!;
    if (!tokens) return await math.read(gradient, flat.subarray(offset + skipped, offset + skipped + size));
    const rows = new Float32Array(size);
    await math.read(gradient, rows);
    scatterAdd(flat.subarray(offset, offset + whole), rows, tokens);
  }

  async #place({ at, gradient }: PlacedGrad<X>, slot: Slot<X>): Promise<void> {
    const flat = slot.gradient ??= new Float32Array(this.#stage.adapters!.stack.floats);
    await this.#math.read(gradient, flat.subarray(at, at + this.#math.size(gradient)));
  }

  #empty(slot: Slot<X>): void {
    if (slot.held) this.#stage.free(slot.held);
    [slot.held, slot.gradient, slot.state] = [null, null, "free"];
  }

  #slot(index: number, state: Slot<X>["state"]): Slot<X> {
    const slot = this.#slots[index];
    assert(slot, `no slot ${index}; the stage was built with ${this.#slots.length}`);
    assert(slot.state === state, `slot ${index} of ${this.#slots.length} is ${slot.state}, not ${state}`);
    return slot;
  }

  #read(input: StageInput): ReadInput {
    const { embed, head } = this.#build.stage;
    const { activation } = input;
    return {
      ...(embed ? { tokens: this.#ids("tokens", input.tokens) } : activation ? { activation } : {}),
      ...(head ? { targets: this.#ids("targets", input.targets) } : {}),
    };
  }

  /** Copies, because W reads them long after the caller may have reused its arrays. */
  #ids(name: string, ids: Uint32Array | undefined): Uint32Array {
    const { R, V } = this.#stage.shape;
    assert(ids?.length === R, `the stage needs ${R} ${name}, not ${ids?.length}`);
    const bad = ids.find((id) => id >= V);
    if (bad === undefined) return ids.slice();
    throw new ShoalError(
      "bad-corpus",
      `token ${bad} among the ${name} is not below vocab_size ${V}; rebuild the corpus`,
    );
  }

  /** A stranger's tensor: refused with its code unless it has the stage's shape and decodes. */
  #decode(encoded: Encoded | undefined, codec: Encoded["codec"]): X {
    const { R, C } = this.#stage.shape;
    assert(encoded, "a stage inside the pipeline needs its neighbour's tensor");
    if (encoded.rows !== R || encoded.cols !== C || encoded.codec !== codec) {
      const got = `${encoded.rows} x ${encoded.cols} ${encoded.codec}`, wanted = `${R} x ${C} ${codec}`;
      throw new ShoalError("bad-frame", `a tensor of ${got} came, the plan says ${wanted}; ask for it again`);
    }
    const decoded = this.boundary.decode(() => decodeTensor(encoded));
    if (!decoded.ok) throw new ShoalError(decoded.code, `${decoded.reason}; ask for the tensor again`);
    return this.#math.upload(decoded.value, R, C);
  }

  async #encode(x: X, codec: Encoded["codec"]): Promise<Encoded> {
    const { R, C } = this.#stage.shape;
    const values = new Float32Array(R * C);
    const begun = performance.now();
    await this.#math.read(x, values);
    const encoded = encodeTensor(codec, values, R, C);
    this.boundary.encoded(performance.now() - begun);
    return encoded;
  }

  /** One operation at a time: they pause for others to be heard, but never for each other. */
  #alone<T>(operation: () => Promise<T>): Promise<T> {
    const result = this.#tail.then(() => {
      assert(!this.#destroyed, "the engine was destroyed");
      this.#breathed = performance.now();
      return operation();
    });
    this.#tail = result.catch(() => undefined);
    return result;
  }

  async #breathe(): Promise<void> {
    if (performance.now() - this.#breathed < BREATH_MS) return;
    await turn();
    this.#breathed = performance.now();
  }
}

interface ReadInput {
  tokens?: Uint32Array;
  targets?: Uint32Array;
  activation?: Encoded;
}

/** table [V, C] += dX [R, C] at the rows that the tokens name, in the order of rows. */
function scatterAdd(table: Float32Array, dX: Float32Array, tokens: Uint32Array): void {
  const C = dX.length / tokens.length;
  for (let r = 0; r < tokens.length; r++) {
    const at = tokens[r]! * C;
    for (let c = 0; c < C; c++) table[at + c]! += dX[r * C + c]!;
  }
}

/**
 * Resolves after whatever else waits for the thread. Browsers hold timers up and hand over messages one by one; Deno hands a
 * message over at once, before anybody else, and has setImmediate.
 */
function turn(): Promise<void> {
  const { setImmediate } = globalThis as { setImmediate?: (callback: () => void) => unknown };
  return new Promise((resolve) => {
    if (setImmediate !== undefined) return void setImmediate(resolve);
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });
}
