// The stage engine on the GPU: uploads inputs, runs the pre-built operations F, B and W, hands results back.
// It plans nothing (wgsl_plan.ts) and writes no WGSL. Operations run one after the other; a step makes no GPU object.
import type { GpuDevice } from "../gpu/device.ts";
import { wideTiles } from "../gpu/kernels/matmul.ts";
import { rotaryTable } from "../gpu/kernels/rotary.ts";
import { Program } from "../gpu/program.ts";
import { assert, ShoalError } from "../wire/errors.ts";
import type { Encoded } from "../wire/run.ts";
import type { StageBuild, StageEngine, StageInput, StageMemory, StageOutput } from "./engine.ts";
import { decodePlan, fromEncoded, toEncoded } from "./wgsl_codec.ts";
import { type SlotName, slotTensor } from "./wgsl_names.ts";
import { backwardName, forwardName, planStage, type StageProgram, weightGradName } from "./wgsl_plan.ts";

/** What a slot holds, in the order of a micro-batch's life. */
type SlotState = "free" | "forward done" | "backward done";

/**
 * Builds a stage on an open device, with zero parameters until load.
 * Errors: out-of-memory with the bytes wanted, shader-invalid, internal.
 */
export async function createWgslEngine(gpu: GpuDevice, build: StageBuild): Promise<StageEngine> {
  const stage = planStage(build, { software: gpu.software, wideTiles: wideTiles(gpu.adapterName) });
  const program = await Program.build(gpu, stage.plan);
  const { T, D } = stage.planning;
  program.upload("angles", bytesOf(rotaryTable(T, D, build.spec.rope_theta)));
  return new WgslEngine(gpu, stage, program);
}

class WgslEngine implements StageEngine {
  readonly name: string;
  readonly #stage: StageProgram;
  readonly #program: Program;
  readonly #slots: SlotState[];
  #tail: Promise<unknown> = Promise.resolve();

  constructor(gpu: GpuDevice, stage: StageProgram, program: Program) {
    this.name = `wgsl on ${gpu.adapterName} (${gpu.provider})`;
    this.#stage = stage;
    this.#program = program;
    this.#slots = new Array<SlotState>(stage.planning.build.slots).fill("free");
  }

  load(params: Float32Array): Promise<void> {
    return this.#alone(() => {
      const { size } = this.#stage.planning.layout;
      if (params.length !== size) {
        const text = `${params.length} parameters do not fit a stage of ${size}; reload the state`;
        throw new ShoalError("bad-state", text);
      }
      this.#program.upload("params", bytesOf(params));
      this.#slots.fill("free");
      return Promise.resolve();
    });
  }

  forward(slot: number | null, input: StageInput): Promise<StageOutput> {
    return this.#alone(async () => {
      const name = slot ?? "eval";
      if (slot !== null) this.#expect(slot, "free");
      this.#uploadInput(name, input);
      const bytes = await this.#program.run(forwardName(name));
      const output = this.#stage.planning.build.stage.head
        ? { loss: new Float32Array(bytes)[0]! }
        : { activation: toEncoded(this.#stage.forwardShape, bytes) };
      if (slot !== null) this.#slots[slot] = "forward done";
      return output;
    });
  }

  backward(slot: number, gradient: Encoded | null): Promise<Encoded | null> {
    return this.#alone(async () => {
      this.#expect(slot, "forward done");
      const { build, layers } = this.#stage.planning;
      const shape = this.#stage.backwardShape;
      assert(build.stage.head === (gradient === null), "exactly the last stage is given no gradient");
      if (gradient) {
        const { upload } = decodePlan(shape, slotTensor(slot, "dx", layers));
        this.#program.upload(upload, fromEncoded(shape, gradient));
      }
      const bytes = await this.#program.run(backwardName(slot));
      const output = build.stage.embed ? null : toEncoded(shape, bytes);
      this.#slots[slot] = "backward done";
      return output;
    });
  }

  weightGrad(slot: number): Promise<Float32Array> {
    return this.#alone(async () => {
      this.#expect(slot, "backward done");
      const bytes = await this.#program.run(weightGradName(slot));
      this.#slots[slot] = "free";
      return new Float32Array(bytes);
    });
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
    if (embed) this.#uploadIds(slotTensor(slot, "tokens"), input.tokens);
    else {
      assert(input.activation, `stage ${build.stage.index} needs an activation [${R}, C]`);
      const shape = this.#stage.forwardShape;
      const { upload } = decodePlan(shape, slotTensor(slot, "x", 0));
      this.#program.upload(upload, fromEncoded(shape, input.activation));
    }
    if (head) this.#uploadIds(slotTensor(slot, "targets"), input.targets);
  }

  /** The kernels index the vocabulary with these, so they are checked here. */
  #uploadIds(tensor: string, ids: Uint32Array | undefined): void {
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
