// A stage's engine that occupies its peer for a set time per operation instead of computing, so that two cores can host eight
// peers honestly. Tensors have the real size and are really decoded and encoded, weight gradients have the stage's layout and
// are really quantised and summed by the holder. What it computes means nothing. It writes down when each operation ran.
import { decodeTensor, encodeTensor } from "../peer/codec/codec.ts";
import type { StageBuild, StageEngine, StageMemory, StageOutput } from "../peer/engine/engine.ts";
import { stageLayout } from "../peer/model/layout.ts";
import { assert } from "../peer/wire/errors.ts";
import type { CodecId, Encoded } from "../peer/wire/run.ts";
import type { PreciseClock } from "./wan_clock.ts";

/** A peer that goes on so soon after an operation did not wait for anybody. */
const AT_ONCE_MS = 5;
/** Most lateness that is made good: longer stalls show, as they should. */
const REPAID_MS_MAX = 30;

/** Milliseconds per layer and micro-batch. */
export interface LayerMs {
  F: number;
  B: number;
  W: number;
}

/** One operation as it ran, by the bench's clock. */
export interface TracedOp {
  peer: string;
  stage: number;
  kind: keyof LayerMs;
  startMs: number;
  endMs: number;
}

/** One peer's time, over all of its engines. */
export interface Occupied {
  untilMs: number;
  /** How late its last operation ended, because this process was busy with other peers or other programs ran. */
  lateMs: number;
}

export interface TimedOptions {
  peer: string;
  clock: PreciseClock;
  occupied: Occupied;
  layerMs: LayerMs;
  /** B takes the time of B and W, W none: the backward of the textbooks, whose gradient leaves when both are done. */
  fused: boolean;
  /** False at admission, where each pass stands for itself: only within one is made good what an operation ended too late. */
  repays: boolean;
  trace: TracedOp[];
}

export function createTimedEngine(build: StageBuild, options: TimedOptions): StageEngine {
  return new TimedEngine(build, options);
}

/** Times that an engine is told for a whole stage of so many layers. */
export function stageMs({ F, B, W }: LayerMs, layers: number, fused: boolean): LayerMs {
  return fused
    ? { F: F * layers, B: (B + W) * layers, W: 0 }
    : { F: F * layers, B: B * layers, W: W * layers };
}

class TimedEngine implements StageEngine {
  readonly name = "timed (occupies its peer for a set time)";
  readonly #build: StageBuild;
  readonly #options: TimedOptions;
  readonly #ms: LayerMs;
  readonly #values: Float32Array;
  readonly #gradient: Float32Array;

  constructor(build: StageBuild, options: TimedOptions) {
    const { spec, stage, batchSize } = build;
    const size = batchSize * spec.block_size * spec.n_embd;
    this.#build = build;
    this.#options = options;
    this.#ms = stageMs(options.layerMs, stage.endLayer - stage.firstLayer, options.fused);
    this.#values = Float32Array.from({ length: size }, (_, i) => ((i * 37) % 101) / 50 - 1);
    this.#gradient = Float32Array.from(
      { length: stageLayout(spec, stage).size },
      (_, i) => (i % 7 - 3) * 1e-4,
    );
  }

  load(): Promise<void> {
    return Promise.resolve();
  }

  forward(slot: number | null, { activation }: { activation?: Encoded }): Promise<StageOutput> {
    return this.#occupy(slot === null ? null : "F", "F", () => {
      const { stage, codecForward } = this.#build;
      if (!stage.embed) this.#read(activation);
      return stage.head ? { loss: 1 } : { activation: this.#encode(codecForward) };
    });
  }

  backward(_slot: number, gradient: Encoded | null): Promise<Encoded | null> {
    return this.#occupy("B", "B", () => {
      const { stage, codecBackward, codecsBefore } = this.#build;
      if (!stage.head) this.#read(gradient);
      return stage.embed ? null : this.#encode(codecsBefore?.backward ?? codecBackward);
    });
  }

  weightGrad(): Promise<Float32Array> {
    return this.#occupy("W", "W", () => this.#gradient);
  }

  memory(): StageMemory {
    return { params: 0, activations: 0, scratch: 0 };
  }

  destroy(): void {}

  /**
   * The work is done within the time. What the operation before ended too late is taken off, if this one follows at once: on a
   * computer of its own the peer would not have lost it. `traced` is null for what belongs to no training step.
   */
  async #occupy<T>(traced: keyof LayerMs | null, kind: keyof LayerMs, work: () => T): Promise<T> {
    const { clock, occupied, peer, repays, trace } = this.#options;
    const startMs = clock.now();
    const result = work();
    const atOnce = (repays || kind !== "F") && startMs - occupied.untilMs < AT_ONCE_MS;
    const owed = atOnce ? Math.min(occupied.lateMs, REPAID_MS_MAX) : 0;
    const due = startMs + this.#ms[kind] - owed;
    if (this.#ms[kind] > 0) await clock.until(due);
    const endMs = clock.now();
    Object.assign(occupied, { untilMs: endMs, lateMs: Math.max(0, endMs - due) });
    if (traced !== null) {
      trace.push({ peer, stage: this.#build.stage.index, kind: traced, startMs, endMs });
    }
    return result;
  }

  #read(encoded: Encoded | null | undefined): void {
    assert(encoded, "a stage inside the pipeline needs its neighbour's tensor");
    const decoded = decodeTensor(encoded);
    assert(decoded.ok && decoded.value.length === this.#values.length, "the tensor has another shape");
  }

  #encode(codec: CodecId): Encoded {
    const { spec, batchSize } = this.#build;
    return encodeTensor(codec, this.#values, batchSize * spec.block_size, spec.n_embd);
  }
}
