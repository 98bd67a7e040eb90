// The stage engine on the GPU: uploads inputs, runs the pre-built operations F, B and W, hands results back.
// It plans nothing (wgsl_plan.ts) and writes no WGSL. Operations run one after the other; a step makes no GPU object.
import { arenaLimits } from "../gpu/arena.ts";
import type { GpuDevice } from "../gpu/device.ts";
import { tokenLookup } from "../gpu/kernels/embedding.ts";
import { type MatmulChoice, matmulTraits, presumedChoice } from "../gpu/kernels/matmul.ts";
import { scaleFactors } from "../gpu/kernels/halves.ts";
import { noRotation, rotaryTable } from "../gpu/kernels/rotary.ts";
import { Program } from "../gpu/program.ts";
import { blockTensor, weightsInBackward } from "../model/block_tensors.ts";
import { type AdapterStack, halvesFactors, stackAdapters, unstackGradient } from "../model/lora_groups.ts";
import { inHalves } from "../model/stage_tensors.ts";
import { assert, ShoalError } from "../wire/errors.ts";
import type { Encoded } from "../wire/run.ts";
import type {
  StageBuild,
  StageEngine,
  StageInput,
  StageMemory,
  StageOptimizer,
  StageOutput,
} from "./engine.ts";
import { BoundaryTimes } from "./boundary_times.ts";
import { adapterTensor } from "./wgsl_adapters.ts";
import { decodePlan, fromEncoded, toEncoded } from "./wgsl_codec.ts";
import { WgslOptimizer } from "./wgsl_optimizer.ts";
import { addGradientName } from "./wgsl_optimizer_plan.ts";
import { type SlotName, slotTensor } from "./wgsl_names.ts";
import { partName } from "./wgsl_params.ts";
import {
  backwardName,
  boundaryTensor,
  forwardName,
  planStage,
  type StageProgram,
  weightGradName,
} from "./wgsl_plan.ts";

/** What a slot holds, in the order of a micro-batch's life. */
type SlotState = "free" | "forward done" | "backward done";

export interface WgslEngineOptions {
  /** Which kernels compute the matrix products; default: what is presumed of the adapter (tune.ts measures). */
  matmul?: MatmulChoice;
}

/**
 * Builds a stage on an open device, with zero parameters until load.
 * Errors: out-of-memory with the bytes wanted, shader-invalid, internal.
 */
export async function createWgslEngine(
  gpu: GpuDevice,
  build: StageBuild,
  { matmul = presumedChoice(matmulTraits(gpu)) }: WgslEngineOptions = {},
): Promise<StageEngine> {
  const limits = arenaLimits(gpu.limits);
  const stage = planStage(build, { software: gpu.software, matmul, limits });
  const program = await Program.build(gpu, stage.plan);
  const { T, D, gpt2 } = stage.planning;
  program.upload("angles", bytesOf(gpt2 ? noRotation(T, D) : rotaryTable(T, D, build.spec.rope_theta)));
  if (inHalves(stage.planning)) program.upload("scales", bytesOf(scaleFactors(0)));
  return new WgslEngine(gpu, stage, program);
}

class WgslEngine implements StageEngine {
  readonly name: string;
  readonly optimizer?: StageOptimizer;
  readonly loadAdapters?: (adapters: Float32Array) => Promise<void>;
  readonly boundary = new BoundaryTimes();
  readonly #stage: StageProgram;
  readonly #program: Program;
  readonly #slots: SlotState[];
  /** With recomputation: the slot whose weight gradient B has left on the GPU, and those that had to make room. */
  #unread: number | null = null;
  readonly #read = new Map<number, Float32Array>();
  /** With recomputation and the GPU's optimizer: slots whose gradient was summed to make room. */
  readonly #summed = new Set<number>();
  /** The optimizer on the GPU has the state: gradients that make room are summed, not read back. */
  #sums = false;
  #lossExponent = 0;
  /** What B of each group of adapters was multiplied with, where there are some and their products are kept in halves. */
  #factors: number[] = [];
  #tail: Promise<unknown> = Promise.resolve();

  constructor(gpu: GpuDevice, stage: StageProgram, program: Program) {
    this.name = `wgsl on ${gpu.adapterName} (${gpu.provider})`;
    this.#stage = stage;
    this.#program = program;
    this.#slots = new Array<SlotState>(stage.planning.build.slots).fill("free");
    const { build, adapters } = stage.planning;
    if (adapters) this.loadAdapters = (values) => this.#loadAdapters(adapters, values);
    if (build.optimizer === "gpu") this.optimizer = this.#createOptimizer();
  }

  #createOptimizer(): StageOptimizer {
    return new WgslOptimizer({
      ...{ planning: this.#stage.planning, program: this.#program },
      alone: (operation) => this.#alone(operation),
      loaded: () => this.#loaded(true),
      takeSlot: (slot) => {
        this.#expect(slot, "backward done");
        if (this.#unread === slot) this.#unread = null;
        this.#slots[slot] = "free";
        return !this.#summed.delete(slot);
      },
    });
  }

  /** New parameters: every slot is free. */
  #loaded(sums: boolean): void {
    this.#sums = sums;
    this.#slots.fill("free");
    this.#unread = null;
    this.#read.clear();
    this.#summed.clear();
  }

  load(params: Float32Array): Promise<void> {
    return this.#alone(() => {
      const { layout: { size }, parts } = this.#stage.planning;
      if (params.length !== size) {
        const text = `${params.length} parameters do not fit a stage of ${size}; reload the state`;
        throw new ShoalError("bad-state", text);
      }
      for (const part of parts) {
        const { offset, size } = part;
        this.#program.upload(partName("params", part), bytesOf(params.subarray(offset, offset + size)));
      }
      this.#loaded(false);
      return Promise.resolve();
    });
  }

  #loadAdapters(stack: AdapterStack, adapters: Float32Array): Promise<void> {
    return this.#alone(() => {
      const { layerFloats, floats } = stack;
      if (inHalves(this.#stage.planning)) this.#factors = halvesFactors(stack, adapters);
      const stacked = stackAdapters(stack, adapters, this.#factors);
      for (let layer = 0; layer * layerFloats < floats; layer++) {
        const values = stacked.subarray(layer * layerFloats, (layer + 1) * layerFloats);
        this.#program.upload(adapterTensor("adapters", layer), bytesOf(values));
      }
      return Promise.resolve();
    });
  }

  forward(slot: number | null, input: StageInput): Promise<StageOutput> {
    return this.#alone(async () => {
      const name = slot ?? "eval";
      if (slot !== null) this.#expect(slot, "free");
      this.#uploadInput(name, input);
      const bytes = await this.#run(forwardName(name), !this.#stage.planning.build.stage.head);
      const output = this.#stage.planning.build.stage.head
        ? { loss: new Float32Array(bytes)[0]! }
        : { activation: toEncoded(this.#stage.shapes.activationOut, bytes) };
      if (slot !== null) this.#slots[slot] = "forward done";
      return output;
    });
  }

  backward(slot: number, gradient: Encoded | null): Promise<Encoded | null> {
    return this.#alone(async () => {
      this.#expect(slot, "forward done");
      const { planning } = this.#stage;
      const { build } = planning;
      const { gradientIn, gradientOut } = this.#stage.shapes;
      assert(build.stage.head === (gradient === null), "exactly the last stage is given no gradient");
      if (gradient) {
        const dx = boundaryTensor(planning, blockTensor(planning, slot)("dx", planning.layers));
        const { upload } = decodePlan(gradientIn, dx);
        this.#program.upload(upload, this.boundary.decode(() => fromEncoded(gradientIn, gradient)));
      }
      await this.#makeRoom();
      const bytes = await this.#run(backwardName(slot), !build.stage.embed);
      if (weightsInBackward(build)) this.#unread = slot;
      const output = build.stage.embed ? null : toEncoded(gradientOut, bytes);
      this.#slots[slot] = "backward done";
      return output;
    });
  }

  weightGrad(slot: number): Promise<Float32Array> {
    return this.#alone(async () => {
      this.#expect(slot, "backward done");
      const grad = this.#read.get(slot) ?? await this.#gradient(slot);
      this.#read.delete(slot);
      if (this.#unread === slot) this.#unread = null;
      this.#slots[slot] = "free";
      return grad;
    });
  }

  /** `leaves`: it brings out a boundary tensor, and every so often it is told how long that takes. */
  async #run(name: string, leaves: boolean): Promise<ArrayBuffer> {
    if (!leaves || !this.boundary.sampled()) return await this.#program.run(name);
    let computedAt = 0;
    const bytes = await this.#program.run(name, () => computedAt = performance.now());
    this.boundary.encoded(performance.now() - computedAt);
    return bytes;
  }

  async #gradient(slot: number): Promise<Float32Array> {
    const gradient = new Float32Array(await this.#program.run(weightGradName(slot)));
    const { adapters } = this.#stage.planning;
    return adapters ? unstackGradient(adapters, gradient, this.#factors) : gradient;
  }

  /** There is one gradient on the GPU: a B that writes it first brings another slot's to the CPU, or to the sum. */
  async #makeRoom(): Promise<void> {
    const slot = this.#unread;
    if (slot === null) return;
    this.#unread = null;
    if (!this.#sums) {
      this.#read.set(slot, await this.#gradient(slot));
      return;
    }
    await this.#program.run(addGradientName(slot));
    this.#summed.add(slot);
  }

  scaleLoss(exponent: number): void {
    if (exponent === this.#lossExponent || !inHalves(this.#stage.planning)) return;
    this.#lossExponent = exponent;
    // A device that is lost shows in the operation that follows.
    void this.#alone(() => {
      this.#program.upload("scales", bytesOf(scaleFactors(exponent)));
      return Promise.resolve();
    }).catch(() => undefined);
  }

  memory(): StageMemory {
    return this.#stage.memory;
  }

  destroy(): void {
    this.#program.destroy();
  }

  #uploadInput(slot: SlotName, input: StageInput): void {
    const { build, R } = this.#stage.planning;
    const { embed, head } = build.stage;
    if (embed) {
      const tokens = this.#uploadIds(slotTensor(slot, "tokens"), input.tokens);
      if (slot !== "eval" && !this.#stage.planning.adapters) {
        this.#program.upload(
          slotTensor(slot, "lookup"),
          bytesOf(tokenLookup(tokens, this.#stage.planning.V)),
        );
      }
    } else {
      assert(input.activation, `stage ${build.stage.index} needs an activation [${R}, C]`);
      const shape = this.#stage.shapes.activationIn;
      const { planning } = this.#stage;
      const { upload } = decodePlan(shape, boundaryTensor(planning, blockTensor(planning, slot)("x", 0)));
      const { activation } = input;
      this.#program.upload(upload, this.boundary.decode(() => fromEncoded(shape, activation)));
    }
    if (head) this.#uploadIds(slotTensor(slot, "targets"), input.targets);
  }

  /** The kernels index the vocabulary with these, so they are checked here. */
  #uploadIds(tensor: string, ids: Uint32Array | undefined): Uint32Array {
    const { R, V } = this.#stage.planning;
    assert(ids?.length === R, `${tensor}: ${ids?.length} ids instead of ${R}`);
    const bad = ids.find((id) => id >= V);
    if (bad !== undefined) {
      throw new ShoalError(
        "bad-corpus",
        `token ${bad} is outside the vocabulary of ${V}; rebuild the corpus`,
      );
    }
    this.#program.upload(tensor, bytesOf(ids));
    return ids;
  }

  #expect(slot: number, state: SlotState): void {
    const found = this.#slots[slot];
    assert(found === state, `slot ${slot} of ${this.#slots.length} is ${found}, not ${state}`);
  }

  /** One operation at a time: they share scratch tensors and the staging buffer. */
  #alone<T>(operation: () => Promise<T>): Promise<T> {
    const result = this.#tail.then(operation);
    this.#tail = result.catch(() => undefined);
    return result;
  }
}

function bytesOf(values: Float32Array | Uint32Array): Uint8Array {
  return new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
}
