// A stage engine for the simulation: a small bilinear model over the real parameter layout, with true f32 gradients that depend
// on parameters, data and neighbours. Not a GPT and not fast at anything large; it costs microseconds, so that a hundred
// thousand worlds can be run. As with the CPU engine, every cut into stages must give the same bits.
import { decodeTensor, encodeTensor } from "../../peer/codec/codec.ts";
import type {
  StageBuild,
  StageEngine,
  StageInput,
  StageMemory,
  StageOutput,
} from "../../peer/engine/engine.ts";
import { EMBEDDING_NAME, HEAD_NAME, stageLayout, type TensorLayout } from "../../peer/model/layout.ts";
import { assert } from "../../peer/wire/errors.ts";
import type { Encoded } from "../../peer/wire/run.ts";

/** What a layer keeps of its input, and how strongly each parameter acts. */
const KEEP = 0.9;
const GAIN = 0.05;
/** Coprime to every width used, so that a parameter couples two different positions. */
const STRIDE = 7;

interface Slot {
  tokens?: Uint32Array;
  targets?: Uint32Array;
  /** Input of every layer, then the last one's output, [R * C] each. */
  inputs: Float32Array[];
  /** Gradient of every layer's output, and of the first one's input in front of them. */
  grads: Float32Array[];
}

export function createSimEngine(build: StageBuild): StageEngine {
  return new SimEngine(build);
}

class SimEngine implements StageEngine {
  readonly name = "simulated";
  readonly #build: StageBuild;
  readonly #rows: number;
  readonly #cols: number;
  readonly #layers: TensorLayout[][];
  readonly #table: TensorLayout | undefined;
  readonly #norm: TensorLayout | undefined;
  readonly #head: TensorLayout | undefined;
  readonly #params: Float32Array;
  #slots: (Slot | null)[];

  constructor(build: StageBuild) {
    const { spec, stage } = build;
    const { tensors, size } = stageLayout(spec, stage);
    const find = (name: string) => tensors.find((tensor) => tensor.name === name);
    this.#build = build;
    this.#rows = build.batchSize * spec.block_size;
    this.#cols = spec.n_embd;
    this.#layers = Array.from(
      { length: stage.endLayer - stage.firstLayer },
      (_, l) => tensors.filter((it) => it.name.startsWith(`model.layers.${stage.firstLayer + l}.`)),
    );
    this.#table = stage.embed ? find(EMBEDDING_NAME) : undefined;
    this.#norm = find("model.norm.weight");
    this.#head = stage.head ? find(HEAD_NAME) ?? find(EMBEDDING_NAME) : undefined;
    this.#params = new Float32Array(size);
    this.#slots = Array.from({ length: build.slots }, () => null);
  }

  load(params: Float32Array): Promise<void> {
    assert(params.length === this.#params.length, `${params.length} parameters for ${this.#params.length}`);
    this.#params.set(params);
    this.#slots = this.#slots.map(() => null);
    return Promise.resolve();
  }

  forward(slot: number | null, input: StageInput): Promise<StageOutput> {
    assert(slot === null || this.#slots[slot] === null, `slot ${slot} still holds a micro-batch`);
    let x = this.#input(input);
    const kept: Slot = { inputs: [x], grads: [] };
    if (input.tokens !== undefined) kept.tokens = input.tokens;
    if (input.targets !== undefined) kept.targets = input.targets;
    for (const tensors of this.#layers) {
      x = this.#layer(tensors, x);
      kept.inputs.push(x);
    }
    if (slot !== null) this.#slots[slot] = kept;
    if (this.#build.stage.head) return Promise.resolve({ loss: this.#loss(x, input.targets) });
    return Promise.resolve({
      activation: encodeTensor(this.#build.codecForward, x, this.#rows, this.#cols),
    });
  }

  backward(slot: number, gradient: Encoded | null): Promise<Encoded | null> {
    const kept = this.#slot(slot);
    let dy = gradient === null ? this.#headInputGrad(kept) : decoded(gradient);
    kept.grads = [dy];
    for (let l = this.#layers.length - 1; l >= 0; l--) {
      dy = this.#layerInputGrad(this.#layers[l]!, dy);
      kept.grads.unshift(dy);
    }
    if (this.#build.stage.embed) return Promise.resolve(null);
    const codec = this.#build.codecsBefore?.backward ?? this.#build.codecBackward;
    return Promise.resolve(encodeTensor(codec, dy, this.#rows, this.#cols));
  }

  weightGrad(slot: number): Promise<Float32Array> {
    const kept = this.#slot(slot);
    assert(kept.grads.length === this.#layers.length + 1, `W before B in slot ${slot}`);
    const out = new Float32Array(this.#params.length);
    this.#layers.forEach((tensors, l) => {
      const [x, dy] = [kept.inputs[l]!, kept.grads[l + 1]!];
      for (const { offset, size } of tensors) {
        for (let k = 0; k < size; k++) {
          out[offset + k] = GAIN * dy[k % dy.length]! * x[(STRIDE * k + 1) % x.length]!;
        }
      }
    });
    if (kept.targets !== undefined && this.#head !== undefined) this.#headGrad(kept, out);
    if (kept.tokens !== undefined && this.#table !== undefined) {
      const C = this.#cols;
      kept.tokens.forEach((token, r) => {
        for (let c = 0; c < C; c++) out[this.#table!.offset + token * C + c]! += kept.grads[0]![r * C + c]!;
      });
    }
    this.#slots[slot] = null;
    return Promise.resolve(out);
  }

  memory(): StageMemory {
    const floats = this.#params.length;
    const activations = this.#slots.length * (this.#layers.length + 1) * 2 * this.#rows * this.#cols * 4;
    return { params: floats * 4, activations, scratch: floats * 4 };
  }

  destroy(): void {
    this.#slots = [];
  }

  #slot(slot: number): Slot {
    const kept = this.#slots[slot];
    assert(kept !== null && kept !== undefined, `slot ${slot} is empty`);
    return kept;
  }

  #input({ tokens, activation }: StageInput): Float32Array {
    if (activation !== undefined) return decoded(activation);
    assert(tokens !== undefined && this.#table !== undefined, "the first stage needs tokens");
    const C = this.#cols;
    const x = new Float32Array(this.#rows * C);
    tokens.forEach((token, r) => {
      const row = this.#table!.offset + token * C;
      for (let c = 0; c < C; c++) x[r * C + c] = this.#params[row + c]!;
    });
    return x;
  }

  /** y_i = KEEP x_i + GAIN sum over k of w_k x_(7k+1), for each k that is i modulo the width. */
  #layer(tensors: TensorLayout[], x: Float32Array): Float32Array {
    const A = x.length;
    const sum = new Float64Array(A);
    for (const { offset, size } of tensors) {
      for (let k = 0; k < size; k++) sum[k % A]! += this.#params[offset + k]! * x[(STRIDE * k + 1) % A]!;
    }
    return Float32Array.from(sum, (value, i) => KEEP * x[i]! + GAIN * value);
  }

  #layerInputGrad(tensors: TensorLayout[], dy: Float32Array): Float32Array {
    const A = dy.length;
    const sum = new Float64Array(A);
    for (const { offset, size } of tensors) {
      for (let k = 0; k < size; k++) sum[(STRIDE * k + 1) % A]! += this.#params[offset + k]! * dy[k % A]!;
    }
    return Float32Array.from(sum, (value, i) => KEEP * dy[i]! + GAIN * value);
  }

  /** Half the mean squared distance between x scaled by the norm and the target's row of the head. */
  #loss(x: Float32Array, targets: Uint32Array | undefined): number {
    let sum = 0;
    this.#eachHead(targets, x, (difference) => sum += difference * difference / 2);
    return sum / x.length;
  }

  #headInputGrad({ inputs, targets }: Slot): Float32Array {
    const x = inputs.at(-1)!;
    const dx = new Float32Array(x.length);
    this.#eachHead(targets, x, (difference, i, norm) => dx[i] = difference * norm / x.length);
    return dx;
  }

  #headGrad({ inputs, targets }: Slot, out: Float32Array): void {
    const x = inputs.at(-1)!;
    const norm = this.#norm!.offset;
    this.#eachHead(targets, x, (difference, i, _, entry) => {
      out[norm + i % this.#cols]! += difference * x[i]! / x.length;
      out[entry]! -= difference / x.length;
    });
  }

  #eachHead(
    targets: Uint32Array | undefined,
    x: Float32Array,
    visit: (difference: number, i: number, norm: number, entry: number) => void,
  ): void {
    assert(targets !== undefined && this.#head !== undefined && this.#norm !== undefined, "no head here");
    const C = this.#cols;
    for (let i = 0; i < x.length; i++) {
      const norm = this.#params[this.#norm.offset + i % C]!;
      const entry = this.#head.offset + targets[Math.floor(i / C)]! * C + i % C;
      visit(x[i]! * norm - this.#params[entry]!, i, norm, entry);
    }
  }
}

function decoded(encoded: Encoded): Float32Array {
  const values = decodeTensor(encoded);
  assert(values.ok, "a boundary tensor of the simulation decodes");
  return values.value;
}
