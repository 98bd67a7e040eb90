// The stage engine without a GPU: the double-precision references behind the StageEngine contract. Not fast, and not
// meant for large models. Parameters and weight gradients are f32, and so are activations between layers: the same
// micro-batch always gives the same bits, whichever peer computes it and (untied, codec raw32) wherever the model is cut.
import { decodeTensor, encodeTensor } from "../codec/codec.ts";
import { BoundaryTimes } from "./boundary_times.ts";
import { stageLayout } from "../model/layout.ts";
import { type AdapterStack, adapterStack, stackAdapters, unstackGradient } from "../model/lora_groups.ts";
import { cpuStageMemory, engineSaid } from "../model/stage_memory.ts";
import { assert, ShoalError } from "../wire/errors.ts";
import type { Encoded } from "../wire/run.ts";
import { stageForward, stageInputGrad, stageShape, stageWeightGrad } from "../../shaders/reference/stage.ts";
import { viewParams } from "../../shaders/reference/stage.ts";
import { adapterGrads, matrixFactors } from "../../shaders/reference/adapters.ts";
import type { StagePending, StageReferenceInput, StageSaved } from "../../shaders/reference/stage.ts";
import type { StageParams, StageShape } from "../../shaders/reference/stage.ts";
import type { StageBuild, StageEngine, StageInput, StageMemory, StageOutput } from "./engine.ts";

/** A slot goes free -> forward done (saved) -> backward done (pending too) -> free. */
interface Slot {
  saved?: StageSaved;
  pending?: StagePending;
}

/** Builds the engine of one stage; parameters are zero until `load`. */
export function createCpuEngine(build: StageBuild): StageEngine {
  return new CpuEngine(build);
}

class CpuEngine implements StageEngine {
  readonly name: string;
  readonly boundary = new BoundaryTimes();
  readonly #build: StageBuild;
  readonly #shape: StageShape;
  readonly #memory: StageMemory;
  readonly #slots: Slot[];
  /** Flat parameters and gradient in layout order, and the views into them. */
  readonly #flatParams: Float64Array;
  readonly #flatGrads: Float64Array;
  readonly #params: StageParams;
  /** Absent beside adapters, whose gradient is stacked as they are. */
  readonly #grads?: StageParams;
  readonly #stack: AdapterStack | undefined;
  readonly loadAdapters?: (adapters: Float32Array) => Promise<void>;
  #adapters = new Float64Array(0);
  #destroyed = false;

  constructor(build: StageBuild) {
    const { spec, stage, batchSize, slots } = build;
    const floats = stageLayout(spec, stage).size;
    this.name = engineSaid("cpu (double precision)", build);
    this.#build = build;
    this.#shape = { ...stageShape(spec, stage, batchSize), roundLayers: true };
    this.#stack = adapterStack(build);
    this.#memory = cpuStageMemory(build);
    this.#slots = Array.from({ length: slots }, () => ({}));
    this.#flatParams = new Float64Array(floats);
    this.#flatGrads = new Float64Array(this.#stack?.floats ?? floats);
    this.#params = viewParams(spec, stage, this.#flatParams);
    if (this.#stack) this.loadAdapters = (adapters) => this.#loadAdapters(adapters);
    else this.#grads = viewParams(spec, stage, this.#flatGrads);
  }

  load(params: Float32Array): Promise<void> {
    return this.#run(() => {
      if (params.length !== this.#flatParams.length) {
        const wanted = this.#flatParams.length;
        throw new ShoalError(
          "bad-state",
          `${params.length} parameters do not fit a stage of ${wanted}; reload the state`,
        );
      }
      this.#flatParams.set(params);
      for (let slot = 0; slot < this.#slots.length; slot++) this.#slots[slot] = {};
    });
  }

  forward(slot: number | null, input: StageInput): Promise<StageOutput> {
    return this.#run(() => {
      const target = slot === null ? null : this.#slot(slot);
      assert(!target?.saved, `slot ${slot} still holds a micro-batch`);
      const { output, loss, saved } = stageForward(this.#shape, this.#params, this.#read(input));
      if (target) target.saved = saved;
      if (loss !== undefined) return { loss };
      assert(output, "a stage without the head has an output");
      return { activation: this.#encode(output, this.#build.codecForward) };
    });
  }

  backward(slot: number, gradient: Encoded | null): Promise<Encoded | null> {
    return this.#run(() => {
      const target = this.#slot(slot);
      const { saved } = target;
      assert(saved && !target.pending, `slot ${slot} is not ready for its backward`);
      const dOutput = this.#readGradient(gradient);
      const { dInput, pending } = stageInputGrad(this.#shape, this.#params, { saved, ...dOutput });
      target.pending = pending;
      const { codecsBefore, codecBackward } = this.#build;
      return dInput ? this.#encode(dInput, codecsBefore?.backward ?? codecBackward) : null;
    });
  }

  weightGrad(slot: number): Promise<Float32Array> {
    return this.#run(() => {
      const { saved, pending } = this.#slot(slot);
      assert(saved && pending, `slot ${slot} is not ready for its weight gradient`);
      if (this.#stack) this.#adapterGrads(this.#stack, { saved, pending });
      else {
        this.#flatGrads.fill(0);
        stageWeightGrad(this.#shape, this.#grads!, { saved, pending });
      }
      this.#slots[slot] = {};
      return this.#stack ? unstackGradient(this.#stack, this.#flatGrads) : Float32Array.from(this.#flatGrads);
    });
  }

  #loadAdapters(adapters: Float32Array): Promise<void> {
    return this.#run(() => {
      this.#adapters = Float64Array.from(stackAdapters(this.#stack!, adapters));
    });
  }

  #adapterGrads(
    { groups }: AdapterStack,
    { saved, pending }: { saved: StageSaved; pending: StagePending },
  ): void {
    const { B, T } = this.#shape, values = this.#adapters;
    for (const { kind, layer, rows, cols, ranks, aAt, bAt } of groups) {
      const [a, b] = [
        values.subarray(aAt, aAt + ranks * cols),
        values.subarray(bAt, bAt + ranks * rows),
      ];
      const factors = matrixFactors(kind, saved.blocks[layer]!, pending.blocks[layer]!);
      const { da, db } = adapterGrads({ ...factors, a, b }, { R: B * T, rows, cols, ranks });
      this.#flatGrads.set(da, aAt);
      this.#flatGrads.set(db, bAt);
    }
  }

  memory(): StageMemory {
    return this.#memory;
  }

  destroy(): void {
    this.#destroyed = true;
    this.#slots.fill({});
  }

  /** Failures reject, also those found before any work, so that callers have one path. */
  #run<T>(work: () => T): Promise<T> {
    return new Promise((resolve) => {
      assert(!this.#destroyed, "the engine was destroyed");
      resolve(work());
    });
  }

  #slot(index: number): Slot {
    const slot = this.#slots[index];
    assert(slot, `no slot ${index}; the stage was built with ${this.#slots.length}`);
    return slot;
  }

  /** Copies, because W reads them long after the caller may have reused its arrays. */
  #read(input: StageInput): StageReferenceInput {
    const { embed, head } = this.#build.stage;
    return {
      ...(embed
        ? { tokens: this.#tokens("tokens", input.tokens) }
        : { activation: this.#decode(input.activation) }),
      ...(head ? { targets: this.#tokens("targets", input.targets) } : {}),
    };
  }

  #readGradient(gradient: Encoded | null): { dOutput?: Float64Array } {
    const { head } = this.#build.stage;
    assert(head === (gradient === null), "a gradient comes in everywhere but at the last stage");
    return gradient ? { dOutput: this.#decode(gradient) } : {};
  }

  #tokens(name: string, tokens: Uint32Array | undefined): Uint32Array {
    const rows = this.#shape.B * this.#shape.T, V = this.#shape.V;
    assert(tokens?.length === rows, `the stage needs ${rows} ${name}, not ${tokens?.length}`);
    const bad = tokens.find((token) => token >= V);
    if (bad === undefined) return tokens.slice();
    throw new ShoalError(
      "bad-corpus",
      `token ${bad} among the ${name} is not below vocab_size ${V}; rebuild the corpus`,
    );
  }

  /** A stranger's tensor: refused with its code unless it has the stage's shape and decodes. */
  #decode(encoded: Encoded | undefined): Float64Array {
    const { B, T, C } = this.#shape;
    assert(encoded, "a stage inside the pipeline needs its neighbour's tensor");
    if (encoded.rows !== B * T || encoded.cols !== C) {
      const got = `${encoded.rows} x ${encoded.cols}`;
      throw new ShoalError(
        "bad-frame",
        `a tensor of ${got} came, the plan says ${B * T} x ${C}; ask for it again`,
      );
    }
    const decoded = this.boundary.decode(() => decodeTensor(encoded));
    if (!decoded.ok) throw new ShoalError(decoded.code, `${decoded.reason}; ask for the tensor again`);
    return Float64Array.from(decoded.value);
  }

  #encode(values: Float64Array, codec: Encoded["codec"]): Encoded {
    const { B, T, C } = this.#shape;
    return this.boundary.encode(() => encodeTensor(codec, Float32Array.from(values), B * T, C));
  }
}
